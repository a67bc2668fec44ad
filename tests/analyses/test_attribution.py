"""The attribution analysis end to end: parts add up, sources are named, one line for bad input."""

from __future__ import annotations

import json

import pytest

from analyses.attribution import app
from analyses.command import run
from models.loading import load_model


def analyse(*args: object) -> int:
    return run(app, [str(arg) for arg in args])


def record(folder) -> dict:
    return json.loads((folder / "attribution.json").read_text())


@pytest.mark.parametrize("by", ["component", "head", "neuron"])
@pytest.mark.parametrize("model", ["toy", "toy-rope"])
def test_the_parts_add_up_to_the_models_logit(model, by, tmp_path, capsys):
    flags = ["--model", model, "--prompt", "ABCDEFABCDE", "--answer", "F", "--wrong", "A", "--by", by]
    assert analyse(*flags, "--out", tmp_path) == 0
    values = record(tmp_path)
    loaded = load_model(model)
    logits = loaded(loaded.to_tokens("ABCDEFABCDE"))[0, -1]
    expected = float(logits[loaded.to_single_token("F")] - logits[loaded.to_single_token("A")])
    assert values["logit"] == pytest.approx(expected, abs=1e-4)
    assert sum(part["logits"] for part in values["parts"]) == pytest.approx(expected, abs=1e-3)
    assert values["attributed"] == "'F' - 'A'"
    assert values["by"] == by
    assert (values["memories"] is not None) == (by == "neuron")
    assert {"attribution.json", *values["figures"]} == {file.name for file in tmp_path.iterdir()}
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "norms are frozen" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_an_induction_head_takes_the_answer_from_where_it_stood(tmp_path):
    analyse("--model", "toy-attn", "--prompt", "ABCDEFABCDE", "--answer", "F", "--wrong", "X", "--out", tmp_path)
    values = record(tmp_path)
    assert values["tokens"][6] == "F"
    best = max((one for one in values["sources"] if one["head"].startswith("L1")), key=lambda one: one["logits"])
    assert max(range(12), key=lambda i: best["by_token"][i]) == 6
    assert sum(best["by_token"]) == pytest.approx(best["logits"], abs=1e-4)
    part = next(part for part in values["parts"] if part["component"] == best["head"])
    assert part["logits"] == pytest.approx(best["logits"], abs=1e-4)


def test_by_default_a_prompt_that_suits_and_the_first_guess(tmp_path):
    analyse("--model", "toy", "--out", tmp_path)
    assert " - " in record(tmp_path)["attributed"]
    analyse("--model", "toy", "--prompt", "ABCDEFABCDE", "--out", tmp_path)
    assert record(tmp_path)["attributed"] == "'F'"


def test_the_recorded_command_gives_the_record_again(tmp_path):
    analyse("--model", "toy", "--seed", 2, "--out", tmp_path, "--by", "component")
    first = (tmp_path / "attribution.json").read_bytes()
    python, script, *args = json.loads(first)["command"].split()
    assert (python, script) == ("python", "analyses/attribution.py")
    analyse(*args)
    assert (tmp_path / "attribution.json").read_bytes() == first


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--by", "layer"], "by is 'layer'; expected 'component', 'head' or 'neuron'"),
        (["--answer", "AB"], "'AB' is 2 tokens"),
        (["--prompt", "é"], "'é' is not in this model's vocabulary"),
        (["--model", "toy-attn", "--by", "neuron"], "attention-only"),
    ],
)
def test_bad_input_is_one_line_and_nothing_on_disk(flags, line, tmp_path, capsys):
    assert analyse("--out", tmp_path / "out", *flags) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert line in shown.err
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.smollm2
def test_smollm2(tmp_path):
    flags = ["--prompt", "The capital of France is", "--answer", " Paris", "--wrong", " Rome", "--by", "neuron"]
    assert analyse("--model", "smollm2", "--out", tmp_path, *flags) == 0
    values = record(tmp_path)
    assert abs(values["remainder"]) < 1e-3
    assert len(values["memories"]) == 12
