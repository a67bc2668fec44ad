"""Copying scores equal their definitions, and tell a copying head from a random and from an inverting one."""

from __future__ import annotations

import pytest
import torch

from interp.weights import eigenvalue_copying_scores, full_ov_circuit, output_copying_scores, ov_circuit
from interp.weights.token_circuits import final_directions
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from tests.configurations import CONFIGS, random_model
from tests.oracles.carrying import path


@pytest.mark.parametrize("name", CONFIGS)
def test_eigenvalues_are_those_of_the_whole_vocabularys_matrix(name, monkeypatch):
    monkeypatch.setattr("interp.weights.token_circuits.CHUNK", 4)
    model = random_model(CONFIGS[name])
    every = torch.arange(model.cfg.d_vocab)
    scores = eigenvalue_copying_scores(model)
    assert scores.shape == (model.cfg.n_layers, model.cfg.n_heads)
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            ov = ov_circuit(model, layer, head).matrix.dense() @ path(model, layer, model.cfg.n_layers)
            directions = final_directions(model, every)
            values = torch.linalg.eigvals(model.W_E @ ov @ (directions - directions.mean(0)).T)
            expected = values.sum().real / values.abs().sum()
            torch.testing.assert_close(scores[layer, head], expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "no-norm", "transformer-2017"])
def test_shares_are_those_of_the_token_circuit(name):
    model = random_model(CONFIGS[name])
    every = torch.arange(11)
    scores = output_copying_scores(model, n_tokens=11)
    for layer in range(model.cfg.n_layers):
        for head in range(model.cfg.n_heads):
            bias = ov_circuit(model, layer, head).bias @ path(model, layer, model.cfg.n_layers)
            logits = full_ov_circuit(model, layer, head, every).values - bias @ final_directions(model, every).T
            shares = []
            for i, row in enumerate(logits):
                raised = (row - row.mean()).clamp(min=0)
                shares.append(raised[i] / raised.sum())
            torch.testing.assert_close(scores[layer, head], 2 * torch.stack(shares).mean() - 1)


def bare(sign: float) -> HookedDecoder:
    """Return a model whose only head writes ``sign`` times what it reads, and whose unembedding is the embedding."""
    cfg = DecoderConfig(
        n_layers=1, d_model=32, n_heads=1, d_vocab=40, n_ctx=4, attn_only=True, norm="none", positions="none", tied=True
    )
    model = HookedDecoder(cfg)
    with torch.no_grad():
        model.blocks[0].attn.v.weight.copy_(torch.eye(32))
        model.blocks[0].attn.o.weight.copy_(sign * torch.eye(32))
    return model


def test_a_copying_head_scores_high_and_an_inverting_one_low():
    assert eigenvalue_copying_scores(bare(1.0)).item() == pytest.approx(1, abs=1e-4)
    assert eigenvalue_copying_scores(bare(-1.0)).item() == pytest.approx(-1, abs=1e-4)
    assert output_copying_scores(bare(1.0)).item() > -0.2
    assert output_copying_scores(bare(-1.0)).item() == pytest.approx(-1, abs=1e-4)


def test_random_heads_score_about_nothing():
    cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=60, n_ctx=8, norm_bias=False)
    model = HookedDecoder(cfg, seed=2)
    assert eigenvalue_copying_scores(model).abs().max() < 0.35
    assert eigenvalue_copying_scores(model).mean().abs() < 0.12
    assert (output_copying_scores(model) - (2 / 25 - 1)).abs().max() < 0.15


def test_the_seed_decides():
    model = random_model(CONFIGS["gpt2"])
    first, again, other = (output_copying_scores(model, n_tokens=5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_refusals():
    model = random_model(CONFIGS["gpt2"])
    for n in (1, 12):
        with pytest.raises(InputError, match=f"n_tokens is {n}; expected 2 to 11, the size of this vocabulary"):
            output_copying_scores(model, n_tokens=n)


@pytest.mark.parametrize("scores", [eigenvalue_copying_scores, lambda model: output_copying_scores(model, n_tokens=5)])
def test_half_precision(scores):
    for name in ("gpt2", "llama"):
        assert scores(random_model(CONFIGS[name], dtype=torch.bfloat16)).dtype == torch.float32
