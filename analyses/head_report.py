"""The run that all head analyses share: load, find, draw, save, show."""

from __future__ import annotations

from collections.abc import Sequence
from operator import sub
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import typer

from analyses.command import Device, Dtype, Model, Out, Precision, Report, Seed, Top, command_line, progress_bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp.results import HeadReport

STAGES = ("loading", "finding", "figures")


def head_analysis(name: str, kinds: Sequence[str] | None, about: str) -> typer.Typer:
    """Return the command line of one analysis.

    Args:
        name: of the script, the record and the default folder.
        kinds: of heads to look for, all of them by default.
        about: what ``--help`` says.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(help=about)
    def main(
        model: Model = "toy",
        seed: Seed = 0,
        out: Out = None,
        device: Device = "cpu",
        dtype: Precision = Dtype.float32,
        top: Top = 5,
        report: Report = False,
    ) -> None:
        folder = out or Path("out") / name
        flags = {"model": model, "seed": seed, "out": folder, "device": device, "dtype": dtype, "top": top}
        command = command_line(name, flags | {"report": report})
        analyse(name, kinds, model, seed, folder, device, dtype, top, report, command)

    return app


def analyse(
    name: str,
    kinds: Sequence[str] | None,
    source: str,
    seed: int,
    out: Path,
    device: str,
    dtype: str,
    top: int,
    page: bool,
    command: str,
) -> None:
    """Find heads, write ``<name>.json`` and the figures to ``out``, then print what was found.

    Raises:
        ResidscopeError: a model that cannot be loaded or analysed, an ``out`` that cannot be written.
    """
    from analyses.head_record import record, to_json
    from analyses.head_table import show
    from analyses.staging import staged
    from analyses.terminal import show_files
    from interp.detectors import KINDS, find_heads
    from interp.report import write_report
    from models.loading import load_model

    marks = [perf_counter()]
    with staged(out) as folder:
        with progress_bar() as progress:
            progress(f"loading {source}", 0)
            model = load_model(source, dtype=dtype, device=device)
            marks.append(perf_counter())
            report = find_heads(model, kinds or KINDS, name=source, seed=seed, progress=progress)
            marks.append(perf_counter())
            progress("drawing", 0)
            figures = _figures(report)
            for done, (figure_name, figure) in enumerate(figures.items()):
                figure.savefig(folder / f"{name}_{figure_name}.png")
                progress("drawing", (done + 1) / len(figures))
        files = [f"{name}_{figure_name}.png" for figure_name in figures]
        values = record(report, name, command, files)
        (folder / f"{name}.json").write_text(to_json(values), encoding="utf-8")
        if page:
            write_report(report, folder / f"{name}.html", title=f"Heads of {source}", command=command)
            files.append(f"{name}.html")
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    marks.append(perf_counter())
    show(report, values["published"], top, n_parameters, f"{dtype} on {device}")
    show_files(out, [f"{name}.json", *files], dict(zip(STAGES, map(sub, marks[1:], marks), strict=True)))


def _figures(report: HeadReport) -> dict[str, Figure]:
    from interp.plots import plot_attention_patterns, plot_head_scores, plot_token_loss

    return {
        "scores": plot_head_scores(report),
        "patterns": plot_attention_patterns(report),
        "loss": plot_token_loss(report),
    }
