"""What the logit-lens analysis prints: the answer, where it takes over, and one line per depth.

It fits the window, 80 columns where there is none, and stays plain text where it is piped.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from analyses.table import Table
from analyses.terminal import model_line, prompt_line, say, visible
from interp.readout.lens_result import LensResult

COLUMNS = (
    "guess: the top token at this depth, p its probability; target: probability and rank of the followed token; KL: to "
    "the model's output; |x|: length of the residual stream"
)


def show(
    lens: LensResult, n_parameters: int, precision: str, prepended_bos: bool, *, chosen: bool, note: str = ""
) -> None:
    """Print a lens on stdout.

    Args:
        lens: of one prompt, with a target.
        n_parameters: of the model.
        precision: of the weights, and where they lie.
        prepended_bos: whether BOS stands before the prompt, which did not begin with it.
        chosen: whether the user chose the target.
        note: what to say of the target.
    """
    console = Console(highlight=False, emoji=False)
    say(console, "model", model_line(lens.model, lens.config, n_parameters, precision), "cyan")
    first = f"{lens.tokens[0][0]!r} prepended" if prepended_bos else "nothing prepended"
    say(console, "tokens", f"{prompt_line(lens.tokens[0])} ({first})", "cyan")
    assert lens.target is not None
    how = "as asked" if chosen else "the model's own guess"
    say(console, "target", f"{lens.target[0]!r} ({how})", "cyan")
    console.print()
    _show_answer(console, lens)
    _show_depths(console, lens)
    console.print()
    say(console, "columns", COLUMNS, "dim")
    if note:
        say(console, "note", note, "yellow")
    for warning in lens.warnings:
        say(console, "warning", warning, "yellow")


def _show_answer(console: Console, lens: LensResult) -> None:
    guess, chance = lens.guess(-1)
    since = lens.rows[int(lens.stable_from[0, -1])]
    console.print(
        Text(f"after the last token: {guess!r} {chance:.3f}, the top guess from {since} on", style="bold green")
    )
    assert lens.target is not None
    assert lens.target_rank is not None
    assert lens.target_probability is not None
    if lens.takeover() is None:
        rank, p = int(lens.target_rank[-1, 0, -1]) + 1, float(lens.target_probability[-1, 0, -1])
        say(console, "target", f"{lens.target[0]!r} ends at rank {rank} with {p:.3g}; it never takes over", "yellow")


def _show_depths(console: Console, lens: LensResult) -> None:
    assert lens.target_probability is not None
    assert lens.target_rank is not None
    takeover = lens.takeover()
    table = Table("after", "guess", "p>", "target>", "rank>", "KL>", "entropy>", "|x|>", spare=("|x|", "entropy", "KL"))
    for row, name in enumerate(lens.rows):
        guess, chance = lens.guess(row)
        table.add_row(
            name,
            visible(guess, longest=14),
            f"{chance:.3f}",
            f"{lens.target_probability[row, 0, -1]:.3f}",
            f"{int(lens.target_rank[row, 0, -1]) + 1:,}",
            f"{lens.kl[row, 0, -1]:.2f}",
            f"{lens.entropy[row, 0, -1]:.2f}",
            f"{lens.residual_norm[row, 0, -1]:.1f}",
            style="green" if takeover is not None and row >= lens.rows.index(takeover) else None,
        )
    table.show(console)
