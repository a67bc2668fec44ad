"""Train the toy models that are shipped, and show the phase change in which induction forms.

python analyses/train_toy.py --model toy

Writes the weights ``<model>.safetensors``, with configuration, seed and command inside, the record
``train_toy_<model>.json`` and the figure ``train_toy_<model>.png`` to ``--out``; ``--checkpoints models/checkpoints``
puts the weights in the place of the shipped ones. An interrupted run goes on where it was when the same command is
given again. Weights that miss one of their thresholds are not written (exit code 1).
"""

from __future__ import annotations

from analyses.stopping import listen, stops_held

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analyses.command import Device, Out, Seed, progress_bar, run
from analyses.table import Table
from analyses.terminal import say

if TYPE_CHECKING:
    from models import HookedDecoder
    from models.training import TrainingRecord
    from models.training.toys import Check

ALL = "all"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Train the toy models that are shipped, and show the phase change in which induction forms.")
def main(
    model: Annotated[str, typer.Option(help="toy, toy-attn, toy-rope, or all of them.")] = "toy",
    seed: Seed = 0,
    out: Out = None,
    device: Device = "cpu",
    checkpoints: Annotated[
        Path | None, typer.Option(help="Folder for the weights.", show_default="that of --out")
    ] = None,
) -> int:
    from models.errors import InputError, nearest
    from models.training import TOYS

    if model not in (*TOYS, ALL):
        raise InputError(f"--model is {model!r}; expected one of {', '.join((*TOYS, ALL))}{nearest(model, TOYS)}")
    names = list(TOYS) if model == ALL else [model]
    out = out or Path("out/train_toy")
    held = [train_one(name, seed, out, device, checkpoints or out) for name in names]
    return 0 if all(held) else 1


def train_one(name: str, seed: int, out: Path, device: str, checkpoints: Path) -> bool:
    """Train one toy, write its files and print its figures; return whether it holds its thresholds.

    Raises:
        ResidscopeError: a folder that cannot be written, an unfinished run that does not fit.
    """
    from analyses.head_record import to_json
    from analyses.staging import set_beside, staged
    from interp.plots.phase_change import plot_phase_change
    from models.loading.native import save_native
    from models.training.toys import CHANCE, TOYS, evaluate_shipped, phase_change_step

    with staged(out) as folder, stops_held(), staged(checkpoints) as weights:
        model, training = _train(name, seed, out, device)
        evaluation = evaluate_shipped(model)
        checks = TOYS[name].thresholds.checks(evaluation)
        holds = all(check.holds for check in checks)
        about = {
            **_origin(name, seed, device),
            "optimiser": dict(training.optimiser),
            "steps": list(training.steps),
            "phase_change_step": phase_change_step(training.history),
            "metrics": evaluation.to_dict(),
            "holds": holds,
        }
        course = {"config": dict(training.config), "history": list(training.history), "losses": list(training.losses)}
        (folder / f"train_toy_{name}.json").write_text(to_json(about | course), encoding="utf-8")
        figure = plot_phase_change(training.history, model=name, uniform_loss=CHANCE, phases=training.steps)
        figure.savefig(folder / f"train_toy_{name}.png")
        if holds:
            save_native(model, weights / f"{name}.safetensors", about)
        where = out if holds else set_beside(folder, out, f"train_toy_{name}.json")
    _show(name, training, about["phase_change_step"], checks)
    _show_files(
        [where / f"train_toy_{name}.json", where / f"train_toy_{name}.png"], checkpoints / f"{name}.safetensors", holds
    )
    return holds


def _train(name: str, seed: int, out: Path, device: str) -> tuple[HookedDecoder, TrainingRecord]:
    from models.training import TOYS, Progress, train_toy

    out.mkdir(parents=True, exist_ok=True)
    unfinished = out / f"train_toy_{name}_{seed}.unfinished"
    with progress_bar() as show:

        def progress(told: Progress) -> None:
            show(f"training {name}", told.step / told.at_most)

        return train_toy(TOYS[name], seed=seed, device=device, progress=progress, checkpoint=unfinished)


def _origin(name: str, seed: int, device: str) -> dict[str, Any]:
    from interp.results import current_versions

    return {
        "analysis": "train_toy",
        "schema_version": 1,
        "command": f"python analyses/train_toy.py --model {name} --seed {seed} --device {shlex.quote(device)}",
        "model": name,
        "seed": seed,
        "versions": current_versions(),
    }


def _show(name: str, training: TrainingRecord, changed: int | None, checks: Sequence[Check]) -> None:
    from rich.console import Console

    steps = sum(training.steps)
    change = f"no phase change in {steps} steps" if changed is None else f"phase change at step {changed} of {steps}"
    console = Console(highlight=False, emoji=False)
    say(console, "model", f"{name}: {change}", "cyan")
    table = Table("holds", "value>", "bound>", "check")
    for check in checks:
        style = "green" if check.holds else "red"
        table.add_row(
            "yes" if check.holds else "no",
            f"{check.value:.3g}",
            f"{check.relation} {check.bound:g}",
            check.what,
            style=style,
        )
    table.show(console)


def _show_files(files: Sequence[Path], weights: Path, holds: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, emoji=False)
    say(console, "written", ", ".join(map(str, files if not holds else [*files, weights])), "cyan")
    if not holds:
        say(console, "missed", f"{weights} is not written: the model misses a threshold; try another --seed", "red")


if __name__ == "__main__":
    raise SystemExit(run(app))
