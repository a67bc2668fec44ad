"""Activation patching sweeps beside TransformerLens's, and beside a bare matrix product of the same FLOPs.

python benchmarks/patching.py [--rounds N] [--threads N] [--batch N]

GPT-2 small with random weights in float32, prompts of 15 tokens that differ first at a third of their length, the
metric a logit difference at the last position; all under ``torch.inference_mode``, in turn (see ``timing``). A sweep
is timed whole: the clean run, the corrupted run, every cell. Prints a table, and as its last line one line of JSON.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
import typer
from jaxtyping import Float, Int
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

from benchmarks.contenders import Contenders, gpt2
from benchmarks.record import print_record
from benchmarks.timing import interleaved
from interp.interventions.activation_patching import activation_patching
from interp.interventions.patching_result import PatchingResult
from interp.metrics import LogitDifference

ANSWER, WRONG = 5, 6


os.environ.setdefault("TQDM_DISABLE", "1")  # TransformerLens's progress bars would be timed with it


@register_flop_formula(torch.ops.mkldnn._linear_pointwise)
def _linear_flops(x_shape: list[int], weight_shape: list[int], *args: object, **kwargs: object) -> int:
    """Count oneDNN's product (``models.parts.linear``), which the counter does not know."""
    return 2 * math.prod(x_shape) * weight_shape[0]


SWEEPS = {"residual by position": ("resid_pre", ("layer", "pos")), "heads": ("z", ("layer", "head"))}


@dataclass(frozen=True)
class Prompts:
    """A clean and a corrupted batch, equal before column ``first``."""

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    first: int


def prompts(batch: int, width: int, d_vocab: int, seed: int = 0) -> Prompts:
    """Draw prompts that differ in every token from a third of their length on."""
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(d_vocab, (batch, width), generator=generator)
    corrupted, first = clean.clone(), width // 3
    shift = torch.randint(1, d_vocab, (batch, width - first), generator=generator)
    corrupted[:, first:] = (clean[:, first:] + shift) % d_vocab
    return Prompts(clean, corrupted, first)


def ours(contenders: Contenders, pair: Prompts, sweep: str) -> PatchingResult:
    """Run our sweep."""
    site, over = SWEEPS[sweep]
    metric = LogitDifference(ANSWER, WRONG)
    return activation_patching(contenders.ours, pair.clean, pair.corrupted, metric, site=site, over=over)


def transformer_lens(contenders: Contenders, pair: Prompts, sweep: str) -> Float[Tensor, "*grid"]:
    """Run TransformerLens's sweep, its clean run included."""
    from transformer_lens import patching

    sweeps = {
        "residual by position": patching.get_act_patch_resid_pre,
        "heads": patching.get_act_patch_attn_head_out_all_pos,
    }

    def metric(logits: Tensor) -> Tensor:
        return (logits[:, -1, ANSWER] - logits[:, -1, WRONG]).mean()

    model = contenders.transformer_lens
    _, cache = model.run_with_cache(pair.clean)
    grid: Tensor = sweeps[sweep](model, pair.corrupted, cache, metric)
    return grid


def least_block_tokens(pair: Prompts, sweep: str, n_layers: int, n_heads: int) -> int:
    """Count, cell by cell, the (token, block) pairs whose output a cell changes and the last position's logits read."""
    width, count = pair.clean.shape[1], 0
    for layer in range(n_layers):
        firsts = range(pair.first, width) if sweep == "residual by position" else [pair.first] * n_heads
        for first in firsts:
            for block in range(layer, n_layers):
                count += 1 if block == n_layers - 1 else width - first
    return count * len(pair.clean)


def matrix_product(flops: float, rows: int = 1024, inner: int = 768, columns: int = 3072) -> Callable[[], None]:
    """Return a function that multiplies matrices of a convenient shape until ``flops`` are done."""
    x, w = torch.randn(rows, inner), torch.randn(columns, inner)
    whole, rest = divmod(flops, 2 * rows * inner * columns)
    last = x[: int(rest / (2 * inner * columns))]

    def run() -> None:
        for _ in range(int(whole)):
            torch.nn.functional.linear(x, w)
        torch.nn.functional.linear(last, w)

    return run


@torch.inference_mode()
def measure(contenders: Contenders, batches: tuple[int, ...], width: int, rounds: int) -> list[dict[str, Any]]:
    """Return one row per sweep and batch."""
    cfg, rows = contenders.ours.cfg, []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for batch in batches:
            pair = prompts(batch, width, cfg.d_vocab)
            for sweep in SWEEPS:
                with FlopCounterMode(display=False) as counter:
                    result = ours(contenders, pair, sweep)
                theirs = transformer_lens(contenders, pair, sweep).float().numpy()
                runs: dict[str, Callable[[], object]] = {
                    "residscope": partial(ours, contenders, pair, sweep),
                    "TransformerLens": partial(transformer_lens, contenders, pair, sweep),
                    "matrix product": matrix_product(counter.get_total_flops()),
                }
                bar = progress.add_task(f"{sweep}, batch {batch}", total=rounds)
                timings = interleaved(runs, rounds, warm_up=0, on_round=partial(progress.advance, bar))
                rows.append(
                    {
                        "sweep": sweep,
                        "batch": batch,
                        "seconds": {name: round(timings.milliseconds(name) / 1e3, 4) for name in runs},
                        "speed-up": round(timings.ratio("TransformerLens", to="residscope"), 2),
                        "to_matrix_product": round(timings.ratio("residscope", to="matrix product"), 3),
                        "gigaflops": round(counter.get_total_flops() / 1e9, 1),
                        "block_tokens": result.block_tokens,
                        "least_block_tokens": least_block_tokens(pair, sweep, cfg.n_layers, cfg.n_heads),
                        "naive_block_tokens": result.naive_block_tokens,
                        "difference": float(abs(result.mean() - theirs).max() / (theirs.max() - theirs.min())),
                    }
                )
    return rows


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """Print the rows as a table."""
    table = Table(
        title="Patching sweeps, GPT-2 small, float32, random weights: medians over rounds",
        caption="theirs: TransformerLens; tokens: block-tokens computed, beside the least possible",
    )
    headings = ("sweep", "batch", "ours s", "theirs s", "speed-up", "/ matmul", "tokens", "least", "off by")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "sweep" else "right")
    for row in rows:
        seconds = row["seconds"]
        table.add_row(
            row["sweep"],
            str(row["batch"]),
            f"{seconds['residscope']:.2f}",
            f"{seconds['TransformerLens']:.2f}",
            f"{row['speed-up']:.1f} x",
            f"{row['to_matrix_product']:.2f}",
            f"{row['block_tokens']:,}",
            f"{row['least_block_tokens']:,}",
            f"{row['difference']:.0e}",
        )
    console.print(table)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="how often each is timed; medians are shown")] = 3,
    threads: Annotated[int | None, typer.Option(min=1, help="of torch; by default as many as it takes")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="prompts per sweep; by default 1 and 8")] = None,
) -> None:
    """Time patching sweeps beside TransformerLens, and beside a matrix product of the same FLOPs."""
    if threads is not None:
        torch.set_num_threads(threads)
    rows = measure(gpt2(), tuple(batch or (1, 8)), 15, rounds)
    show(rows, Console())
    print_record("patching", rounds, rows)


if __name__ == "__main__":
    typer.run(main)
