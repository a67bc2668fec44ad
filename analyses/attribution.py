"""Direct logit attribution of one prompt: which heads, MLPs or neurons wrote the answer, and from which tokens.

python analyses/attribution.py --model toy --prompt ABCDEFABCDE --answer F
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

from analyses.command import Device, Dtype, Model, Out, Precision, Report, Seed, Top, command_line, progress_bar, run

if TYPE_CHECKING:
    from torch import Tensor

    from interp.readout import LogitAttribution, SourceAttribution
    from interp.weights import FiredMemories
    from models import HookedDecoder

STAGES = ("loading", "attributing", "figures")
N_SOURCE_HEADS = 5
FROZEN = (
    "norms are frozen at this run: what a part adds directly, not how it changes the norm or what later layers make "
    "of it; an ablation measures the whole effect"
)

Prompt = Annotated[
    str | None, typer.Option(help="Text before the answer.", show_default="a prompt that suits the model")
]
Answer = Annotated[str | None, typer.Option(help="The token that should follow.", show_default="the first guess")]
Wrong = Annotated[
    str | None, typer.Option(help="A token that should not; then the difference is attributed.", show_default="none")
]
By = Annotated[str, typer.Option(help="component (sublayers), head, or neuron.")]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Direct logit attribution of one prompt: what wrote the answer, and from which tokens it came.")
def main(
    model: Model = "toy",
    prompt: Prompt = None,
    answer: Answer = None,
    wrong: Wrong = None,
    by: By = "head",
    seed: Seed = 0,
    out: Out = None,
    device: Device = "cpu",
    dtype: Precision = Dtype.float32,
    top: Top = 12,
    report: Report = False,
) -> None:
    from analyses.head_record import to_json
    from analyses.staging import staged
    from analyses.terminal import model_line, show_files
    from interp.plots.attribution import plot_logit_attribution, plot_sources
    from interp.readout import lens_increments, logit_attribution, source_attribution
    from interp.report import write_report
    from interp.report.titles import isolated, whole
    from interp.weights import fired_memories
    from models.loading import load_model

    folder = out or Path("out") / "attribution"
    flags = {"model": model, "prompt": prompt, "answer": answer, "wrong": wrong, "by": by, "seed": seed, "out": folder}
    flags |= {"device": device, "dtype": dtype, "top": top, "report": report}
    command = command_line("attribution", flags)
    marks = [perf_counter()]
    with staged(folder) as staging:
        with progress_bar() as progress:
            progress(f"loading {model}", 0)
            loaded = load_model(model, dtype=dtype, device=device)
            marks.append(perf_counter())
            progress("attributing", 0)
            tokens, right, against = _question(loaded, prompt, answer, wrong, seed)
            found = logit_attribution(loaded, tokens, right, against, by=by)  # type: ignore[arg-type]
            heads = found if by == "head" else logit_attribution(loaded, tokens, right, against, by="head")
            sources = [source_attribution(loaded, tokens, head, right, against) for head in _best_heads(heads)]
            memories = None if by != "neuron" else fired_memories(loaded, tokens, right, against, n_memories=top)
            marks.append(perf_counter())
            progress("drawing", 0)
            texts = loaded.to_str_tokens(tokens[0])
            figures = {
                "attribution_parts.png": plot_logit_attribution(found, top=top),
                "attribution_sources.png": plot_sources(sources, texts, model=model),
            }
            for name, figure in figures.items():
                figure.savefig(staging / name)
        record = _record(found, sources, memories)
        record |= {"model": model, "command": command, "figures": list(figures)}
        (staging / "attribution.json").write_text(to_json(record), encoding="utf-8")
        files = ["attribution.json", *figures]
        if report:
            views: list[Any] = [found, lens_increments(loaded, tokens[0], target=right, by="head")]
            title = f"{found.what} after {isolated(whole(texts) if prompt is None else prompt)}"
            write_report(views, staging / "attribution.html", title=title, command=command, seed=seed)
            files.append("attribution.html")
    marks.append(perf_counter())
    n_parameters = sum(parameter.numel() for parameter in loaded.parameters())
    _show(model_line(model, found.config, n_parameters, f"{dtype} on {device}"), found, sources, memories, top)
    show_files(folder, files, dict(zip(STAGES, map(sub, marks[1:], marks), strict=True)))


def _question(
    model: HookedDecoder, prompt: str | None, answer: str | None, wrong: str | None, seed: int
) -> tuple[Tensor, int, int | None]:
    """Return the prompt's tokens, the answer and the wrong answer. Raises InputError where a flag does not fit."""
    from interp.prompts import default_prompts

    if prompt is None:
        pair = default_prompts(model, 1, seed=seed)
        tokens, right, against = pair.clean[:1], int(pair.answer[0]), int(pair.wrong[0])
    else:
        tokens = model.to_tokens(prompt)
        right, against = int(model(tokens)[0, -1].argmax()), None
    right = right if answer is None else model.to_single_token(answer)
    against = against if wrong is None else model.to_single_token(wrong)
    return tokens, right, against


