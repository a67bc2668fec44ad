"""Results to figures: each function takes a result and returns a ``matplotlib.figure.Figure``."""

from interp.plots.attention_patterns import plot_attention, plot_attention_patterns
from interp.plots.attribution import plot_logit_attribution, plot_sources
from interp.plots.attribution_scatter import plot_attribution_scatter
from interp.plots.composition import plot_composition, plot_links
from interp.plots.head_scores import plot_head_scores
from interp.plots.increments import plot_increments
from interp.plots.lens import plot_lens_grid
from interp.plots.next_token import plot_next_token
from interp.plots.patching import plot_cells, plot_joint_ablation
from interp.plots.phase_change import plot_phase_change
from interp.plots.positional import plot_positional
from interp.plots.style import printable, style_file, styled_figure
from interp.plots.token_loss import plot_token_loss
from interp.plots.trajectory import plot_trajectory

__all__ = [
    "plot_attention",
    "plot_attention_patterns",
    "plot_attribution_scatter",
    "plot_cells",
    "plot_composition",
    "plot_head_scores",
    "plot_increments",
    "plot_joint_ablation",
    "plot_lens_grid",
    "plot_links",
    "plot_logit_attribution",
    "plot_next_token",
    "plot_phase_change",
    "plot_positional",
    "plot_sources",
    "plot_token_loss",
    "plot_trajectory",
    "printable",
    "style_file",
    "styled_figure",
]
