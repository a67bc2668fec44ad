"""Attention patterns, of a report's best heads or of one prompt: queries down, keys across, with the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from interp.plots.style import model_title, palette, printable, styled_figure, tick_step
from interp.readout.attention import AttentionResult
from interp.results import HeadReport
from interp.sites import Head
from models.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL = 3.3  # inches
PER_ROW = {1: 1, 2: 2, 3: 3, 4: 2}  # three from five panels on


def best_heads(report: HeadReport, per_kind: int = 2) -> dict[str, list[str]]:
    """Return the names of the best heads that have a pattern, each with its kinds and scores as a caption.

    Per kind: the found ones, or where there are none the best-scoring one; a head that leads in two kinds stands once.
    """
    captions: dict[str, list[str]] = {}
    for kind in report.kinds:
        candidates = report.found(kind)[:per_kind] or report.of_kind(kind)[:1]
        for evidence in candidates:
            if str(evidence.name) not in report.patterns:
                continue
            doubt = "" if evidence.found else " (borderline)" if evidence.pattern == "borderline" else " (not detected)"
            caption = f"{kind.replace('_', ' ')} {evidence.score:.2f}{doubt}"
            captions.setdefault(str(evidence.name), []).append(caption)
    return captions


def plot_attention_patterns(report: HeadReport, *, per_kind: int = 2, dark: bool = False) -> Figure:
    """Draw the attention of the best heads of each kind on ``report.tokens_shown``.

    A row is a query and sums to 1. Thin lines mark where the repeat begins. Where there are too many tokens to label,
    every second, third, ... has its label.

    Args:
        report: of ``find_heads``.
        per_kind: heads per kind, at most.
        dark: light ink on a dark page.
    """
    heads = best_heads(report, per_kind)
    repeat = report.repeat_column
    title = f"Where the best heads of {model_title(report.model)} look"
    with _panels(len(heads), title, dark) as (figure, panels):
        for ax, (name, captions) in zip(panels, heads.items(), strict=True):
            _panel(ax, np.asarray(report.patterns[name]), report.tokens_shown, "\n".join([name, *captions]))
            if len(report.tokens_shown) > repeat:
                for line in (ax.axhline, ax.axvline):
                    line(repeat - 0.5, color=palette(1), linewidth=0.7, alpha=0.7)
    return figure


def plot_attention(
    result: AttentionResult, heads: Sequence[tuple[int, int]] | None = None, *, dark: bool = False
) -> Figure:
    """Draw the attention of some heads on one prompt, side by side. A row is a query and sums to 1.

    Args:
        result: of ``attention``.
        heads: (layer, head) each; by default four whose last token looks hardest at some token within the prompt.
        dark: light ink on a dark page.

    Raises:
        InputError: no heads, or one that the result does not have.
    """
    chosen = [Head(*head) for head in (result.most_telling() if heads is None else heads)]
    if not chosen:
        raise InputError("no heads to draw; give at least one (layer, head)")
    with _panels(len(chosen), f"Where heads of {model_title(result.model)} look", dark) as (figure, panels):
        for ax, head in zip(panels, chosen, strict=True):
            _panel(ax, result.pattern(*head), result.tokens, str(head))
    return figure


@contextmanager
def _panels(count: int, title: str, dark: bool) -> Iterator[tuple[Figure, list[Axes]]]:
    """Give a figure and its panels; a colour bar and what the sides mean are added once they are drawn."""
    columns = PER_ROW.get(count, 3)
    rows = max(1, ceil(count / columns))
    with styled_figure(columns * (PANEL + 0.6) + 0.9, rows * (PANEL + 0.95) + 0.7, dark=dark) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[count:]:
            ax.remove()
        yield figure, list(axes.flat[:count])
        figure.suptitle(title, x=0.02, ha="left")
        if count:
            bar = figure.colorbar(axes.flat[0].images[0], ax=figure.axes, fraction=0.04, aspect=20, shrink=0.9 / rows)
            bar.set_label("attention")
            bar.outline.set_visible(False)
            figure.supxlabel("key: the token looked at", fontsize=9)
            figure.supylabel("query: the token that looks", fontsize=9)


def _panel(ax: Axes, pattern: np.ndarray, tokens: Sequence[str], title: str) -> None:
    n = len(pattern)
    future = np.triu(np.ones_like(pattern, dtype=bool), k=1)
    ax.imshow(np.ma.masked_array(pattern, future), vmin=0, vmax=1)
    labels = [printable(token, longest=8) for token in tokens]
    shown = range(0, n, tick_step(n, PANEL))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(shown, [labels[i] for i in shown], fontsize=7)
    for label in ax.get_xticklabels():
        if len(label.get_text()) > 1:
            label.set_rotation(90)
    ax.tick_params(length=2)
    ax.set_title(title, fontsize=9)
