"""Head scores as heatmaps: one panel per kind, layers down, heads across, the detected heads framed."""

from __future__ import annotations

from math import ceil, log
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from interp.plots.style import model_title, palette, styled_figure, tick_step
from interp.results import HeadReport
from interp.sites import Head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


def plot_head_scores(report: HeadReport, *, dark: bool = False) -> Figure:
    """Draw the score of every head, ``[layer, head]``, for each kind of the report.

    A frame marks a head that has the pattern, a solid one where it is confirmed. Numbers stand in the cells where there
    is room, in large models only in framed ones.

    Args:
        report: of ``find_heads``.
        dark: light ink on a dark page.
    """
    n_layers, n_heads = report.scores(report.kinds[0]).shape
    cell = _cell_size(n_layers, n_heads)
    width, height = max(n_heads * cell, 1.9), n_layers * cell
    columns = _columns(len(report.kinds), width, height)
    rows = ceil(len(report.kinds) / columns)
    with styled_figure(*_size(columns, rows, width, height), dark=dark) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(report.kinds) :]:
            ax.remove()
        for ax, kind in zip(axes.flat, report.kinds, strict=False):
            image = _panel(ax, report, kind, cell)
        for ax in axes[:, 0]:
            ax.set_ylabel("layer")
        bar = figure.colorbar(image, ax=figure.axes, fraction=0.05, aspect=14, shrink=min(0.9, 3.5 / (height * rows)))
        bar.set_label("score")
        bar.outline.set_visible(False)
        figure.suptitle(f"Heads of {model_title(report.model)}", x=0.02, ha="left")
    return figure


def _cell_size(n_layers: int, n_heads: int) -> float:
    """Return the side of a cell in inches."""
    cells = n_layers * n_heads
    if cells <= 64:
        return 0.55
    return 0.38 if cells <= 160 else max(0.1, min(0.3, 11 / max(n_layers, n_heads)))


def _size(columns: int, rows: int, width: float, height: float) -> tuple[float, float]:
    """Return the figure's size in inches: the panels, and room for titles, labels and the colour bar."""
    return columns * (width + 0.65) + 0.9, rows * (height + 0.85) + 0.55


def _columns(n_panels: int, width: float, height: float) -> int:
    """Return the number of columns that brings the page closest to 3 : 2."""

    def distance(columns: int) -> float:
        across, down = _size(columns, ceil(n_panels / columns), width, height)
        return abs(log(across / down / 1.5))

    return min({n_panels, ceil(n_panels / 2), 1}, key=distance)


def _panel(ax: Axes, report: HeadReport, kind: str, cell: float) -> AxesImage:
    scores = report.scores(kind)
    found = {evidence.name: evidence.is_confirmed for evidence in report.found(kind)}
    image = ax.imshow(scores, vmin=0, vmax=1)
    n_layers, n_heads = scores.shape
    for axis, count in ((ax.xaxis, n_heads), (ax.yaxis, n_layers)):
        axis.set_ticks(range(0, count, tick_step(count, count * cell)))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("head")
    how_many = "none found" if not found else f"{len(found)} found, {sum(found.values())} confirmed"
    ax.set_title(f"{kind.replace('_', ' ')}: {how_many}")
    for layer, head in np.ndindex(scores.shape):
        score, framed = float(scores[layer, head]), Head(layer, head) in found
        if framed:
            style = dict[str, Any](edgecolor=palette(1), linewidth=3.2 * cell + 0.6)
            style |= {} if found[Head(layer, head)] else {"linestyle": (0, (1.2, 0.8))}
            ax.add_patch(Rectangle((head - 0.5, layer - 0.5), 1, 1, fill=False, **style))
        if cell >= 0.25 and (framed or cell > 0.5):
            style = dict[str, Any](ha="center", va="center", fontsize=min(9.0, 25 * cell))
            ax.text(head, layer, f"{score:.2f}".removeprefix("0"), color=_ink(image, score), **style)
    return image


def _ink(image: AxesImage, score: float) -> str:
    """Return black or white, whichever reads better on the cell of this score."""
    red, green, blue, _ = image.cmap(score)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
