"""The phase change: a plateau, then the repeat loss alone drops, and induction scores rise beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib.figure import Figure

from interp.plots.style import palette, styled_figure
from models.errors import InputError


def plot_phase_change(
    history: Sequence[Mapping[str, float]],
    *,
    model: str,
    uniform_loss: float,
    phases: Sequence[int] = (),
    dark: bool = False,
) -> Figure:
    """Draw losses above and the best heads' scores below, against the training step.

    Args:
        history: rows with ``step``, ``repeat_loss``, ``first_half_loss`` (nats), ``previous_token`` and ``induction``
            (the best head's score), as in a training record.
        model: its name, for the title.
        uniform_loss: of guessing uniformly, in nats.
        phases: steps of each phase of training; their borders are marked.
        dark: light ink on a dark page.

    Raises:
        InputError: a history of fewer than two rows, or rows without these figures.
    """
    needed = ("step", "repeat_loss", "first_half_loss", "previous_token", "induction")
    if len(history) < 2 or any(name not in row for row in history for name in needed):
        raise InputError(f"a history needs at least 2 rows, each with {', '.join(needed)}; got {len(history)} rows")
    curves = {name: [row[name] for row in history] for name in needed}
    steps, borders = curves["step"], list(accumulate(phases))[:-1]
    with styled_figure(7.6, 5.2, dark=dark) as figure:
        losses, scores = figure.subplots(2, 1, sharex=True)
        losses.axhline(uniform_loss, color="0.55", linewidth=1, linestyle=":", label="uniform guess")
        losses.plot(steps, curves["repeat_loss"], color=palette(0), label="on the repeat")
        losses.plot(steps, curves["first_half_loss"], color=palette(1), linestyle="--", label="on the first copy")
        scores.plot(steps, curves["induction"], color=palette(2), label="best induction head")
        scores.plot(steps, curves["previous_token"], color=palette(3), linestyle="--", label="best previous-token head")
        losses.set(ylabel="loss (nats)", ylim=(0, 1.1 * max(curves["first_half_loss"] + curves["repeat_loss"])))
        scores.set(ylabel="attention score", ylim=(0, 1), xlabel="step", xlim=(0, steps[-1]))
        for ax in (losses, scores):
            for border in borders:
                ax.axvline(border, color="0.55", linewidth=1)
            ax.grid(axis="y")
            ax.set_axisbelow(True)
            ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        for number, border in enumerate(borders, start=2):
            top = losses.get_xaxis_transform()
            losses.text(border, 1.02, f"phase {number}", transform=top, fontsize=7.5, color="0.5", ha="center")
        figure.suptitle(f"{model}: the phase change", x=0.02, ha="left")
    return figure
