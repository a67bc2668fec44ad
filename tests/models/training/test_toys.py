"""The shipped toys hold their thresholds; so do freshly trained ones, and a model of one layer does not."""

from dataclasses import replace
from pathlib import Path

import pytest

from models.loading.native import load_native, read_record
from models.training import TOYS, train_toy
from models.training.toys import evaluate_shipped, phase_change_step

SHIPPED = Path(__file__).parents[3] / "models" / "checkpoints"


@pytest.fixture(scope="module", params=TOYS)
def shipped(request):
    path = SHIPPED / f"{request.param}.safetensors"
    return request.param, path, load_native(path)


def test_a_shipped_toy_is_the_one_described(shipped):
    name, path, model = shipped
    record = read_record(path)
    assert model.cfg == TOYS[name].config
    assert model.to_tokens("AB").tolist() == [[64, 0, 1]]
    assert record["model"] == name
    assert record["command"].startswith(f"python analyses/train_toy.py --model {name} --seed {record['seed']}")
    assert path.stat().st_size < 500_000


def test_a_shipped_toy_holds_every_threshold(shipped):
    name, path, model = shipped
    got = evaluate_shipped(model)
    assert TOYS[name].thresholds.unmet(got) == []
    assert got.repeat_loss == pytest.approx(read_record(path)["metrics"]["repeat_loss"], abs=1e-3)


def test_a_shipped_toy_went_through_a_phase_change(shipped):
    _, path, _ = shipped
    record = read_record(path)
    assert 100 < record["phase_change_step"] < record["steps"][0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", TOYS)
def test_retraining_holds_every_threshold(name, seed):
    model, record = train_toy(TOYS[name], seed=seed)
    got = evaluate_shipped(model)
    assert TOYS[name].thresholds.unmet(got) == []
    plateau = [row for row in record.history if 50 <= row["step"] <= phase_change_step(record.history) - 100]
    assert min(row["repeat_loss"] for row in plateau) > 3  # a plateau, and then a drop
    assert max(row["induction"] for row in plateau) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_one_layer_does_not_form_induction(name):
    shallow = replace(TOYS[name], config=TOYS[name].config.replace(n_layers=1))
    _, record = train_toy(shallow, longest_phase_1=800)
    assert phase_change_step(record.history) is None
    assert record.history[-1]["repeat_loss"] > 2.5
    assert max(row["induction"] for row in record.history) < 0.3
