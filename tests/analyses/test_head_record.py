"""The JSON record keeps its schema, is strict JSON, and reads back as the report."""

from __future__ import annotations

import json

import pytest

from analyses.head_record import record, to_json
from interp.results import HeadReport
from tests.analyses.synthetic import synthetic_report

KEYS = {
    "result": str,
    "schema_version": int,
    "analysis": str,
    "command": str,
    "model": str,
    "kinds": list,
    "seed": int,
    "heads": list,
    "causal": list,
    "published": type(None),
    "config": dict,
    "versions": dict,
    "settings": dict,
    "sink_share": dict,
    "tokens_shown": list,
    "token_loss": list,
    "token_loss_ablated": list,
    "warnings": list,
    "figures": list,
    "patterns": dict,
}
HEAD_KEYS = {
    "kind": str,
    "layer": int,
    "head": int,
    "score": float,
    "interval": list,
    "null": float,
    "bar": float,
    "p_value": float,
    "pattern": str,
    "by_third": list,
    "confounds": dict,
    "details": dict,
    "confirmed": str,
}


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not strict JSON")


def read(text: str) -> dict:
    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def report() -> HeadReport:
    return synthetic_report()


def test_the_schema(report):
    values = read(to_json(record(report, "heads", "python analyses/heads.py", ["heads_scores.png"])))
    assert {key: type(value) for key, value in values.items()} == KEYS
    assert values["schema_version"] == 2
    for head in values["heads"]:
        assert {key: type(head[key]) for key in HEAD_KEYS} == HEAD_KEYS
        assert set(head) - set(HEAD_KEYS) == {"effect", "effect_interval", "bar_of_thirds"}
        low, high = head["interval"]
        assert low <= head["score"] <= high


def test_every_head_of_the_model_is_in_it_once_per_kind(report):
    heads = record(report, "heads", "", [])["heads"]
    places = [(head["kind"], head["layer"], head["head"]) for head in heads]
    assert len(places) == len(set(places)) == len(report.kinds) * 2 * 4


def test_it_reads_back_as_the_report(report, tmp_path):
    path = tmp_path / "heads.json"
    path.write_text(to_json(record(report, "heads", "", [])), encoding="utf-8")
    assert HeadReport.load(path) == report


def test_nothing_in_it_but_json(report):
    with pytest.raises(ValueError, match="Out of range float"):
        to_json(record(report, "heads", "", []) | {"seed": float("nan")})


def test_the_docstring_names_every_key():
    import analyses.head_record

    for key in KEYS:
        assert f"``{key}``" in analyses.head_record.__doc__
