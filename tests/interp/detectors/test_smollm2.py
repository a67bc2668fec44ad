"""The heads of SmolLM2-135M-Instruct, measured independently with Hugging Face's eager attention."""

import pytest

from interp import HeadReport, find_heads
from models.loading.load import load_model

pytestmark = pytest.mark.smollm2


@pytest.fixture(scope="module")
def report() -> HeadReport:
    return find_heads(load_model("smollm2"), length=50, causal=False)  # the published set-up


def names(report: HeadReport, kind: str, n: int) -> list[str]:
    return [str(evidence.name) for evidence in report.of_kind(kind)[:n]]


def test_induction_heads(report: HeadReport) -> None:
    assert names(report, "induction", 3) == ["L18H6", "L17H3", "L17H4"]
    assert report.of_kind("induction")[0].score == pytest.approx(0.86, abs=0.05)
    assert all(evidence.score >= 0.3 for evidence in report.found("induction"))
    assert 5 <= len(report.found("induction")) <= 12


def test_previous_token_heads(report: HeadReport) -> None:
    assert names(report, "previous_token", 2) == ["L16H0", "L11H1"]
    assert report.of_kind("previous_token")[0].score == pytest.approx(0.88, abs=0.03)


def test_sinks(report: HeadReport) -> None:
    assert names(report, "sink", 1) == ["L18H8"]
    assert {"L22H0", "L24H3"} <= set(names(report, "sink", 10))  # by their rest on 64 tokens, in which nothing repeats
    assert len(report.found("sink")) > 75  # with some sequences more than 130: near the border it says so
    assert sum(one.pattern != "no" for one in report.of_kind("sink")) > 150
    assert report.sink_share == pytest.approx({"random": 0.65, "text": 0.71}, abs=0.02)  # measured here
    assert report.settings["sink_token"] == "<|im_start|>"


def test_the_repeat_is_predicted_and_the_first_half_is_not(report: HeadReport) -> None:
    n = report.settings["length"]
    assert report.token_loss[:n].mean() == pytest.approx(14.3, abs=0.5)
    assert report.token_loss[n + 1 :].mean() == pytest.approx(3.2, abs=0.5)
