"""Which writes raised an answer's logit, and from where the best heads took it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from interp.plots.style import change_colours, entitle, model_title, printable, sign_colours, styled_figure
from interp.readout.logit_attribution import LogitAttribution, SourceAttribution
from models.errors import InputError


def plot_logit_attribution(found: LogitAttribution, *, top: int = 20, dark: bool = False) -> Figure:
    """Draw the largest parts of a logit, mean over the batch, and the sum of all others.

    Args:
        found: of ``logit_attribution``.
        top: bars to draw.
        dark: light ink on a dark page.
    """
    means = found.values.double().mean(1).cpu().numpy()
    order = np.argsort(-np.abs(means), kind="stable")
    shown, rest = order[:top], order[top:]
    names = [found.labels[i] for i in shown]
    heights = means[shown].tolist()
    if len(rest):
        names.append(f"{len(rest)} others")
        heights.append(float(means[rest].sum()))
    difference = all(re.search(r"['\"] - ['\"]", one[1:-1]) for one in found.answer)
    names.append("sum: the logit difference" if difference else "sum: the logit")
    heights.append(float(found.logit.double().mean()))
    what = "added to the logit difference" if difference else "logits added to"
    with styled_figure(6.0, 0.21 * len(names) + 1.3, dark=dark) as figure:
        ax = figure.subplots()
        colours = sign_colours(heights)
        colours[-1] = "0.55"
        ax.barh(range(len(names)), heights, color=colours)
        ax.axvline(0, color="0.55", linewidth=0.8)
        ax.set_yticks(range(len(names)), names)
        ax.set(ylim=(len(names) - 0.4, -0.6), xlabel=f"{what} {printable(found.what, longest=40)}, norms frozen")
        ax.grid(axis="x")
        ax.set_axisbelow(True)
        entitle(figure, f"What wrote the answer: {model_title(found.model)}")
    return figure


def plot_sources(
    sources: Sequence[SourceAttribution], tokens: Sequence[str], *, model: str, row: int = 0, dark: bool = False
) -> Figure:
    """Draw from which tokens some heads took what they added to the answer.

    Args:
        sources: of ``source_attribution``, all on the same prompts.
        tokens: the prompt, one string per position.
        model: its name, for the title.
        row: which prompt of the batch.
        dark: light ink on a dark page.

    Raises:
        InputError: no heads, or another number of tokens.
    """
    if not sources:
        raise InputError("no heads to draw; give at least one SourceAttribution")
    values = np.stack([one.values[row].double().cpu().numpy() for one in sources])
    if values.shape[1] != len(tokens):
        raise InputError(f"{len(tokens)} tokens for attributions over {values.shape[1]} positions")
    limit = float(np.abs(values).max()) or 1.0
    width = max(4.0, min(16.0, 0.3 * len(tokens) + 1.8))
    with styled_figure(width, 0.28 * len(sources) + 1.9, dark=dark) as figure:
        ax = figure.subplots()
        image = ax.imshow(values, cmap=change_colours(dark), vmin=-limit, vmax=limit, aspect="auto")
        ax.set_yticks(range(len(sources)), [f"{one.head} {values[i].sum():+.2f}" for i, one in enumerate(sources)])
        ax.set_xticks(range(len(tokens)), [printable(token) for token in tokens], rotation=90)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        bar = figure.colorbar(image, ax=ax, fraction=0.05)
        bar.set_label("logits")
        bar.outline.set_visible(False)
        entitle(figure, f"Where the heads took it from: {model_title(model)}")
    return figure
