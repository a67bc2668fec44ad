"""Positional scores are those of a model whose streams carry nothing but their position."""

from __future__ import annotations

import math

import pytest
import torch

from interp.detectors import previous_token
from interp.weights import positional_qk
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from tests.configurations import CONFIGS, random_model

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("name", ["gpt2", "learned-mqa", "no-norm-parallel", "transformer-2017", "geglu"])
def test_added_positions(name):
    """With all embeddings zero the stream is the position alone."""
    model = random_model(CONFIGS[name])
    with torch.no_grad():
        model.embed.W_E.zero_()
    _, cache = model.run_with_cache(torch.zeros(1, 7, dtype=torch.long))
    for head in range(model.cfg.n_heads):
        scores = positional_qk(model, 0, head, n_positions=7)
        torch.testing.assert_close(scores, cache["attn_scores", 0][0, head], **CLOSE)


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "interleaved-gqa", "gptj", "neox", "attn-only-bare", "qwen3", "flat-qk-norm", "by-layer"]
)
def test_rotary_positions(name):
    """With one token everywhere the first layer's streams are alike, and differ by what is rotated alone."""
    model = random_model(CONFIGS[name])
    _, cache = model.run_with_cache(torch.full((1, 7), 3))
    key = ("normalized", 0, "ln1") if model.cfg.norm != "none" else ("resid_pre", 0)
    for head in range(model.cfg.n_heads):
        scores = positional_qk(model, 0, head, n_positions=7, stream=cache[key][0, 0])
        torch.testing.assert_close(scores, cache["attn_scores", 0][0, head], **CLOSE)


def test_by_default_the_rotary_stream_is_the_mean_embedding():
    model = random_model(CONFIGS["llama"])
    norm = model.blocks[0].ln1
    centred, scale = norm.statistics(model.W_E)
    mean = (centred / scale).mean(0)
    torch.testing.assert_close(positional_qk(model, 0, 0), positional_qk(model, 0, 0, stream=mean))


def test_a_previous_token_head_shows_below_the_diagonal():
    """Positions as points of a circle; the query turns by one step and meets the key before it."""
    n = 16
    cfg = DecoderConfig(n_layers=1, d_model=4, n_heads=1, d_vocab=3, n_ctx=n, norm="none", attn_only=True)
    model = HookedDecoder(cfg)
    angle = 2 * math.pi * torch.arange(n) / n
    step = 2 * math.pi / n
    turn = torch.tensor([[math.cos(step), -math.sin(step)], [math.sin(step), math.cos(step)]])
    with torch.no_grad():
        model.pos_embed.W_pos.copy_(torch.stack([angle.cos(), angle.sin(), 0 * angle, 0 * angle], 1))
        model.blocks[0].attn.q.weight.zero_()[:2, :2] = 400 * turn.mT
        model.blocks[0].attn.k.weight.zero_()[:2, :2] = torch.eye(2)
    pattern = positional_qk(model, 0, 0).softmax(-1)
    assert previous_token.score(pattern[None, None], 0).item() > 0.95


def test_what_a_query_cannot_see_is_minus_infinity_and_n_ctx_is_the_end():
    scores = positional_qk(random_model(CONFIGS["gpt2"]), 1, 0)
    assert scores.shape == (12, 12)
    assert (scores.triu(1)[0, 1:] == -torch.inf).all()
    assert scores.tril().isfinite().all()


def test_refusals():
    with pytest.raises(InputError, match="this model has no positions"):
        positional_qk(random_model(CONFIGS["no-positions"]), 0, 0)
    with pytest.raises(InputError, match="positions are vectors in the stream; leave stream out"):
        positional_qk(random_model(CONFIGS["gpt2"]), 0, 0, stream=torch.ones(8))
    with pytest.raises(InputError, match="out of range"):
        positional_qk(random_model(CONFIGS["gpt2"]), 0, 5)
