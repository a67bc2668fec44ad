"""Which activations carry the answer: put those of a clean run into a corrupted one (or the reverse), cell by cell.

python analyses/patching.py --model toy

Writes to ``--out``

* ``patching.json``: the command, the question, every cell's change with its interval and p-value, the estimates beside
  the exact changes, and under ``patching`` the result, for ``PatchingResult.from_dict``;
* ``patching_cells.png``: the grid;
* ``patching_attribution.png``: first-order estimates from one backward pass over the exact changes.

A grid too large to draw has no figure, and the record says so under ``not_drawn``. Exit codes are those of all
analyses, and 1 where an interrupt left cells or what follows them unfinished: what was finished is written.
"""

from __future__ import annotations

from analyses.stopping import listen

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console

from analyses import stopping
from analyses.cell_table import cell_rows, show_cells, show_cost, show_missing, show_question
from analyses.command import Device, Dtype, Model, Out, Precision, Report, Seed, command_line, progress_bar, run
from analyses.finishing import INTERRUPTED, draw, keep_what_is_finished, unless_interrupted, write_page
from analyses.grid import Cells, Over, Site, axes_of
from analyses.questions import (
    Answer,
    Clean,
    Corrupted,
    Pairs,
    Prompts,
    Questions,
    Wrong,
    answers_of,
    ask,
    question_values,
)
from analyses.terminal import model_line, say, show_files

if TYPE_CHECKING:
    from interp.interventions import AttributionComparison, PatchingResult
    from interp.prompts import PromptBatch
    from interp.results import Result
    from models import HookedDecoder

UNFINISHED = 1
ABOUT = "Which activations carry the answer: patch those of a clean run into a corrupted one, cell by cell."
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=ABOUT)
def main(
    model: Model = "toy",
    prompts: Prompts = Questions.default,
    n: Pairs = 8,
    clean: Clean = None,
    corrupted: Corrupted = None,
    answer: Answer = None,
    wrong: Wrong = None,
    site: Site = "z",
    over: Over = None,
    direction: Annotated[str, typer.Option(help="denoise (clean into corrupted) or noise (the reverse).")] = "denoise",
    seed: Seed = 0,
    out: Out = None,
    device: Device = "cpu",
    dtype: Precision = Dtype.float32,
    top: Cells = 10,
    report: Report = False,
) -> int:
    folder = out or Path("out/patching")
    flags: dict[str, Any] = {
        "model": model, "prompts": prompts, "n": n, "clean": clean, "corrupted": corrupted, "answer": answer,
        "wrong": wrong, "site": site, "over": over, "direction": direction, "seed": seed, "out": folder,
        "device": device, "dtype": dtype, "top": top, "report": report,
    }  # fmt: skip

    from analyses.head_record import to_json
    from analyses.staging import set_beside, staged
    from models.loading import load_model

    marks = [perf_counter()]
    with staged(folder) as temporary:
        with progress_bar() as progress:
            progress(f"loading {model}", 0)
            loaded = load_model(model, dtype=dtype, device=device)
            batch = ask(loaded, prompts, n, seed, clean, corrupted, answer, wrong)
            marks.append(perf_counter())
            stopping.hold()  # from here on nothing that is finished may be lost
            result = patch(loaded, batch, site, over, direction, model, progress)
            keep_what_is_finished(result)
            progress("attributing", 0)
            comparison = unless_interrupted(lambda: estimate(loaded, batch, result))
            marks.append(perf_counter())
            progress("drawing", 0)
            results: dict[str, Result] = {"cells": result}
            if not isinstance(comparison, str):
                results["attribution"] = comparison
            files, missing = draw(results, temporary, "patching")
        command = command_line("patching", flags)
        values = record(loaded, batch, result, comparison, command, seed, files) | {"not_drawn": missing}
        (temporary / "patching.json").write_text(to_json(values), encoding="utf-8")
        if report:
            page, without = write_page(
                [*results.values()],
                temporary,
                "patching",
                command=command,
                seed=seed,
                answers=answers_of(batch, loaded),
            )
            files, missing = files + page, missing + without
        unfinished = not result.complete or INTERRUPTED in (comparison, *(note.partition(": ")[2] for note in missing))
        where = set_beside(temporary, folder, "patching.json") if unfinished else folder
    marks.append(perf_counter())
    show(loaded, batch, result, comparison, values, f"{dtype} on {device}", top)
    show_missing(missing)
    seconds = [after - before for before, after in pairwise(marks)]
    show_files(where, ["patching.json", *files], dict(zip(("loading", "patching", "figures"), seconds, strict=True)))
    if where != folder:
        show_missing([f"{folder} keeps its fuller record; what was finished of this one is in {where}"])
    return UNFINISHED if unfinished else 0


