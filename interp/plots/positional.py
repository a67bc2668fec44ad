"""Where previous-token heads would look if streams carried nothing but their position."""

from __future__ import annotations

from math import ceil

import numpy as np
from matplotlib.figure import Figure

from interp.plots.style import entitle, model_title, styled_figure, tick_step
from interp.weights.circuit_result import InductionCircuit

PANEL = 2.2
MAX_PANELS = 6
SHOWN = 32  # positions: the band beside the diagonal is what there is to see


def plot_positional(circuit: InductionCircuit, *, dark: bool = False) -> Figure:
    """Draw the pattern by position alone of the best previous-token heads; a row is a query and sums to 1.

    Args:
        circuit: of ``induction_circuit``.
        dark: light ink on a dark page.
    """
    patterns = dict(list(circuit.positional.items())[:MAX_PANELS])
    columns = min(len(patterns), 3) or 1
    rows = ceil(len(patterns) / columns) or 1
    with styled_figure(max(4.4, columns * (PANEL + 0.5) + 1.0), rows * (PANEL + 0.6) + 0.7, dark=dark) as figure:
        entitle(figure, f"Looking back by position alone: {model_title(circuit.report.model)}")
        if not patterns:
            figure.text(0.5, 0.4, "no previous-token heads found, or no positions", ha="center")
            return figure
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(patterns) :]:
            ax.remove()
        for ax, (name, pattern) in zip(axes.flat, patterns.items(), strict=False):
            shown = pattern[:SHOWN, :SHOWN]
            future = np.triu(np.ones_like(shown, dtype=bool), k=1)
            image = ax.imshow(np.ma.masked_array(shown, future), vmin=0, vmax=1)
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_ticks(range(0, len(shown), tick_step(len(shown), PANEL, points=14)))
            ax.tick_params(length=2)
            score = float(pattern.diagonal(-1).mean())
            ax.set_title(f"{name}: {score:.2f} one back")
        figure.supxlabel("key position", fontsize=9)
        figure.supylabel("query position", fontsize=9)
        bar = figure.colorbar(image, ax=figure.axes, fraction=0.04, aspect=20)
        bar.set_label("attention")
        bar.outline.set_visible(False)
    return figure