def _best_heads(found: LogitAttribution) -> list[str]:
    means = found.values.mean(1).abs().tolist()
    heads = [(label, value) for label, value in zip(found.labels, means, strict=True) if "H" in label]
    return [label for label, _ in sorted(heads, key=lambda pair: -pair[1])[:N_SOURCE_HEADS]]


def _record(
    found: LogitAttribution, sources: list[SourceAttribution], memories: FiredMemories | None
) -> dict[str, Any]:
    parts = found.to_frame().to_dict("records")
    told = None
    if memories is not None:
        told = [
            {
                "memory": memory.name,
                "activation": float(activation),
                "logits": float(added),
                "key_tokens": [list(pair) for pair in memory.key_tokens],
                "value_tokens": [list(pair) for pair in memory.value_tokens],
                "suppressed_tokens": [list(pair) for pair in memory.suppressed_tokens],
            }
            for memory, activation, added in zip(
                memories.memories, memories.activations, memories.attributions, strict=True
            )
        ]
    return {
        "result": "attribution",
        "schema_version": 1,
        "analysis": "attribution",
        "by": found.by,
        "attributed": found.what,
        "logit": float(found.logit[0]),
        "remainder": float(found.remainder()[0]),
        "note": FROZEN,
        "tokens": list(found.tokens[0]),
        "parts": parts,
        "sources": [
            {
                "head": str(one.head),
                "logits": float(one.values.sum()),
                "by_token": one.values[0].tolist(),
                "pattern": one.pattern[0].tolist(),
            }
            for one in sources
        ],
        "memories": told,
        "config": found.config,
        "versions": found.versions,
    }


def _show(
    model: str, found: LogitAttribution, sources: list[SourceAttribution], memories: FiredMemories | None, top: int
) -> None:
    from rich.console import Console
    from rich.text import Text

    from analyses.table import Table
    from analyses.terminal import prompt_line, say, visible

    texts = found.tokens[0]
    console = Console(highlight=False, emoji=False)
    say(console, "model", model, "cyan")
    say(console, "prompt", prompt_line(texts), "cyan")
    remainder = float(found.remainder()[0])
    within = f"the parts add up to it within {abs(remainder):.0e}"
    say(console, "logit", f"{found.what}: {float(found.logit[0]):+.3f}; {within}", "cyan")
    console.print()
    console.print(Text(f"what wrote it, by {found.by}", style="bold"))
    table = Table("part", "logits>")
    for part, value in found.to_frame().head(top).itertuples(index=False):
        table.add_row(part, f"{value:+.3f}", style="yellow" if value > 0 else "blue")  # as pages and figures
    table.show(console)
    console.print()
    console.print(Text("where the strongest heads took it from", style="bold"))
    table = Table("head", "logits>", "tokens")
    for one in sources:
        best = one.values[0].abs().topk(min(3, len(texts))).indices.tolist()
        taken = ", ".join(f"{visible(texts[i])} ({i}) {float(one.values[0, i]):+.2f}" for i in best)
        table.add_row(str(one.head), f"{float(one.values.sum()):+.3f}", taken)
    table.show(console)
    if memories is not None:
        console.print()
        console.print(Text("the strongest memories", style="bold"))
        table = Table("memory", "fired>", "logits>", "value")
        for memory, activation, added in zip(
            memories.memories, memories.activations, memories.attributions, strict=True
        ):
            value = " ".join(visible(text) for text, _ in memory.value_tokens[:4])
            table.add_row(memory.name, f"{float(activation):+.2f}", f"{float(added):+.3f}", value)
        table.show(console)
    console.print()
    say(console, "frozen", FROZEN, "dim")


if __name__ == "__main__":
    raise SystemExit(run(app))
