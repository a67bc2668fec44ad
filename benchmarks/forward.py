"""The forward pass and the caching of everything, beside Hugging Face and TransformerLens.

python benchmarks/forward.py [--rounds N] [--threads N]

GPT-2 small with random weights in float32; all run under ``torch.inference_mode``, in turn (see ``timing``). Prints a
table, and as its last line one line of JSON with the figures.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Int
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from benchmarks.contenders import Contenders, gpt2
from benchmarks.record import print_record
from benchmarks.timing import Timings, interleaved

SIZES = ((1, 128), (1, 1024))
CACHED_SIZE = (1, 128)
TOLERANCE = 1e-4  # of the range of the logits


@torch.inference_mode()
def check_agreement(contenders: Contenders, tokens: Int[Tensor, "batch pos"]) -> None:
    """Raise ValueError unless all three compute the same logits: only then is their speed worth comparing."""
    logits = contenders.logits(tokens)
    expected = logits["Hugging Face"]
    allowed = TOLERANCE * float(expected.max() - expected.min())
    for name, got in logits.items():
        if (off := float((got - expected).abs().max())) > allowed:
            raise ValueError(
                f"{name}'s logits differ from Hugging Face's by {off:.2g}; at most {allowed:.2g} is rounding"
            )


def time_forward(contenders: Contenders, tokens: Int[Tensor, "batch pos"], rounds: int, **options: Any) -> Timings:
    """Time the plain forward pass of all three."""
    runs = {
        "residscope": lambda: contenders.ours(tokens),
        "Hugging Face": lambda: contenders.hugging_face(tokens, use_cache=False),
        "TransformerLens": lambda: contenders.transformer_lens(tokens),
    }
    return interleaved(runs, rounds, **options)


def time_caching(contenders: Contenders, tokens: Int[Tensor, "batch pos"], rounds: int, **options: Any) -> Timings:
    """Time our plain forward pass, and what caches every activation, ours and TransformerLens's."""
    runs = {
        "residscope, forward": lambda: contenders.ours(tokens),
        "residscope, all cached": lambda: contenders.ours.run_with_cache(tokens),
        "TransformerLens, all cached": lambda: contenders.transformer_lens.run_with_cache(tokens),
    }
    return interleaved(runs, rounds, **options)


@torch.inference_mode()
def measure(contenders: Contenders, sizes: tuple[tuple[int, int], ...], rounds: int) -> list[dict[str, Any]]:
    """Return one row per thing timed: what, its size, who, median milliseconds, and the ratio to the first."""
    rows = []
    generator = torch.Generator().manual_seed(0)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for batch, pos in sizes:
            tokens = torch.randint(contenders.ours.cfg.d_vocab, (batch, pos), generator=generator)
            check_agreement(contenders, tokens)
            tasks = [("forward", time_forward, "Hugging Face")]
            if (batch, pos) == CACHED_SIZE:
                tasks.append(("caching", time_caching, "residscope, forward"))
            for what, time_it, reference in tasks:
                bar = progress.add_task(f"{what} ({batch}, {pos})", total=rounds + 2)
                timings = time_it(contenders, tokens, rounds, on_round=partial(progress.advance, bar))
                rows += [
                    {
                        "what": what,
                        "size": [batch, pos],
                        "who": who,
                        "milliseconds": round(timings.milliseconds(who), 2),
                        "to": reference,
                        "ratio": round(timings.ratio(who, to=reference), 3),
                    }
                    for who in timings.seconds
                ]
    return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the rows as a table."""
    table = Table(
        title="GPT-2 small, float32, random weights: medians over rounds",
        caption="ratio 1.000 marks what the others are compared with",
    )
    for heading in ("what", "tokens", "who"):
        table.add_column(heading)
    table.add_column("ms", justify="right")
    table.add_column("ratio", justify="right")
    for row in rows:
        size = "{} x {}".format(*row["size"])
        table.add_row(row["what"], size, row["who"], f"{row['milliseconds']:.1f}", f"{row['ratio']:.3f}")
    console.print(table)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="how often each is timed; medians are shown")] = 15,
    threads: Annotated[int | None, typer.Option(min=1, help="of torch; by default as many as it takes")] = None,
) -> None:
    """Time the forward pass and the caching of everything, beside Hugging Face and TransformerLens."""
    if threads is not None:
        torch.set_num_threads(threads)
    rows = measure(gpt2(), SIZES, rounds)
    show(rows, Console())
    print_record("forward", rounds, rows)


if __name__ == "__main__":
    typer.run(main)
