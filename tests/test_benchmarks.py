"""The interleaved timer, and that the benchmark compares equals and prints what it promises."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from rich.console import Console

from benchmarks import forward, paired, patching, timing
from benchmarks.contenders import gpt2


def test_every_round_times_each_once_and_starts_with_another() -> None:
    order: list[str] = []
    runs = {name: (lambda name=name: order.append(name)) for name in "ABC"}
    timings = timing.interleaved(runs, rounds=3, warm_up=1)
    assert "".join(order) == "CAB" + "ABC" + "BCA" + "CAB"
    assert {name: len(seconds) for name, seconds in timings.seconds.items()} == {"A": 3, "B": 3, "C": 3}


def test_the_timer_reads_the_clock_around_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.accumulate([0, 2, 5, 1, 5, 4, 5, 3])  # calls take 2, 1, 4 and 3 s; 5 s pass between them
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    timings = timing.interleaved({"A": lambda: None, "B": lambda: None}, rounds=2, warm_up=0)
    assert timings.seconds == {"A": (2, 3), "B": (1, 4)}
    assert timings.milliseconds("A") == 2500
    assert timings.ratio("B", to="A") == pytest.approx((1 / 2 + 4 / 3) / 2)


def test_ratios_are_taken_within_a_round() -> None:
    slow_second_round = timing.Timings({"A": (1.0, 10.0, 1.0), "B": (2.0, 20.0, 2.0)})
    assert slow_second_round.ratio("B", to="A") == 2


@pytest.mark.parametrize(("runs", "rounds"), [({}, 1), ({"A": int}, 0)])
def test_nothing_to_time_is_refused(runs: dict[str, type], rounds: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        timing.interleaved(runs, rounds=rounds)


@pytest.fixture(scope="module")
def contenders():
    return gpt2(n_layer=2, n_embd=32, n_head=4, vocab_size=50, n_positions=128)


def test_the_contenders_compute_the_same(contenders) -> None:
    tokens = torch.arange(20)[None]
    forward.check_agreement(contenders, tokens)
    halve = ("blocks.1.attn.hook_z", lambda z, hook: z / 2)
    with contenders.ours.hooks([halve]), pytest.raises(ValueError, match="residscope's logits differ"):
        forward.check_agreement(contenders, tokens)


def test_the_table_and_the_record_hold_every_comparison(contenders) -> None:
    rows = forward.measure(contenders, ((1, 16), (1, 128)), rounds=1)
    assert [(row["what"], row["size"][1], row["who"]) for row in rows] == [
        ("forward", 16, "residscope"),
        ("forward", 16, "Hugging Face"),
        ("forward", 16, "TransformerLens"),
        ("forward", 128, "residscope"),
        ("forward", 128, "Hugging Face"),
        ("forward", 128, "TransformerLens"),
        ("caching", 128, "residscope, forward"),
        ("caching", 128, "residscope, all cached"),
        ("caching", 128, "TransformerLens, all cached"),
    ]
    assert all(row["ratio"] == 1 for row in rows if row["who"] == row["to"])
    assert json.loads(json.dumps(rows)) == rows
    shown = io.StringIO()
    forward.show(rows, Console(file=shown, width=120))
    assert shown.getvalue().count("TransformerLens, all cached") == 1


def test_sweeps_equal_transformer_lens_and_do_the_least_work(contenders) -> None:
    rows = patching.measure(contenders, (1, 2), width=6, rounds=1)
    assert [(row["sweep"], row["batch"]) for row in rows] == [
        ("residual by position", 1),
        ("heads", 1),
        ("residual by position", 2),
        ("heads", 2),
    ]
    for row in rows:
        assert row["difference"] < 1e-4
        assert row["block_tokens"] == row["least_block_tokens"] < row["naive_block_tokens"]
        assert row["gigaflops"] >= 0
    assert json.loads(json.dumps(rows)) == rows
    shown = io.StringIO()
    patching.show(rows, Console(file=shown, width=120))
    assert shown.getvalue().count("heads") == 2


def test_the_least_work_is_counted_by_hand() -> None:
    pair = patching.prompts(batch=1, width=6, d_vocab=50)  # differs from column 2 on
    assert pair.first == 2
    assert torch.equal(pair.clean[:, :2], pair.corrupted[:, :2])
    assert (pair.clean[:, 2:] != pair.corrupted[:, 2:]).all()
    # 2 layers: cells of layer 0 pay their tokens once and 1 in the last block, cells of layer 1 pay 1
    assert patching.least_block_tokens(pair, "residual by position", 2, 4) == (4 + 3 + 2 + 1) + 4 + 4
    assert patching.least_block_tokens(pair, "heads", 2, 4) == 4 * (4 + 1) + 4


class _Tree:
    """Stands in for a worker process: this tree takes 1 s, the other one 2 s."""

    started: list[Path] = []  # noqa: RUF012

    def __init__(self, tree: Path, threads: int) -> None:
        self.tree = tree
        self.started.append(tree)

    def seconds(self, row: str) -> float:
        return 2.0 if self.tree == Path("/other") else 1.0

    def stop(self) -> None:
        self.started.remove(self.tree)


def test_two_trees_are_timed_in_turn_and_their_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "Worker", _Tree)
    seconds = paired.measure(Path("/other"), paired.ROWS[:2], rounds=3, starts=2, threads=1)
    assert not _Tree.started
    assert list(seconds) == list(paired.ROWS[:2])
    for values in seconds.values():
        assert values.tolist() == [[1, 2, 1]] * 6
        assert paired.ratios(values) == {"to other": (0.5, 0.5, 0.5), "to itself": (1, 1, 1)}


def test_the_interval_of_a_median_covers_it() -> None:
    covered = 0
    for seed in range(200):
        ratios = np.exp(np.random.default_rng(seed).normal(0, 0.1, size=25))
        _, low, high = paired.median_interval(ratios, seed)
        covered += low <= 1 <= high
    assert covered >= 180  # of 200: 95 % but for the bootstrap's own error with 25 rounds


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="no row holds 'backward'"):
        paired.main(tmp_path, only="backward")
