"""What may come next: the most likely tokens and their probabilities."""

from __future__ import annotations

from matplotlib.figure import Figure

from interp.plots.style import entitle, model_title, palette, printable, styled_figure
from interp.readout.next_token import NextTokenResult


def plot_next_token(result: NextTokenResult, *, top: int = 15, dark: bool = False) -> Figure:
    """Draw the probabilities of the most likely tokens, and of all others together.

    Args:
        result: of ``next_token``.
        top: bars to draw.
        dark: light ink on a dark page.
    """
    chances = result.probabilities()[:top].tolist()
    names = [printable(text) for text in result.top_texts[:top]]
    others = len(result.top_texts) + result.n_rest - len(names)
    if others:
        names.append(f"{others:,} others")
        chances.append(max(0.0, 1 - sum(chances)))
    with styled_figure(5.4, 0.23 * len(names) + 1.3, dark=dark) as figure:
        ax = figure.subplots()
        bars = ax.barh(range(len(names)), chances, color=palette(0))
        ax.bar_label(bars, [f"{chance:.3f}".removeprefix("0") for chance in chances], padding=3, fontsize=8)
        if others:
            bars[-1].set_color("0.55")
        ax.set_yticks(range(len(names)), names)
        ax.set(xlim=(0, 1.12 * max(chances)), ylim=(len(names) - 0.4, -0.6), xlabel="probability")
        ending = printable("".join(result.tokens)[-30:], longest=30)
        entitle(figure, f"{model_title(result.model)}: what follows {ending}")
    return figure
