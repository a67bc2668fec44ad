"""The logit lens as a grid: depth down, tokens across, in every cell the top guess, its colour a measure of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from interp.plots.style import entitle, model_title, palette, printable, styled_figure, tick_step
from interp.readout.logit_lens import LensResult
from models.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.image import AxesImage

Measure = Literal["probability", "entropy", "kl", "target", "rank"]
MOST = 24  # columns with readable guesses
CELL = (0.62, 0.21)  # inches

_LABELS = {
    "probability": "probability of the guess",
    "entropy": "entropy (nats)",
    "kl": "KL to the output (nats)",
    "target": "probability of the target",
    "rank": "rank of the target",
}


def plot_lens_grid(
    result: LensResult, measure: Measure = "probability", *, batch: int = 0, dark: bool = False
) -> Figure:
    """Draw what every depth would predict at every token; of long prompts, the last 24 tokens.

    A bar above a cell marks the depth from which on the guess stays.

    Args:
        result: of ``logit_lens``.
        measure: what colours a cell.
        batch: which prompt.
        dark: light ink on a dark page.

    Raises:
        InputError: a measure of a target that the result does not have, or no such measure or prompt.
    """
    batch, _ = result.place(batch)
    values = _values(result, measure)[:, batch]
    real = np.flatnonzero(result.real[batch])
    columns = real[-MOST:]
    n_rows = len(result.rows)
    with styled_figure(max(6.4, len(columns) * CELL[0] + 2.1), n_rows * CELL[1] + 1.5, dark=dark) as figure:
        ax = figure.subplots()
        image = _cells(ax, result, values[:, columns], measure, batch, columns)
        ax.set_aspect("auto")
        labels = [f"{pos}\n{printable(result.tokens[batch][pos], longest=9)}" for pos in columns]
        ax.xaxis.set_ticks(range(len(columns)), labels)
        ax.xaxis.tick_top()
        step = tick_step(n_rows, n_rows * CELL[1])
        ax.yaxis.set_ticks(range(0, n_rows, step), result.rows[::step])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=ax, fraction=0.04, aspect=26, pad=0.02)
        if measure == "rank":
            _plain_ranks(bar)
        bar.set_label(_LABELS[measure])
        bar.outline.set_visible(False)
        name = "tuned lens" if result.lens == "tuned" else "logit lens"
        part = f"; the last {MOST} of {len(real)} tokens" if len(real) > MOST else ""
        entitle(figure, f"{model_title(result.model)}: {name}, the top guess at every depth{part}")
    return figure


def _plain_ranks(bar: Colorbar) -> None:
    """Label a logarithmic bar with whole numbers; its own powers of ten are mathtext, which our style prints raw."""
    low, high = bar.mappable.get_clim()
    steps = (1,) if high > 100 * low else (1, 2, 5)
    ranks = [step * 10**power for power in range(8) for step in steps]
    bar.set_ticks([rank for rank in ranks if low <= rank <= high])
    bar.minorticks_off()
    bar.ax.yaxis.set_major_formatter(lambda rank, _: f"{rank:,.0f}")


def _values(result: LensResult, measure: str) -> np.ndarray:
    """Return ``[row, batch, pos]``; ranks count from 1."""
    if measure not in get_args(Measure):
        raise InputError(f"measure is {measure!r}; expected one of {', '.join(get_args(Measure))}")
    rank = None if result.target_rank is None else result.target_rank + 1
    values = {
        "probability": result.top_probabilities[..., 0],
        "entropy": result.entropy,
        "kl": result.kl,
        "target": result.target_probability,
        "rank": rank,
    }[measure]
    if values is None:
        raise InputError(f"measure {measure!r} needs a target; run logit_lens with target=")
    return values


def _cells(
    ax: Axes, result: LensResult, values: np.ndarray, measure: str, batch: int, columns: np.ndarray
) -> AxesImage:
    norm: Normalize
    if measure == "rank":
        norm = LogNorm(1, max(2, int(values.max())))  # a scale of one number, where all are best, has no colours
    else:
        norm = Normalize(0, 1 if measure in ("probability", "target") else None)
    image = ax.imshow(values, norm=norm)
    for row, column in np.ndindex(values.shape):
        guess, _ = result.guess(row, batch, int(columns[column]))
        red, green, blue, _ = image.cmap(image.norm(values[row, column]))
        ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "white"
        ax.text(column, row, printable(guess, longest=8), ha="center", va="center", fontsize=6.5, color=ink)
    for column, pos in enumerate(columns):
        row = int(result.stable_from[batch, pos])
        ax.plot([column - 0.47, column + 0.47], [row - 0.45] * 2, color=palette(1), linewidth=2, solid_capstyle="butt")
    ax.set_xlim(-0.5, values.shape[1] - 0.5)
    ax.set_ylim(values.shape[0] - 0.5, -0.5)
    return image
