"""The logit lens: what the model would say if it stopped after each block, and where its answer takes over.

python analyses/logit_lens.py --model smollm2 --prompt "The Eiffel Tower is in the city of" --target " Paris"
"""

from __future__ import annotations

from analyses.stopping import listen

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

import shlex
from dataclasses import replace
from operator import sub
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analyses.command import Device, Dtype, Model, Out, Precision, Report, command_line, progress_bar, run

if TYPE_CHECKING:
    from interp.readout.lens_result import LensResult
    from interp.readout.next_token import NextTokenResult
    from models.protocol import ResumableModel

ABOUT = "The logit lens: what the model would say if it stopped after each block, and where its answer takes over."
NAME = "logit_lens"
TITLE = 70  # characters of the prompt in the page's title
STAGES = ("loading", "reading", "figures and report")
PROMPTS = {"toy": "QWERTYuiopQWERTYui"}  # by the model's first word; a toy continues what it has seen
PROMPT = "The Eiffel Tower is in the city of"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=ABOUT)
def main(
    model: Model = "toy",
    prompt: Annotated[str | None, typer.Option(help="What to read.", show_default="one that suits the model")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="A single token to follow, with its space: ' Paris'.", show_default="the model's own guess"),
    ] = None,
    out: Out = None,
    device: Device = "cpu",
    dtype: Precision = Dtype.float32,
    top: Annotated[int, typer.Option(min=1, help="Guesses to keep for each depth and token.")] = 10,
    tuned: Annotated[Path | None, typer.Option(help="A tuned lens, as TunedLens.save writes it.")] = None,
    attention: Annotated[bool, typer.Option(help="Attention patterns in the report.")] = True,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers whose attention is in the report: 0,5 or 8-11; fewer make it smaller.", show_default="all"
        ),
    ] = None,
    report: Report = True,
) -> None:
    folder = out or Path("out") / NAME
    text = prompt if prompt is not None else PROMPTS.get(model.split("-")[0], PROMPT)
    flags: dict[str, Any] = {"model": model, "prompt": text, "target": target, "out": folder, "device": device}
    flags |= {"dtype": dtype, "top": top, "tuned": tuned, "layers": layers}
    command = command_line(NAME, flags | {"no-attention": not attention})
    analyse(model, text, target, folder, device, dtype, top, tuned, attention, layers, command)


def analyse(
    source: str,
    prompt: str,
    target: str | None,
    out: Path,
    device: str,
    dtype: str,
    top: int,
    tuned: Path | None,
    attention: bool,
    layers: str | None,
    command: str,
) -> None:
    """Read a prompt, write the record, the figures and the report to ``out``, then print what was read.

    Raises:
        ResidscopeError: a model that cannot be loaded, a prompt or target that does not fit it, an ``out`` that cannot
            be written.
    """
    from analyses.head_record import to_json
    from analyses.lens_table import show
    from analyses.staging import staged
    from analyses.terminal import show_files
    from interp.plots.lens import plot_lens_grid
    from interp.plots.trajectory import plot_trajectory
    from interp.readout.attention import attention as read_attention
    from interp.report import write_report
    from models.loading import load_model

    marks = [perf_counter()]
    with staged(out) as folder:
        with progress_bar() as progress:
            progress(f"loading {source}", 0)
            model = load_model(source, dtype=dtype, device=device)
            marks.append(perf_counter())
            shown = None if layers is None else parse_layers(layers, model.cfg.n_layers)
            progress("reading", 0)
            lens, following = _read(model, source, prompt, target, top, tuned)
            views: list[Any] = [lens, following]
            if attention:
                progress("attention", 0.5)
                views.insert(1, replace(read_attention(model, prompt, layers=shown), model=source))
            marks.append(perf_counter())
            progress("drawing", 0)
            figures = {f"{NAME}_grid.png": plot_lens_grid(lens), f"{NAME}_trajectory.png": plot_trajectory(lens)}
            for name, figure in figures.items():
                figure.savefig(folder / name)
            progress("writing the report", 0.5)
            write_report(views, folder / f"{NAME}.html", title=_title(prompt), command=command)
        record = lens.to_dict() | {"analysis": NAME, "command": command, "figures": list(figures)}
        record |= {"takeover": lens.takeover(), "prompt": prompt}
        (folder / f"{NAME}.json").write_text(to_json(record), encoding="utf-8")
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    marks.append(perf_counter())
    prepended = model.tokenizer is not None and len(lens.tokens[0]) > len(model.tokenizer.encode(prompt))
    note = "" if target is None else better_spaced(model, target, following)
    show(lens, n_parameters, f"{dtype} on {device}", prepended, chosen=target is not None, note=note)
    files = [f"{NAME}.html", f"{NAME}.json", *figures]
    show_files(out, files, dict(zip(STAGES, map(sub, marks[1:], marks), strict=True)))


def _read(
    model: ResumableModel, source: str, prompt: str, target: str | None, top: int, tuned: Path | None
) -> tuple[LensResult, NextTokenResult]:
    """Return the lens, following the target or else the model's own guess, and what comes next."""
    from interp.readout.logit_lens import logit_lens
    from interp.readout.next_token import next_token
    from interp.readout.tuned_lens import TunedLens

    lens = None if tuned is None else TunedLens.load(tuned, model.device)
    followed = None if target is None else model.to_single_token(target)  # refused before any work
    following = next_token(model, prompt)
    if followed is None:
        followed = int(following.top_tokens[0])
    top = min(top, len(following.top_tokens) + following.n_rest)
    found = logit_lens(model, prompt, target=followed, top_k=top, tuned=lens)
    return replace(found, model=source), replace(following, model=source)


def _title(prompt: str) -> str:
    return prompt if len(prompt) <= TITLE else f"{prompt[:TITLE]}…"


def better_spaced(model: Any, target: str, following: NextTokenResult) -> str:
    """Return a line that suggests the target with (or without) its space, where the model guesses that one rather."""
    from models.errors import InputError

    other = target[1:] if target.startswith(" ") else f" {target}"
    ranks = {int(token): rank for rank, token in enumerate(following.top_tokens, start=1)}
    try:
        mine, its = (ranks.get(model.to_single_token(text)) for text in (target, other))
    except InputError:  # no single token, or no text at all
        return ""
    if its is None or (mine is not None and mine < its):
        return ""
    space = "without" if target.startswith(" ") else "with"
    return f"{other!r}, {space} its space, is guess {its}; to follow that token: --target {shlex.quote(other)}"


def parse_layers(text: str, n_layers: int) -> list[int]:
    """Return layers from a list of numbers and ranges.

    Raises:
        InputError: no number, or no such layer.

    >>> parse_layers("0,4-6", 12)
    [0, 4, 5, 6]
    """
    from models.errors import InputError

    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"--layers is {text!r}; expected numbers and ranges, such as 0,5 or 8-11")
        if not int(first) <= int(last or first) < n_layers:
            raise InputError(f"--layers is {text!r}; this model has layers 0 to {n_layers - 1}")
        found |= set(range(int(first), int(last or first) + 1))
    return sorted(found)


if __name__ == "__main__":
    raise SystemExit(run(app))
