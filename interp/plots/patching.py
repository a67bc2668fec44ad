"""Grids of patching and ablation: what each cell changes, zero in the middle of the colours.

One axis gives bars with 95 % intervals, two a heatmap, three one heatmap for each entry of the first. A dot marks a
cell whose mean change over examples is significantly not 0: p < .05, sign flips, corrected over all cells of the grid.
"""

from __future__ import annotations

from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from interp.interventions.ablation_result import JointAblation
from interp.interventions.cell_result import CellResult
from interp.plots.style import change_colours, printable, sign_colours, styled_figure, tick_step
from models.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

MAX_PANELS = 48
WIDEST, TALLEST = 13.5, 12.0  # inches of a grid: 150 columns of readable cells, and more of narrower ones
ALPHA = 0.05
_POSITIONS = ("pos", "dest_pos", "src_pos")


def plot_cells(result: CellResult, metric: str | None = None, *, dark: bool = False) -> Figure:
    """Draw the change that every cell makes to a metric, in its unit.

    Args:
        result: of ``activation_patching``, ``ablation_sweep`` or another sweep.
        metric: may be left out where there is only one.
        dark: light ink on a dark page.

    Raises:
        InputError: more axes, or more panels, than a page can hold.
    """
    name = result.metric(metric)
    change = result.change(name)
    if change.ndim > 3 or (change.ndim == 3 and len(change) > MAX_PANELS):
        raise InputError(
            f"a grid {dict(zip(result.axes, change.shape, strict=True))} does not fit on a page; sweep over up to "
            f"three axes, the first of up to {MAX_PANELS} entries, or plot a part of to_frame()"
        )
    certain = _significant(result, name)
    if change.ndim == 1:
        return _bars(result, name, change, certain, dark)
    return _heatmaps(result, name, change, certain, dark)


def plot_joint_ablation(result: JointAblation, metric: str | None = None, *, dark: bool = False) -> Figure:
    """Draw what taking out each part alone changes, the sum of that, and what taking out all of them changes.

    Args:
        result: of ``ablate``.
        metric: may be left out where there is only one.
        dark: light ink on a dark page.
    """
    name = result.metric(metric)
    names = [*result.parts, "sum of singles", "joint"]
    heights = [*result.change(name), result.sum_of_singles(name), result.joint_change(name)]
    with styled_figure(max(4.0, min(14.0, 0.4 * len(names) + 1.2)), 3.2, dark=dark) as figure:
        ax = figure.subplots()
        bars = ax.bar(range(len(names)), heights, color=sign_colours(heights))
        bars[-2].set(alpha=0.5)  # nothing that was run
        ax.axhline(0, color=ax.xaxis.label.get_color(), linewidth=0.8)
        ax.set_xticks(range(len(names)), names, rotation=90)
        ax.set_ylabel(fill(_said(result, name), 24))
        _entitle(figure, result, np.zeros(0, dtype=bool))
    return figure


def _significant(result: CellResult, name: str) -> np.ndarray:
    """Return which cells get a dot; none where there are too few examples to tell."""
    try:
        return result.p_values(name) < ALPHA
    except InputError:
        return np.zeros(result.mean(name).shape, dtype=bool)


def _said(result: CellResult, name: str) -> str:
    unit = result.units[name]
    return f"change in {name.replace('_', ' ')}" + (f" ({unit})" if unit and unit != name else "")


def _entitle(figure: Figure, result: CellResult, certain: np.ndarray) -> None:
    title = f"{result.title}; dots: p (mean change ≠ 0) < .05" if certain.any() else result.title
    if not result.complete:
        title += "; interrupted"
    lines = fill(title, int(9.5 * figure.get_figwidth()))
    figure.set_figheight(figure.get_figheight() + 0.16 * lines.count("\n"))  # long titles take nothing from the grid
    figure.suptitle(lines, x=0.02, ha="left", fontsize=10)


