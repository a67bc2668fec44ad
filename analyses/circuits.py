"""The induction circuit end to end: heads, links, what ablation confirms of them, and what the weights say.

python analyses/circuits.py --model toy

Writes ``circuits.json`` (``InductionCircuit.load`` reads it back) and figures: composition, links, positions.
"""

from __future__ import annotations

from analyses.stopping import listen

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

from operator import sub
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analyses.command import Device, Dtype, Model, Out, Precision, Report, Seed, command_line, progress_bar, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from interp.weights import InductionCircuit

STAGES = ("loading", "finding", "figures")
Links = Annotated[int, typer.Option(min=1, help="Links to list.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    help="The induction circuit end to end: previous-token and induction heads, which of their links ablation "
    "confirms, and what the weights say of them."
)
def main(
    model: Model = "toy",
    seed: Seed = 0,
    out: Out = None,
    device: Device = "cpu",
    dtype: Precision = Dtype.float32,
    top: Links = 12,
    report: Report = False,
) -> None:
    from analyses.circuit_table import show
    from analyses.head_record import to_json
    from analyses.staging import staged
    from analyses.terminal import show_files
    from interp.report import write_report
    from interp.weights import induction_circuit
    from models.loading import load_model

    folder = out or Path("out") / "circuits"
    flags = {"model": model, "seed": seed, "out": folder, "device": device, "dtype": dtype, "top": top}
    command = command_line("circuits", flags | {"report": report})
    marks = [perf_counter()]
    with staged(folder) as staging:
        with progress_bar() as progress:
            progress(f"loading {model}", 0)
            loaded = load_model(model, dtype=dtype, device=device)
            marks.append(perf_counter())
            circuit = induction_circuit(loaded, name=model, seed=seed, progress=progress)
            marks.append(perf_counter())
            progress("drawing", 0)
            figures = _figures(circuit)
            for name, figure in figures.items():
                figure.savefig(staging / name)
        record = _record(circuit, command, list(figures))
        (staging / "circuits.json").write_text(to_json(record), encoding="utf-8")
        files = ["circuits.json", *figures]
        if report:
            title = f"The induction circuit of {model}"
            write_report([circuit, circuit.report], staging / "circuits.html", title=title, command=command)
            files.append("circuits.html")
    marks.append(perf_counter())
    n_parameters = sum(parameter.numel() for parameter in loaded.parameters())
    show(circuit, top, n_parameters, f"{dtype} on {device}")
    show_files(folder, files, dict(zip(STAGES, map(sub, marks[1:], marks), strict=True)))


def _figures(circuit: InductionCircuit) -> dict[str, Figure]:
    from interp.plots.composition import plot_composition, plot_links
    from interp.plots.positional import plot_positional

    return {
        "circuits_composition.png": plot_composition(circuit),
        "circuits_links.png": plot_links(circuit),
        "circuits_positions.png": plot_positional(circuit),
    }


def _record(circuit: InductionCircuit, command: str, figures: list[str]) -> dict[str, Any]:
    """Return the record: the circuit's own fields, with what made them and, spelled out, what was confirmed."""
    confirmed = [f"{link.earlier} -> {link.later}.{link.route.lower()}" for link in circuit.confirmed]
    ours = {"analysis": "circuits", "command": command, "model": circuit.report.model, "figures": figures}
    return ours | {"confirmed": confirmed} | circuit.to_dict()


if __name__ == "__main__":
    raise SystemExit(run(app))
