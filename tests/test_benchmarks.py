"""The interleaved timer, and that the benchmark compares equals and prints what it promises."""

from __future__ import annotations

import io
import itertools
import json

import pytest
import torch
from rich.console import Console

from benchmarks import forward, timing
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
