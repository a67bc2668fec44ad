"""Fresh weights: their spread is what the table says, the seed alone decides them, the global state is left alone."""

from __future__ import annotations

import math

import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder

WIDE = DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=200, n_ctx=64, gated=True, unembed_bias=True)


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("gpt2", {"E": 0.02, "pos": 0.02, "Q": 0.02, "O": 0.01, "gate": 0.02, "in": 0.02, "out": 0.01, "U": 0.02}),
        ("fan_in", {"E": 0.1, "pos": 0.1, "Q": 1 / 8, "O": 1 / 16, "gate": 1 / 8, "in": 1 / 8, "out": 0.0, "U": 1 / 8}),
        (
            "torch",
            {"E": 1.0, "pos": 1.0, "U": 1 / 8 / math.sqrt(3), "out": 1 / 16 / math.sqrt(3)}
            | dict.fromkeys(["Q", "O", "gate", "in"], 1 / 8 / math.sqrt(3)),
        ),
    ],
)
def test_standard_deviations(init, expected):
    model = HookedDecoder(WIDE.replace(init=init))
    for name, std in expected.items():
        assert getattr(model, f"W_{name}").std().item() == pytest.approx(std, rel=0.05), name
    for name in ("b_Q", "b_K", "b_V", "b_O", "b_in", "b_out"):
        assert bool(getattr(model, name).any()) == (init == "torch"), name
    assert all((block.ln1.w == 1).all() and not block.ln1.b.any() for block in model.blocks)


def test_fan_in_starts_at_the_uniform_loss():
    model = HookedDecoder(WIDE.replace(init="fan_in"))
    tokens = torch.randint(200, (4, 64), generator=torch.Generator().manual_seed(0))
    uniform = math.log(200)
    assert model(tokens, "loss").item() == pytest.approx(uniform, rel=0.15)


@pytest.mark.parametrize("init", ["gpt2", "fan_in", "torch"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_seed_decides(init, tied):
    cfg = WIDE.replace(init=init, tied=tied)
    state = torch.get_rng_state()
    one, same, other = (HookedDecoder(cfg, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.W_Q, other.W_Q)
    assert (one.unembed.weight is one.embed.W_E) == tied


def test_deeper_models_write_less():
    shallow, deep = (HookedDecoder(WIDE.replace(n_layers=n)).W_O.std().item() for n in (1, 9))
    assert shallow / deep == pytest.approx(3, rel=0.05)