def patch(
    model: HookedDecoder,
    batch: PromptBatch,
    site: str,
    over: str | None,
    direction: str,
    name: str,
    progress: Callable[[str, float], None],
) -> PatchingResult:
    """Run the sweep; an interrupt ends it with the cells that are finished."""
    from interp.interventions import activation_patching

    def tick(done: int, total: int) -> None:
        progress(f"patching {site}", done / max(total, 1))
        stopping.heed()

    result = activation_patching(
        model, batch.clean, batch.corrupted, batch.metric(), site=site, over=axes_of(model, site, over),
        direction=cast(Any, direction), attention_mask=batch.attention_mask, progress=tick,
    )  # fmt: skip
    return replace(result, model=name)


def estimate(model: HookedDecoder, batch: PromptBatch, exact: PatchingResult) -> AttributionComparison | str:
    """Set attribution patching beside an exact sweep; where that cannot be, return why."""
    from interp.interventions import attribution_patching
    from models.errors import InputError

    try:
        attribution = attribution_patching(
            model, batch.clean, batch.corrupted, batch.metric(), site=exact.site, over=exact.axes,
            direction=cast(Any, exact.direction), qk_fix=exact.site in ("q", "k"), attention_mask=batch.attention_mask,
        )  # fmt: skip
        return replace(attribution, model=exact.model).compare(exact)
    except InputError as error:
        return str(error)


def record(
    model: HookedDecoder,
    batch: PromptBatch,
    result: PatchingResult,
    comparison: AttributionComparison | str,
    command: str,
    seed: int,
    figures: list[str],
) -> dict[str, Any]:
    """Return the record as JSON-able values; the result itself comes last, being long."""
    from models.errors import InputError

    try:
        recovered, note = result.recovered(), ""
    except InputError as error:
        recovered, note = None, str(error)
    return {
        "analysis": "patching",
        "schema_version": 2,
        "command": command,
        "model": result.model,
        "seed": seed,
        "prompts": question_values(batch, model),
        "metric": result.metrics[0],
        "unit": result.units[result.metrics[0]],
        "clean": float(result.clean[result.metrics[0]].mean()),
        "corrupted": float(result.corrupted[result.metrics[0]].mean()),
        "not_recovered": note,
        "cells": cell_rows(result, recovered),
        "attribution": None if isinstance(comparison, str) else comparison.to_dict(),
        "not_attributed": comparison if isinstance(comparison, str) else "",
        "figures": figures,
        "patching": result.to_dict(),
    }


def show(
    model: HookedDecoder,
    batch: PromptBatch,
    result: PatchingResult,
    comparison: AttributionComparison | str,
    values: Mapping[str, Any],
    precision: str,
    top: int,
) -> None:
    """Print what was asked, which cells change the answer, what it cost and how good the estimates are."""
    console = Console(highlight=False, emoji=False)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    say(console, "model", model_line(result.model, result.config, n_parameters, precision), "cyan")
    show_question(console, model, batch, both=True)
    name = values["metric"].replace("_", " ")
    say(console, "metric", f"{name}: clean {values['clean']:+.2f}, corrupted {values['corrupted']:+.2f}", "cyan")
    into = "clean activations put into the corrupted run"
    if result.direction == "noise":
        into = "corrupted activations put into the clean run"
    about = (
        f"{into} ({result.direction}); change in {name}, mean over pairs; recovered: 0 % is the corrupted run, 100 % "
    )
    show_cells(
        console,
        f"{result.site} over {' × '.join(result.axes)}",
        about + "the clean one",
        values["cells"],
        top,
        len(batch),
    )
    if values["not_recovered"]:
        say(console, "note", values["not_recovered"], "yellow")
    console.print()
    show_cost(console, result)
    if isinstance(comparison, str):
        say(console, "estimate", f"none: {comparison}", "yellow")
    else:
        say(console, "estimate", f"one backward pass against the exact sweep: {comparison}", "cyan")


if __name__ == "__main__":
    raise SystemExit(run(app))
