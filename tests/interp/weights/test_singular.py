"""Singular directions as tokens equal a brute-force reading of the dense matrix's."""

from __future__ import annotations

import pytest
import torch

from interp.weights import ov_circuit, singular_directions
from interp.weights.token_circuits import final_directions
from models.errors import InputError
from tests.configurations import CONFIGS, random_model
from tests.oracles.carrying import path


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017", "no-norm"])
def test_directions_are_those_of_the_dense_matrix(name, monkeypatch):
    monkeypatch.setattr("interp.weights.token_circuits.CHUNK", 4)
    model = random_model(CONFIGS[name])
    u, s, vh = torch.linalg.svd(ov_circuit(model, 1, 1).matrix.dense() @ path(model, 1, 2))
    found = singular_directions(model, 1, 1, n_directions=3, n_tokens=11)
    assert [one.value for one in found] == pytest.approx(s[:3].tolist())
    for i, one in enumerate(found):
        reads = (model.W_E @ u[:, i]).tolist()
        writes = (final_directions(model, torch.arange(11)) @ vh[i]).tolist()
        sign = 1 if abs(dict(one.reads)["0"] - reads[0]) < 1e-6 else -1
        assert dict(one.reads) == pytest.approx({str(t): sign * value for t, value in enumerate(reads)})
        assert dict(one.writes) == pytest.approx({str(t): sign * value for t, value in enumerate(writes)})
        assert one.reads == one.reads_against[::-1]
        assert one.writes == one.writes_against[::-1]


def test_no_more_than_there_are():
    model = random_model(CONFIGS["gpt2"])
    assert len(singular_directions(model, 0, 0, n_directions=99)) == model.cfg.d_head
    assert len(singular_directions(model, 0, 0, n_tokens=99)[0].reads) == 11


def test_bfloat16():
    assert singular_directions(random_model(CONFIGS["llama"], dtype=torch.bfloat16), 0, 0)[0].value > 0


def test_refusals():
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match="got n_directions 0 and n_tokens 8; expected 1 or more of each"):
        singular_directions(model, 0, 0, n_directions=0)
    with pytest.raises(InputError, match="out of range"):
        singular_directions(model, 0, 7)
