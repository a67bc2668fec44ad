"""train_toy.py on a few steps: what it writes, what it refuses, how it goes on after an interruption."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

import models.training
from analyses.command import run
from analyses.train_toy import app
from models.loading.load import CHECKPOINTS
from models.loading.native import load_native, read_record
from models.training import TOYS, evaluate_toy, toys


def shortened(monkeypatch, *steps):
    """Let every toy's recipe take these many steps, phase by phase."""
    for name, toy in TOYS.items():
        stages = [replace(stage, steps=n) for stage, n in zip(toy.recipe.stages, steps, strict=True)]
        monkeypatch.setitem(TOYS, name, replace(toy, recipe=replace(toy.recipe, stages=tuple(stages))))
    monkeypatch.setattr(toys, "evaluate_shipped", partial(evaluate_toy, periods=(8,), batch=16))


@pytest.fixture
def few_steps(monkeypatch):
    shortened(monkeypatch, 6, 2, 4)


@pytest.fixture
def no_thresholds(monkeypatch):
    monkeypatch.setattr(toys.Thresholds, "checks", lambda self, got: [])


def flags(tmp_path, model="toy-attn", seed=3):
    folders = ["--out", str(tmp_path / "out"), "--checkpoints", str(tmp_path / "weights")]
    return ["--model", model, "--seed", str(seed), *folders]


def names(folder):
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


@pytest.mark.usefixtures("few_steps", "no_thresholds")
def test_weights_carry_how_they_came_about(tmp_path, capsys):
    assert run(app, flags(tmp_path)) == 0
    assert names(tmp_path / "weights") == ["toy-attn.safetensors"]
    assert names(tmp_path / "out") == ["train_toy_toy-attn.json", "train_toy_toy-attn.png"]
    path = tmp_path / "weights" / "toy-attn.safetensors"
    expected, _ = toys.train_toy(TOYS["toy-attn"], seed=3)
    for name, weight in load_native(path).state_dict().items():
        assert torch.equal(weight, expected.state_dict()[name])
    about = read_record(path)
    assert about["command"] == "python analyses/train_toy.py --model toy-attn --seed 3 --device cpu"
    assert about["steps"] == [6, 2, 4]
    assert about["metrics"]["accuracy"] < 0.3
    assert set(about["versions"]) >= {"torch", "residscope"}
    assert "weights/toy-attn.safetensors" in "".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("few_steps", "no_thresholds")
def test_unless_asked_for_the_shipped_weights_are_left_alone(tmp_path):
    shipped = {path: path.stat().st_mtime_ns for path in CHECKPOINTS.iterdir()}
    assert run(app, ["--model", "toy-attn", "--out", str(tmp_path)]) == 0
    assert "toy-attn.safetensors" in names(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in CHECKPOINTS.iterdir()} == shipped


@pytest.mark.usefixtures("few_steps", "no_thresholds")
def test_the_record_holds_the_course_of_training(tmp_path):
    run(app, flags(tmp_path))
    record = json.loads((tmp_path / "out" / "train_toy_toy-attn.json").read_text())
    assert record["analysis"] == "train_toy"
    assert record["config"] == TOYS["toy-attn"].config.to_dict()
    assert len(record["losses"]) == 12
    assert [row["step"] for row in record["history"]] == [0, 6, 8, 10, 12]
    assert set(record["history"][0]) >= {"repeat_loss", "first_half_loss", "induction", "previous_token"}


@pytest.mark.usefixtures("few_steps")
def test_weights_that_miss_a_threshold_are_not_written(tmp_path, capsys):
    assert run(app, flags(tmp_path)) == 1
    assert names(tmp_path / "weights") == []
    assert "train_toy_toy-attn.json" in names(tmp_path / "out")
    shown = " ".join(capsys.readouterr().out.split())
    assert "the model misses a threshold; try another --seed" in shown


@pytest.mark.usefixtures("few_steps", "no_thresholds")
def test_all_trains_every_toy(tmp_path):
    assert run(app, flags(tmp_path, model="all")) == 0
    assert names(tmp_path / "weights") == sorted(f"{name}.safetensors" for name in TOYS)


@pytest.mark.usefixtures("no_thresholds")
def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    shortened(monkeypatch, 50, 4, 6)
    train_toy = toys.train_toy

    def interrupted(toy, **options):
        def stop(told):
            if told.step == 55:
                raise KeyboardInterrupt

        return train_toy(toy, **options | {"progress": stop})

    monkeypatch.setattr(models.training, "train_toy", interrupted)
    assert run(app, flags(tmp_path)) == 130
    assert names(tmp_path / "weights") == []
    assert names(tmp_path / "out") == ["train_toy_toy-attn_3.unfinished"]

    steps = []

    def resumed(toy, **options):
        return train_toy(toy, **options | {"progress": lambda told: steps.append(told.step)})

    monkeypatch.setattr(models.training, "train_toy", resumed)
    assert run(app, flags(tmp_path)) == 0
    assert steps == list(range(51, 61))
    assert names(tmp_path / "out") == ["train_toy_toy-attn.json", "train_toy_toy-attn.png"]


def test_an_unknown_model_is_refused_in_one_line(tmp_path, capsys):
    assert run(app, flags(tmp_path, model="toy-rop")) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "'toy-rop'; expected one of toy, toy-attn, toy-rope, all; nearest: toy-rope" in lines[0]
    assert names(tmp_path) == []
