"""GPT-2 small's published heads beside those found."""

from __future__ import annotations

import pytest

from analyses.published import GPT2_SMALL, compare
from tests.analyses.synthetic import synthetic_report

SHAPE = {"d_model": 768, "d_vocab": 50257, "positions": "learned"}
FOUND = {"previous_token": [(4, 11)], "induction": [(5, 1), (8, 8)]}


def test_each_published_head_has_its_score_and_rank_here():
    report = synthetic_report(12, 12, heads=FOUND, model="gpt2", **SHAPE)
    comparison = compare(report)
    by_name = {(row["kind"], row["layer"], row["head"]): row for row in comparison["heads"]}
    assert len(by_name) == sum(head.kind in FOUND for head in GPT2_SMALL)
    row = by_name["previous_token", 4, 11]
    assert (row["rank"], row["pattern"], row["confirmed"]) == (1, "yes", "jointly")
    assert row["score"] == report.scores("previous_token")[4, 11]
    assert by_name["induction", 5, 5]["published_score"] == 0.93
    assert by_name["induction", 5, 5]["pattern"] == "no"
    assert comparison["not_published"] == {"previous_token": [], "induction": ["L8H8"]}


@pytest.mark.parametrize(
    ("model", "shape"),
    [("toy", {}), ("random", SHAPE), ("gpt2", SHAPE | {"d_model": 1024}), ("gpt2", SHAPE | {"positions": "rotary"})],
)
def test_other_models_are_not_compared(model, shape):
    assert compare(synthetic_report(12, 12, model=model, **shape)) is None


@pytest.mark.parametrize("model", ["gpt2", "openai-community/gpt2", "/models/gpt2/", "gpt2.Q8_0.gguf"])
def test_gpt2_is_known_by_any_address(model):
    assert compare(synthetic_report(12, 12, model=model, **SHAPE)) is not None
