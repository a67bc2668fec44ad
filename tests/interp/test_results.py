"""A report is a value: it survives the disk unchanged, and refuses files that hold something else."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from interp import Head, HeadReport, find_heads
from interp.detectors.kinds import KINDS
from models.errors import InputError
from tests.interp.detectors.built import built_model


@pytest.fixture(scope="module")
def report() -> HeadReport:
    return find_heads(built_model(), name="<b>built</b>")


def test_a_saved_report_loads_as_the_same_value(report: HeadReport, tmp_path: Path) -> None:
    path = report.save(tmp_path / "new" / "report.json")
    loaded = HeadReport.load(path)
    assert loaded == report
    assert loaded.causal[0].heads == (Head(0, 0),)
    np.testing.assert_array_equal(loaded.patterns["L0H0"], report.patterns["L0H0"])
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


def test_the_record_lists_every_head_with_its_evidence(report: HeadReport, tmp_path: Path) -> None:
    record = json.loads(report.save(tmp_path / "report.json").read_text())
    assert record["schema_version"] == 2
    assert record["config"]["n_layers"] == 2
    assert {"python", "torch", "residscope"} <= set(record["versions"])
    assert len(record["heads"]) == len(KINDS) * 2 * 8
    expected = {"kind", "layer", "head", "score", "interval", "bar", "p_value", "pattern", "effect", "confirmed"}
    assert expected <= set(record["heads"][0])


def test_a_report_cannot_be_changed(report: HeadReport) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.seed = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        report.patterns["L0H0"][0, 0] = 2
    with pytest.raises(ValueError, match="read-only"):
        report.token_loss[0] = 2


def test_an_unwritable_value_leaves_no_file_behind(report: HeadReport, tmp_path: Path) -> None:
    bad = dataclasses.replace(report, settings={"x": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        bad.save(tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"result": "SweepResult", "schema_version": 1}', "holds 'SweepResult' of schema version 1"),
        ('{"result": "HeadReport", "schema_version": 99}', "schema version 99; expected 'HeadReport' of version 2"),
        ("[]", "holds None"),
        ('{"result": "HeadRe', "not a readable JSON file"),
    ],
)
def test_a_file_with_something_else_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        HeadReport.load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json is not a readable"):
        HeadReport.load(tmp_path / "none.json")


def test_the_frame_has_one_row_per_kind_and_head(report: HeadReport) -> None:
    frame = report.to_frame()
    assert len(frame) == len(KINDS) * 2 * 8
    best = frame[(frame["pattern"] == "yes") & (frame["kind"] == "induction")].iloc[0]
    assert (best["name"], best["layer"], best["head"]) == ("L1H0", 1, 0)
    assert best["low"] <= best["score"] <= best["high"]


def test_html_shows_what_was_found_and_escapes_names(report: HeadReport) -> None:
    html = report.summary_html()
    assert "L1H0" in html
    assert "&lt;b&gt;built" in html
    assert "<b>" not in html


def test_another_kind_is_refused(report: HeadReport) -> None:
    with pytest.raises(InputError, match="kind 'name_mover' is not in this report"):
        report.found("name_mover")
