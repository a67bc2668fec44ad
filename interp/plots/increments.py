"""What single writes to the stream say: each write's most raised token, or what it adds to a followed one."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from interp.plots.style import entitle, model_title, printable, sign_colours, styled_figure
from interp.readout.lens_increments import IncrementsResult


def plot_increments(result: IncrementsResult, *, top: int = 20, dark: bool = False) -> Figure:
    """Draw the largest increments, each beside the token that its write raises most.

    Args:
        result: of ``lens_increments``. Where a target was followed, bars are what every write adds to it; else what
            it adds to its own most raised token.
        top: bars to draw.
        dark: light ink on a dark page.
    """
    values = result.raised_by[:, 0] if result.target_by is None else result.target_by
    shown = np.argsort(-np.abs(values), kind="stable")[:top]
    names = [f"{result.labels[i]}  {printable(result.texts[int(result.raised[i, 0])])}" for i in shown]
    heights = values[shown].tolist()
    towards = "its most raised token" if result.target is None else printable(result.target, longest=40)
    with styled_figure(6.0, 0.21 * len(names) + 1.3, dark=dark) as figure:
        ax = figure.subplots()
        ax.barh(range(len(names)), heights, color=sign_colours(heights))
        ax.axvline(0, color="0.55", linewidth=0.8)
        ax.set_yticks(range(len(names)), names)
        ax.set(ylim=(len(names) - 0.4, -0.6), xlabel=f"added to the logit of {towards}, over the vocabulary's mean")
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        entitle(figure, f"What each write says, and the token it raises most: {model_title(result.model)}")
    return figure
