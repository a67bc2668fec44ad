"""Attribution beside exact patching: one point per cell, the line where both agree."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from interp.interventions.attribution_result import AttributionComparison
from interp.plots.style import palette, styled_figure

N_NAMED = 5


def plot_attribution_scatter(comparison: AttributionComparison, *, dark: bool = False) -> Figure:
    """Draw each cell's estimated change over its exact one; the cells of largest exact change are named.

    Args:
        comparison: of ``AttributionResult.compare``.
        dark: light ink on a dark page.
    """
    exact, estimated = comparison.exact, comparison.estimated
    with styled_figure(4.6, 4.4, dark=dark) as figure:
        ax = figure.subplots()
        ends = np.array([min(exact.min(), estimated.min()), max(exact.max(), estimated.max())])
        ax.plot(ends, ends, color=palette(1), linewidth=1, label="equal")
        ax.plot(exact, estimated, ".", color=palette(0), markersize=5, alpha=0.8)
        named = np.argsort(-np.abs(exact), kind="stable")[:N_NAMED]
        for number, cell in enumerate(sorted(named, key=lambda cell: exact[cell])):
            ax.annotate(
                comparison.cells[cell],
                (exact[cell], estimated[cell]),
                xytext=(4, 4 if number % 2 else -10),  # in turn above and below, since neighbours lie close
                textcoords="offset points",
                fontsize=8,
            )
        ax.margins(0.12)
        name = comparison.metric.replace("_", " ")
        unit = f" ({comparison.unit})" if comparison.unit and comparison.unit != name else ""
        ax.set_xlabel(f"exact change in {name}{unit}")
        ax.set_ylabel("estimated")
        ax.legend(loc="lower right")
        numbers = f"rank {comparison.spearman:.2f}, linear {comparison.pearson:.2f}"
        ax.set_title(f"{comparison.title}\n{numbers}", loc="left", fontsize=9)
    return figure
