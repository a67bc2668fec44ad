"""What patching and ablation print: the question, the cells that change its answer most, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.text import Text

from analyses.table import Table
from analyses.terminal import prompt_line, say, visible

if TYPE_CHECKING:
    from interp.interventions import AblationResult, PatchingResult
    from interp.prompts import PromptBatch
    from models import HookedDecoder

ALPHA = 0.05
SPARE = ("95 %", "recovered", "p (mean ≠ 0)")  # columns that a narrow window does without, the first to go first
COLUMNS = (
    "95 %: bootstrap interval over examples, of this cell alone; p (mean ≠ 0): of the mean change being 0, by sign "
    "flips, corrected over all cells of the grid (max-T), so that an interval may leave out zero where p is large"
)


def show_question(console: Console, model: HookedDecoder, batch: PromptBatch, *, both: bool) -> None:
    """Print the first pair, with its answers."""
    seen = slice(None) if batch.attention_mask is None else batch.attention_mask[0]
    answer, wrong = (model.to_str_tokens(ids[:1])[0] for ids in (batch.answer, batch.wrong))
    say(console, "prompts", f"{len(batch)} × {batch.clean.shape[1]} tokens: {batch.about}. The first:", "cyan")
    clean = prompt_line(model.to_str_tokens(batch.clean[0][seen]), between="")
    say(console, "clean", f"{clean} → {visible(answer)}, not {visible(wrong)}", "cyan")
    if both:
        corrupted = prompt_line(model.to_str_tokens(batch.corrupted[0][seen]), between="")
        say(console, "corrupt", corrupted, "cyan")


def cell_rows(result: PatchingResult | AblationResult, recovered: np.ndarray | None) -> list[dict[str, Any]]:
    """Return every cell as plain values, largest change first.

    ``low``, ``high`` and ``p_mean_change`` are None where there are too few examples, ``recovered`` where it is not
    defined.
    """
    from models.errors import InputError

    change = result.change()
    try:
        (low, high), p_values = result.interval(), result.p_values()
    except InputError:
        low = high = p_values = np.full(change.shape, np.nan)
    share = np.full(change.shape, np.nan) if recovered is None else recovered
    columns = {"change": change, "low": low, "high": high, "p_mean_change": p_values, "recovered": share}
    rows = [
        {"cell": cell_name(result.axes, place), **dict(zip(result.axes, map(int, place), strict=True))}
        | {name: None if np.isnan(values[place]) else float(values[place]) for name, values in columns.items()}
        for place in np.ndindex(change.shape)
    ]
    return sorted(rows, key=lambda row: -abs(row["change"] or 0.0))


def cell_name(axes: tuple[str, ...], place: tuple[int, ...]) -> str:
    """Return what a cell is called, in the notation of ``ablate`` where that has one.

    >>> cell_name(("layer", "head"), (5, 1)), cell_name(("layer", "kv_head", "pos"), (5, 1, 7))
    ('L5H1', 'L5KV1@7')
    """
    at = dict(zip(axes, place, strict=True))
    name = f"L{at['layer']}" if "layer" in at else "all layers "
    for axis, short in (("head", "H"), ("kv_head", "KV"), ("neuron", "N")):
        name += f"{short}{at[axis]}" if axis in at else ""
    if "dest_pos" in at or "src_pos" in at:
        name += f"[{at.get('dest_pos', '·')},{at.get('src_pos', '·')}]"
    return name.strip() + (f"@{at['pos']}" if "pos" in at else "")


def show_cells(console: Console, heading: str, about: str, rows: list[dict[str, Any]], top: int, n: int) -> None:
    """Print the cells of largest change over ``n`` examples, the significant ones in green."""
    significant = [row for row in rows if row["p_mean_change"] is not None and row["p_mean_change"] < ALPHA]
    tested = any(row["p_mean_change"] is not None for row in rows)
    console.print()
    count = f": {len(significant)} of {len(rows)} cells change it, p < .05" if tested else f": {len(rows)} cells"
    console.print(Text.assemble((heading + count, "bold green" if significant or not tested else "bold yellow")))
    say(console, "", about, "dim")
    columns = ["cell", "change>"]
    columns += ["recovered>"] if any(row["recovered"] is not None for row in rows) else []
    columns += ["95 %>", "p (mean ≠ 0)>"] if tested else []
    table = Table(*columns, spare=SPARE)
    for row in rows[:top]:
        shown = {
            "cell": row["cell"],
            "change>": "unfinished" if row["change"] is None else f"{row['change']:+.3f}",
            "recovered>": "" if row["recovered"] is None else f"{100 * row['recovered']:.0f} %",
            "95 %>": "" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}",
            "p (mean ≠ 0)>": _p_value(row["p_mean_change"]),
        }
        style = "green" if row in significant else "dim" if tested else ""
        table.add_row(*(shown[column] for column in columns), style=style)
    table.show(console)
    if tested:
        say(console, "columns", COLUMNS, "dim")
        say(console, "least p", *_least(n))
    else:
        say(console, "note", "no intervals or p-values: they need two examples or more", "yellow")


def _p_value(p: float | None) -> str:
    return "" if p is None else "<.001" if p < 0.001 else f"{p:.3f}"


def _least(n: int) -> tuple[str, str]:
    """Return what is printed about the least p that n examples allow, and in which colour."""
    from interp.statistics import least_p_value

    text = f"{n} examples: the least p possible is {least_p_value(n):.2g}"
    if least_p_value(n) < ALPHA:
        return text, "dim"
    return text + ", so that no cell can be significant at .05; give 6 examples or more", "yellow"


def show_missing(notes: list[str]) -> None:
    """Print which files were not written, and why."""
    console = Console(highlight=False, emoji=False)
    for note in notes:
        say(console, "missing", note, "yellow")


def show_cost(console: Console, result: PatchingResult | AblationResult) -> None:
    """Print how much was computed."""
    share = result.block_tokens / result.naive_block_tokens
    text = f"{result.block_tokens:,} block-tokens, {100 * share:.1f} % of one run per cell"
    if not result.resumed:
        text += ": every cell took a whole run, because this model or grid cannot be resumed"
    say(console, "cost", text, "cyan")
    if not result.complete:
        say(console, "stopped", "interrupted; the finished cells are kept, the others missing", "yellow")
