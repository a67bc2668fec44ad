"""One token through the depth: how likely the guesses become, and how the residual stream grows."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from interp.plots.style import model_title, palette, printable, styled_figure, tick_step
from interp.readout.logit_lens import LensResult


def plot_trajectory(result: LensResult, *, batch: int = 0, pos: int | None = None, dark: bool = False) -> Figure:
    """Draw the probability of the output's guess and of the target, KL and entropy, and the stream's length.

    Args:
        result: of ``logit_lens``.
        batch, pos: which prompt, and which token of it; by default the last.
        dark: light ink on a dark page.
    """
    batch, pos = result.place(batch, pos)
    n_rows = len(result.rows)
    final, _ = result.guess(-1, batch, pos)
    depth = range(n_rows)
    kept = result.top_tokens[:, batch, pos] == result.top_tokens[-1, batch, pos, 0]
    guess = np.where(kept, result.top_probabilities[:, batch, pos], 0).sum(-1)
    target = None if result.target is None else result.target[batch]
    with styled_figure(7.6, 6.4, dark=dark) as figure:
        chance, doubt, size = figure.subplots(3, 1, sharex=True, height_ratios=(5, 4, 3))
        if target is None or target != final:
            chance.plot(depth, guess, color=palette(0), label=f"the output's guess {printable(final)}")
        if result.target_probability is not None and target is not None:
            values = result.target_probability[:, batch, pos]
            chance.plot(depth, values, color=palette(1), label=f"the target {printable(target)}")
        chance.set(ylabel="probability", ylim=(0, 1.02))
        doubt.plot(depth, result.kl[:, batch, pos], color=palette(2), label="KL to the output")
        doubt.plot(depth, result.entropy[:, batch, pos], color=palette(3), linestyle="--", label="entropy")
        doubt.set(ylabel="nats", ylim=(0, None))
        size.plot(depth, result.residual_norm[:, batch, pos], color="0.5", label="length of the stream")
        size.set(ylabel="|x|", ylim=(0, None), xlim=(0, max(1, n_rows - 1)))
        step = tick_step(n_rows, 5.0, points=32)
        size.xaxis.set_ticks(range(0, n_rows, step), result.rows[::step])
        settled = int(result.stable_from[batch, pos])
        for ax in (chance, doubt, size):
            ax.axvline(settled, color="0.55", linewidth=1, linestyle=":")
            ax.grid(axis="y")
            ax.set_axisbelow(True)
            ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        where = chance.get_xaxis_transform()
        text = f"{printable(final)} from {result.rows[settled]} on"
        side = "right" if settled > n_rows / 2 else "left"
        chance.text(settled, 1.03, text, transform=where, fontsize=7.5, color="0.5", ha=side)
        token = printable(result.tokens[batch][pos])
        figure.suptitle(f"{model_title(result.model)}: after {token}, depth by depth", x=0.02, ha="left")
    return figure
