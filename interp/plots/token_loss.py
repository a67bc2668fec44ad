"""Loss per token on a random sequence and its repeat: what induction heads are good for."""

from __future__ import annotations

from math import log

import numpy as np
from matplotlib.figure import Figure

from interp.plots.style import model_title, palette, styled_figure
from interp.results import HeadReport


def plot_token_loss(report: HeadReport, *, dark: bool = False) -> Figure:
    """Draw the mean next-token loss, in nats, at each position of N random tokens and the same N again.

    The first copy cannot be predicted; the second can, by a model that looks back. The dashed line is the same model
    with its induction heads taken out, where the report has it.

    Args:
        report: of ``find_heads``.
        dark: light ink on a dark page.
    """
    loss = np.asarray(report.token_loss)
    positions = np.arange(1, len(loss) + 1)  # entry i is the prediction of token i + 1
    repeat = report.loss_repeat_column
    uniform = log(report.config["d_vocab"])
    with styled_figure(7.6, 3.9, dark=dark) as figure:
        ax = figure.subplots()
        ax.axvspan(repeat - 0.5, len(loss) + 0.5, color=palette(0), alpha=0.08, linewidth=0)
        ax.axhline(uniform, color="0.55", linewidth=1, linestyle=":")
        ax.plot(positions, loss, marker="o", markersize=2.5, label=_label("as it is", loss, repeat))
        highest = max(loss.max(), uniform)
        if report.token_loss_ablated is not None:
            ablated = np.asarray(report.token_loss_ablated)
            label = _label("without its induction heads", ablated, repeat)
            ax.plot(positions, ablated, linestyle="--", label=label)
            highest = max(highest, ablated.max())
        ax.set(xlim=(0.5, len(loss) + 0.5), ylim=(0, 1.14 * highest), xlabel="position", ylabel="loss (nats)")
        ax.annotate("uniform guess", (len(loss) + 0.5, uniform), (-4, 2), textcoords="offset points", fontsize=7.5,
                    ha="right", va="bottom", color="0.5")  # fmt: skip
        for x, text in ((1, "random tokens"), (repeat, "the same tokens again")):
            ax.text(x, 1.12 * highest, text, va="top", fontsize=8.5)
        ax.grid(axis="y")
        ax.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=2)
        figure.suptitle(f"Loss per token of {model_title(report.model)}", x=0.02, ha="left")
    return figure


def _label(what: str, loss: np.ndarray, repeat: int) -> str:
    return f"{what} (repeat: {loss[repeat:].mean():.2f} nats)"
