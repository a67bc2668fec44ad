"""Attention patterns of a report's best heads: queries down, keys across, with the tokens."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from interp.plots.style import model_title, palette, printable, styled_figure, tick_step
from interp.results import HeadReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

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
            doubt = "" if evidence.verdict else " (not detected)"
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
    columns = PER_ROW.get(len(heads), 3)
    rows = max(1, ceil(len(heads) / columns))
    with styled_figure(columns * (PANEL + 0.6) + 0.9, rows * (PANEL + 0.95) + 0.7, dark=dark) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(heads) :]:
            ax.remove()
        for ax, (name, captions) in zip(axes.flat, heads.items(), strict=False):
            image = _panel(ax, report, name, captions)
        figure.suptitle(f"Where the best heads of {model_title(report.model)} look", x=0.02, ha="left")
        if heads:
            bar = figure.colorbar(image, ax=figure.axes, fraction=0.04, aspect=20, shrink=0.9 / rows)
            bar.set_label("attention")
            bar.outline.set_visible(False)
            figure.supxlabel("key: the token looked at", fontsize=9)
            figure.supylabel("query: the token that looks", fontsize=9)
    return figure


def _panel(ax: Axes, report: HeadReport, name: str, captions: list[str]) -> AxesImage:
    pattern = np.asarray(report.patterns[name])
    n = len(pattern)
    future = np.triu(np.ones_like(pattern, dtype=bool), k=1)
    image = ax.imshow(np.ma.masked_array(pattern, future), vmin=0, vmax=1)
    labels = [printable(token, longest=8) for token in report.tokens_shown]
    shown = range(0, n, tick_step(n, PANEL))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(shown, [labels[i] for i in shown], fontsize=7)
    for label in ax.get_xticklabels():
        if len(label.get_text()) > 1:
            label.set_rotation(90)
    ax.tick_params(length=2)
    repeat = report.settings["prepended_bos"] + report.settings["length"]  # the column where it begins
    if n > repeat:
        for line in (ax.axhline, ax.axvline):
            line(repeat - 0.5, color=palette(1), linewidth=0.7, alpha=0.7)
    ax.set_title(f"{name}\n" + "\n".join(captions), fontsize=9)
    return image