def _bars(result: CellResult, name: str, change: np.ndarray, certain: np.ndarray, dark: bool) -> Figure:
    width = max(2.5, min(14.0, 0.32 * len(change)))
    with styled_figure(width + 1.2, 3.2, dark=dark) as figure:
        ax = figure.subplots()
        try:
            low, high = result.interval(name)
            spread = np.abs(np.stack([change - low, high - change]))
        except InputError:
            spread = None
        ax.bar(
            range(len(change)),
            change,
            yerr=spread,
            color=sign_colours(change.tolist()),
            ecolor="0.45",
            error_kw={"linewidth": 1},
        )
        ax.axhline(0, color=ax.xaxis.label.get_color(), linewidth=0.8)
        for cell in np.flatnonzero(certain):
            ax.plot(cell, change[cell], ".", color=ax.xaxis.label.get_color(), markersize=5)
        _ticks(ax, "x", result, result.axes[0], len(change), width)
        ax.set_ylabel(fill(_said(result, name), 24))
        _entitle(figure, result, certain)
    return figure


def _heatmaps(result: CellResult, name: str, change: np.ndarray, certain: np.ndarray, dark: bool) -> Figure:
    grids, marks = (array if array.ndim == 3 else array[None] for array in (change, certain))
    n_rows, n_columns = grids.shape[1:]
    cell = min(0.32, max(0.09, 9 / max(n_rows, n_columns)))
    width, height = min(WIDEST, max(n_columns * cell, 1.6)), min(TALLEST, max(n_rows * cell, 0.5))
    square = n_columns * cell <= WIDEST and n_rows * cell <= TALLEST
    across = max(1, min(len(grids), int(13 // (width + 0.8))))
    down = ceil(len(grids) / across)
    limit = float(np.nanmax(np.abs(change), initial=0.0)) or 1.0
    with styled_figure(
        max(4.0, across * (width + 0.9) + 1.0), max(2.8, down * (height + 1.0) + 0.7), dark=dark
    ) as figure:
        axes = figure.subplots(down, across, squeeze=False)
        for ax in axes.flat[len(grids) :]:
            ax.remove()
        for number, (ax, grid, mark) in enumerate(zip(axes.flat, grids, marks, strict=False)):
            image = _heatmap(ax, grid, mark, limit, cell, square, dark)
            for side, axis, count, inches in (("y", -2, n_rows, height), ("x", -1, n_columns, width)):
                _ticks(ax, side, result, result.axes[axis], count, inches)
            if change.ndim == 3:
                ax.set_title(f"{result.axes[0]} {result.labels(result.axes[0])[number]}")
        bar = figure.colorbar(image, ax=figure.axes, fraction=0.05, aspect=16, shrink=min(1.0, 3.5 / (down * height)))
        bar.set_label(_said(result, name))
        bar.outline.set_visible(False)
        _entitle(figure, result, certain)
    return figure


def _heatmap(
    ax: Axes, grid: np.ndarray, certain: np.ndarray, limit: float, cell: float, square: bool, dark: bool
) -> AxesImage:
    image = ax.imshow(np.ma.masked_invalid(grid), cmap=change_colours(dark), vmin=-limit, vmax=limit)
    ax.set_aspect("equal" if square else "auto")
    rows, columns = np.nonzero(certain)
    ax.scatter(columns, rows, s=max(1.5, 12 * cell) ** 2, c="black", edgecolors="white", linewidths=0.6)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image


def _ticks(ax: Axes, side: str, result: CellResult, axis: str, count: int, inches: float) -> None:
    """Name every entry of an axis, or as many as there is room for: positions by their tokens."""
    labels = [str(label) for label in result.labels(axis)]
    upright = side == "y" or (axis not in _POSITIONS and max(map(len, labels)) <= 2)
    step = tick_step(count, inches, points=14 if side == "x" and upright else 10)
    shown = list(range(0, count, step))
    names = [labels[i] for i in shown]
    label = axis.replace("_", " ")
    if axis in _POSITIONS and result.prompts():
        names = [f"{position_label(result, i)} {i}" for i in shown]
        n_examples = len(result.prompts()[0])
        label += f" (tokens of the first of {n_examples})" if n_examples > 1 else ""
    if side == "x":
        ax.set_xticks(shown, names, rotation=0 if upright else 90)
        ax.set_xlabel(label)
    else:
        ax.set_yticks(shown, names)
        ax.set_ylabel(label)


def position_label(result: CellResult, position: int) -> str:
    """Return the first example's token at a position; both prompts' where they differ there."""
    tokens = dict.fromkeys(printable(prompts[0][position], 9) for prompts in result.prompts())
    return "/".join(tokens)
