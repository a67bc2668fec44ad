"""The induction circuit: composition scores of every earlier head, and what ablation makes of each link."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from interp.plots.style import entitle, model_title, palette, styled_figure, tick_step
from interp.weights.circuit_result import InductionCircuit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MAX_PANELS = 6
MAX_LINKS = 40


def plot_composition(circuit: InductionCircuit, *, dark: bool = False) -> Figure:
    """Draw, for the best induction heads, the K-composition score of every earlier head, ``[layer, head]``.

    A frame marks an earlier head whose link ablation confirms. The mark on the colour bar is the dimension null,
    1/sqrt(d_model): what two heads that know nothing of each other score.

    Args:
        circuit: of ``induction_circuit``.
        dark: light ink on a dark page.
    """
    grids = dict(list(circuit.composition.items())[:MAX_PANELS])
    earlier = max((int(np.isfinite(grid).any(1).sum()) for grid in grids.values()), default=1)
    grids = {name: grid[: max(1, earlier)] for name, grid in grids.items()}
    n_layers, n_heads = next(iter(grids.values())).shape if grids else (1, 1)
    cell = 0.42 if n_layers * n_heads <= 64 else max(0.1, min(0.2, 6 / max(n_layers, n_heads)))
    columns = min(len(grids), 3) or 1
    rows = ceil(len(grids) / columns) or 1
    highest = max([2 * circuit.dimension_null, *(float(np.nan_to_num(grid).max()) for grid in grids.values())])
    size = (max(4.4, columns * (max(n_heads * cell, 1.3) + 0.7) + 1.2), max(2.4, rows * (earlier * cell + 0.85) + 0.7))
    with styled_figure(*size, dark=dark) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(grids) :]:
            ax.remove()
        for ax, (name, grid) in zip(axes.flat, grids.items(), strict=False):
            framed = {tuple(k.earlier) for k in circuit.confirmed if k.route == "K" and str(k.later) == name}
            image = _panel(ax, name, grid, framed, highest, cell)
        entitle(figure, f"Whose writes the induction heads of {model_title(circuit.report.model)} could read")
        if not grids:
            _nothing(figure, "no induction heads found")
            return figure
        bar = figure.colorbar(image, ax=figure.axes, fraction=0.05, aspect=16)
        bar.set_label("K-composition score")
        bar.ax.axhline(circuit.dimension_null, color=palette(1), linewidth=1.5)
        bar.outline.set_visible(False)
    return figure


def _panel(
    ax: Axes, name: str, grid: np.ndarray, framed: set[tuple[int, ...]], highest: float, cell: float
) -> AxesImage:
    image = ax.imshow(np.ma.masked_invalid(grid), vmin=0, vmax=highest)
    for axis, count in ((ax.xaxis, grid.shape[1]), (ax.yaxis, grid.shape[0])):
        axis.set_ticks(range(0, count, tick_step(count, count * cell)))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="head", ylabel="layer")
    ax.set_title(f"into {name}")
    for layer, head in framed:
        corner = (head - 0.5, layer - 0.5)
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=palette(1), linewidth=3.2 * cell + 0.6))
    return image


def plot_links(circuit: InductionCircuit, *, dark: bool = False) -> Figure:
    """Draw what each link carries: the fall of the induction score when one write is taken from one input.

    A dot with its 95 % interval is the link's effect; a tick the largest effect of other heads in the same layer; a
    ring the effect of ablating the earlier head for everything. Links that ablation confirms are in colour.

    Args:
        circuit: of ``induction_circuit``.
        dark: light ink on a dark page.
    """
    links = circuit.links[:MAX_LINKS]
    with styled_figure(6.4, 0.24 * max(4, len(links)) + 1.5, dark=dark) as figure:
        more = f", the first {len(links)} of {len(circuit.links)}" if len(circuit.links) > len(links) else ""
        entitle(figure, f"Links into the induction heads of {model_title(circuit.report.model)}{more}")
        if not links:
            _nothing(figure, "no candidate links: not both kinds of head were found, one before the other")
            return figure
        ax = figure.subplots()
        ax.axvline(0, color="0.55", linewidth=0.8)
        for row, link in enumerate(links):
            colour = palette(0) if link.verdict else "0.6"
            ax.plot(link.interval, [row, row], color=colour, linewidth=1.5)
            ax.plot(link.effect, row, "o", color=colour, markersize=5)
            ax.plot(link.whole, row, "o", markerfacecolor="none", markeredgecolor=colour, markersize=8)
            ax.plot(link.null, row, "|", color=palette(1), markersize=8)
        ax.set_yticks(range(len(links)), [f"{link.earlier} → {link.later}.{link.route.lower()}" for link in links])
        ax.set(ylim=(len(links) - 0.5, -0.5), xlabel="fall of the induction score (attention)")
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        handles = [
            ax.plot([], [], "o", color=palette(0), markersize=5)[0],
            ax.plot([], [], "o", markerfacecolor="none", markeredgecolor=palette(0), markersize=8)[0],
            ax.plot([], [], "|", color=palette(1), markersize=8)[0],
        ]
        names = ["from this input alone", "ablated for everything", "largest of other heads"]
        figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def _nothing(figure: Figure, why: str) -> None:
    figure.text(0.5, 0.4, why, ha="center")
