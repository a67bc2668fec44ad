"""Attribution beside exact patching: one point per cell, the line where both agree."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from interp.interventions.attribution_result import AttributionComparison
from interp.plots.style import palette, styled_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend
    from matplotlib.transforms import Bbox

N_NAMED = 5
PLACES = [(dx, dy) for dy in (7, -7, 18, -18) for dx in (5, -5)]  # points from a dot, tried in turn


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
        ax.margins(0.12)
        name = comparison.metric.replace("_", " ")
        unit = f" ({comparison.unit})" if comparison.unit and comparison.unit != name else ""
        ax.set_xlabel(f"exact change in {name}{unit}")
        ax.set_ylabel("estimated")
        legend = ax.legend(loc="lower right")
        numbers = f"rank {comparison.spearman:.2f}, linear {comparison.pearson:.2f}"
        title = fill(comparison.title, 50)
        ax.set_title(f"{title}\n{numbers}", loc="left", fontsize=9)
        _name(figure, ax, legend, [(comparison.cells[i], exact[i], estimated[i]) for i in named])
    return figure


def _name(figure: Figure, ax: Axes, legend: Legend, points: list[tuple[str, float, float]]) -> None:
    """Write each point's name beside it, where it covers no name before it; leave out one that has no such place."""
    figure.draw_without_rendering()  # only now is it known how large texts are
    taken: list[Bbox] = [text.get_window_extent() for text in legend.get_texts()]
    for text, x, y in points:
        for dx, dy in PLACES:
            across = "left" if dx > 0 else "right"
            note = ax.annotate(text, (x, y), (dx, dy), textcoords="offset points", fontsize=8, ha=across, va="center")
            box = note.get_window_extent()
            inside = ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()
