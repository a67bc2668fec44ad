"""This tree beside another one, such as a worktree of the commit before: is anything slower?

python benchmarks/paired.py PATH/TO/OTHER/TREE [--rounds N] [--starts N] [--threads N] [--only WHAT]

Each tree runs in a process of its own, and this tree in a second one (the A/A pair, which shows what the machine alone
does). All time one and the same thing in turn; a ratio is taken within a round. Processes are started anew several
times, since one process keeps its luck with memory. Shown are the median ratio of this tree's time to the other's, its
95 % bootstrap interval, the same of the A/A pair, and the geometric mean over rows.

The model is GPT-2-small size with random weights, float32, as in ``forward`` and ``patching``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROWS = (
    "forward 1 x 128",
    "forward 1 x 1024",
    "all cached 1 x 128",
    "residual sweep, batch 1",
    "residual sweep, batch 8",
    "head sweep, batch 1",
    "head sweep, batch 8",
)
HERE = Path(__file__).resolve()
WORKER = "--worker"


def serve() -> None:
    """Time what is asked for, line by line, with the ``models`` and ``interp`` that the path holds."""
    import time

    import torch

    from interp import LogitDifference, activation_patching
    from models import DecoderConfig, HookedDecoder

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    cfg = DecoderConfig(n_layers=12, d_model=768, n_heads=12, d_vocab=50257, n_ctx=1024, tied=True)
    model = HookedDecoder(cfg)
    generator = torch.Generator().manual_seed(0)
    short, long = (torch.randint(cfg.d_vocab, (1, width), generator=generator) for width in (128, 1024))

    def sweep(batch: int, site: str, *over: str) -> object:
        clean = torch.randint(cfg.d_vocab, (batch, 15), generator=torch.Generator().manual_seed(batch))
        corrupted = clean.clone()
        corrupted[:, 5:] = (clean[:, 5:] + 1) % cfg.d_vocab
        return activation_patching(model, clean, corrupted, LogitDifference(5, 6), site=site, over=over)

    runs = dict(
        zip(
            ROWS,
            (
                lambda: model(short),
                lambda: model(long),
                lambda: model.run_with_cache(short),
                lambda: sweep(1, "resid_pre", "layer", "pos"),
                lambda: sweep(8, "resid_pre", "layer", "pos"),
                lambda: sweep(1, "z", "layer", "head"),
                lambda: sweep(8, "z", "layer", "head"),
            ),
            strict=True,
        )
    )
    print("ready", flush=True)
    for line in sys.stdin:
        with torch.inference_mode():
            start = time.perf_counter()
            result = runs[line.strip()]()
            elapsed = time.perf_counter() - start
        del result
        print(elapsed, flush=True)


class Worker:
    """A process that times things with the packages of one tree."""

    def __init__(self, tree: Path, threads: int) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(HERE), WORKER]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=tree, env=environment, stdin=pipe, stdout=pipe, text=True)
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError("a worker ended; what it printed stands above")
        return answer

    def seconds(self, row: str) -> float:
        """Time one row once."""
        assert self.process.stdin is not None
        print(row, file=self.process.stdin, flush=True)
        return float(self._answer())

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def measure(other: Path, rows: tuple[str, ...], rounds: int, starts: int, threads: int) -> dict[str, np.ndarray]:
    """Return seconds ``[round, tree]`` by row; the trees are this one, the other, and this one again."""
    seconds: dict[str, list[list[float]]] = {row: [] for row in rows}
    trees = (HERE.parents[1], other, HERE.parents[1])
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("rounds", total=starts * rounds * len(rows))
        for _ in range(starts):
            workers = [Worker(tree, threads) for tree in trees]
            try:
                for row in rows:
                    for worker in workers:
                        worker.seconds(row)
                    for i in range(rounds):
                        order = [(i + k) % 3 for k in range(3)]
                        once = {k: workers[k].seconds(row) for k in order}
                        seconds[row].append([once[k] for k in range(3)])
                        progress.advance(bar)
            finally:
                for worker in workers:
                    worker.stop()
    return {row: np.array(values) for row, values in seconds.items()}


def median_interval(ratios: np.ndarray, seed: int = 0) -> tuple[float, float, float]:
    """Return the median and the ends of its 95 % percentile bootstrap interval.

    >>> median_interval(np.ones(9))
    (1.0, 1.0, 1.0)
    """
    drawn = np.random.default_rng(seed).choice(ratios, size=(4000, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


def ratios(seconds: np.ndarray) -> dict[str, tuple[float, float, float]]:
    """Return, for one row, this tree's time to the other's and to its own second process."""
    return {
        "to other": median_interval(seconds[:, [0, 2]].mean(1) / seconds[:, 1]),
        "to itself": median_interval(seconds[:, 2] / seconds[:, 0]),
    }


def show(found: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the ratios as a table."""
    table = Table(title="this tree's time to the other's: median ratio, 95 % interval")
    for heading in ("what", "ratio", "95 %", "A/A", "95 % of A/A"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row, both in found.items():
        cells = [f"{value:.3f}" for value in (both["to other"][0], both["to itself"][0])]
        spans = [f"{low:.3f} to {high:.3f}" for _, low, high in both.values()]
        table.add_row(row, cells[0], spans[0], cells[1], spans[1])
    mean = math.exp(sum(math.log(both["to other"][0]) for both in found.values()) / len(found))
    table.add_row("geometric mean", f"{mean:.3f}", "", "", "")
    console.print(table)


def main(
    other: Annotated[Path, typer.Argument(help="another checkout of this project", exists=True, file_okay=False)],
    rounds: Annotated[int, typer.Option(min=1, help="how often each is timed per start")] = 15,
    starts: Annotated[int, typer.Option(min=1, help="how often the processes are started anew")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="of torch")] = os.cpu_count() or 1,
    only: Annotated[str, typer.Option(help="rows whose name holds this")] = "",
) -> None:
    """Compare the speed of this tree with another's."""
    rows = tuple(row for row in ROWS if only in row)
    if not rows:
        raise typer.BadParameter(f"no row holds {only!r}; rows are {', '.join(ROWS)}")
    seconds = measure(other.resolve(), rows, rounds, starts, threads)
    found = {row: ratios(values) for row, values in seconds.items()}
    show(found, Console())
    print(json.dumps({"benchmark": "paired", "rounds": rounds, "starts": starts, "threads": threads, "rows": found}))


if __name__ == "__main__":
    if sys.argv[1:] == [WORKER]:
        sys.path[0] = os.environ["PYTHONPATH"]  # not the folder of this file
        serve()
    else:
        typer.run(main)
