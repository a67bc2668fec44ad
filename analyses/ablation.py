"""What is missed when a part of the model is taken out: every cell of a grid alone, then the largest together.

python analyses/ablation.py --model toy

The cells that matter most are taken out together as well: where that costs more than the sum of each alone, parts stand
in for each other; of the opposite sign, each does something else without the others. Writes to ``--out``

* ``ablation.json``: the command, the question, every cell's change with its interval and p-value, and under
  ``ablation`` and ``joint`` the results, for ``AblationResult.from_dict`` and ``JointAblation.from_dict``;
* ``ablation_cells.png``: the grid;
* ``ablation_joint.png``: the largest cells alone, their sum, and all of them together.

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
from typing import TYPE_CHECKING, Annotated, Any

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
    from interp.interventions import AblationResult, JointAblation
    from interp.prompts import PromptBatch
    from interp.results import Result
    from models import HookedDecoder

UNFINISHED = 1
NOTATION: dict[tuple[str, tuple[str, ...]], str] = {
    ("z", ("layer", "head")): "L{}H{}",
    ("z", ("layer", "head", "pos")): "L{}H{}@{}",
    ("mlp_post", ("layer", "neuron")): "L{}N{}",
    ("attn_out", ("layer",)): "attn{}",
    ("mlp_out", ("layer",)): "mlp{}",
    **{(f"{part}_out", ("layer", "pos")): f"{part}{{}}@{{}}" for part in ("attn", "mlp")},
    **{(f"resid_{where}", ("layer", "pos")): f"resid_{where}{{}}@{{}}" for where in ("pre", "mid", "post")},
    ("pattern", ("layer", "head", "dest_pos", "src_pos")): "L{}H{}[{},{}]",
}

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    help="What is missed when a part of the model is taken out: every cell of a grid, then the largest together."
)
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
    method: Annotated[str, typer.Option(help="mean, mean_per_position, resample or zero.")] = "mean",
    from_corrupted: Annotated[
        bool, typer.Option(help="Take means and samples from the corrupted prompts, not from the clean ones.")
    ] = False,
    frozen_attention: Annotated[
        bool, typer.Option(help="Hold every attention pattern to the untouched run's.")
    ] = False,
    together: Annotated[int, typer.Option(min=2, help="How many of the largest cells to take out together.")] = 4,
    seed: Seed = 0,
    out: Out = None,
    device: Device = "cpu",
    dtype: Precision = Dtype.float32,
    top: Cells = 10,
    report: Report = False,
) -> int:
    folder = out or Path("out/ablation")
    flags: dict[str, Any] = {
        "model": model, "prompts": prompts, "n": n, "clean": clean, "corrupted": corrupted, "answer": answer,
        "wrong": wrong, "site": site, "over": over, "method": method, "together": together, "seed": seed,
        "out": folder, "device": device, "dtype": dtype, "top": top, "report": report,
        "from-corrupted": from_corrupted, "frozen-attention": frozen_attention,
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
            options: dict[str, Any] = {
                "method": method, "frozen_attention": frozen_attention, "seed": seed,
                "attention_mask": batch.attention_mask,
            }  # fmt: skip
            if from_corrupted:
                options |= {"reference": batch.corrupted, "reference_mask": batch.attention_mask}
            stopping.hold()  # from here on nothing that is finished may be lost
            result = ablate_cells(loaded, batch, site, over, model, options, progress)
            keep_what_is_finished(result)
            progress("taking the largest out together", 0)
            joint = unless_interrupted(lambda: ablate_together(loaded, batch, result, together, options))
            marks.append(perf_counter())
            progress("drawing", 0)
            results: dict[str, Result] = {"cells": result}
            if not isinstance(joint, str):
                results["joint"] = joint
            files, missing = draw(results, temporary, "ablation")
        command = command_line("ablation", flags)
        values = record(loaded, batch, result, joint, command, seed, files) | {"not_drawn": missing}
        (temporary / "ablation.json").write_text(to_json(values), encoding="utf-8")
        if report:
            page, without = write_page(
                [*results.values()],
                temporary,
                "ablation",
                command=command,
                seed=seed,
                answers=answers_of(batch, loaded),
            )
            files, missing = files + page, missing + without
        unfinished = not result.complete or INTERRUPTED in (joint, *(note.partition(": ")[2] for note in missing))
        where = set_beside(temporary, folder, "ablation.json") if unfinished else folder
    marks.append(perf_counter())
    show(loaded, batch, result, joint, values, f"{dtype} on {device}", top)
    show_missing(missing)
    seconds = [after - before for before, after in pairwise(marks)]
    show_files(where, ["ablation.json", *files], dict(zip(("loading", "ablating", "figures"), seconds, strict=True)))
    if where != folder:
        show_missing([f"{folder} keeps its fuller record; what was finished of this one is in {where}"])
    return UNFINISHED if unfinished else 0


def ablate_cells(
    model: HookedDecoder,
    batch: PromptBatch,
    site: str,
    over: str | None,
    name: str,
    options: Mapping[str, Any],
    progress: Callable[[str, float], None],
) -> AblationResult:
    """Run the sweep; an interrupt ends it with the cells that are finished."""
    from interp.interventions import ablation_sweep

    def tick(done: int, total: int) -> None:
        progress(f"ablating {site}", done / max(total, 1))
        stopping.heed()

    axes = axes_of(model, site, over)
    return replace(
        ablation_sweep(model, batch.clean, batch.metric(), site=site, over=axes, progress=tick, **options), model=name
    )


def ablate_together(
    model: HookedDecoder, batch: PromptBatch, result: AblationResult, together: int, options: Mapping[str, Any]
) -> JointAblation | str:
    """Take out the cells of largest change together; where such cells have no name, return why."""
    from interp.interventions import ablate
    from models.errors import InputError

    axes = tuple(sorted(result.axes, key=("layer", "head", "kv_head", "neuron", "dest_pos", "src_pos", "pos").index))
    notation = NOTATION.get((result.site, axes))
    if notation is None:
        return f"cells of {result.site} over {', '.join(result.axes)} are not taken out together"
    if not result.complete:
        return "the sweep was interrupted"
    rows = cell_rows(result, None)
    parts = [notation.format(*(row[axis] for axis in axes)) for row in rows[:together]]
    try:
        joint = ablate(model, batch.clean, batch.metric(), parts, **options)
    except InputError as error:  # an edge that is padding in some prompt
        return str(error)
    return replace(joint, model=result.model, chosen_from=len(rows))


def record(
    model: HookedDecoder,
    batch: PromptBatch,
    result: AblationResult,
    joint: JointAblation | str,
    command: str,
    seed: int,
    figures: list[str],
) -> dict[str, Any]:
    """Return the record as JSON-able values; the results themselves come last, being long."""
    together = None
    if not isinstance(joint, str):
        together = {"parts": list(joint.parts), "joint": joint.joint_change(), "sum_of_singles": joint.sum_of_singles()}
    return {
        "analysis": "ablation",
        "schema_version": 2,
        "command": command,
        "model": result.model,
        "seed": seed,
        "prompts": question_values(batch, model),
        "metric": result.metrics[0],
        "unit": result.units[result.metrics[0]],
        "intact": float(result.into().mean()),
        "cells": cell_rows(result, None),
        "together": together,
        "not_together": joint if isinstance(joint, str) else "",
        "figures": figures,
        "ablation": result.to_dict(),
        "joint": None if isinstance(joint, str) else joint.to_dict(),
    }


def show(
    model: HookedDecoder,
    batch: PromptBatch,
    result: AblationResult,
    joint: JointAblation | str,
    values: Mapping[str, Any],
    precision: str,
    top: int,
) -> None:
    """Print what was asked, which cells are missed most, and the largest of them together."""
    console = Console(highlight=False, emoji=False)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    say(console, "model", model_line(result.model, result.config, n_parameters, precision), "cyan")
    show_question(console, model, batch, both=False)
    name = values["metric"].replace("_", " ")
    say(console, "metric", f"{name}: {values['intact']:+.2f} on the untouched run", "cyan")
    how = result.method.replace("_", " ") + (", attention patterns frozen" if result.frozen_attention else "")
    about = f"{how} ablation; change in {name} without the cell, mean over prompts"
    show_cells(console, f"{result.site} over {' × '.join(result.axes)}", about, values["cells"], top, len(batch))
    console.print()
    say(console, "jointly", *_said(joint))
    show_cost(console, result)


def _said(joint: JointAblation | str) -> tuple[str, str]:
    """Return what is printed about taking several cells out together, and in which colour."""
    if isinstance(joint, str):
        return f"not measured: {joint}", "yellow"
    together, singles = joint.joint_change(), joint.sum_of_singles()
    if together * singles < 0:
        meaning = "of opposite sign, so that what one does depends on the others"
    elif abs(together) > abs(singles):
        meaning = "they stand in for each other"
    else:
        meaning = "they do the same work in sequence, or little is left to lose"
    parts = ", ".join(joint.parts)
    sums = f"{parts} together {together:+.3f}, the sum of each alone {singles:+.3f}: {meaning}"
    return f"{sums} (chosen on these prompts, the largest of {joint.chosen_from} cells: no p)", "cyan"


if __name__ == "__main__":
    raise SystemExit(run(app))
