"""Scenario 10: each rotary layout against complex numbers, and the properties rotary positions exist for."""

from __future__ import annotations

import math

import pytest
import torch

from models.config import DecoderConfig, RotaryScaling
from models.parts.rope import frequencies, rotate, rotation
from tests.configurations import CONFIGS, random_model, random_tokens
from tests.oracles.decoder import angle_per_position, rotated

LAYOUTS = ["half", "interleaved"]


def config(layout="half", rotary_dim=None, **options):
    return DecoderConfig(
        n_layers=1, d_model=8, n_heads=1, d_head=8, d_vocab=5, n_ctx=64, positions="rotary",
        rotary_layout=layout, rotary_dim=rotary_dim, **options,
    )  # fmt: skip


def turned(x, positions, cfg):
    return rotate(x, rotation(frequencies(cfg), positions), cfg.rotary_layout)


def random_vectors(n=16, heads=3, seed=0):
    return torch.randn(2, n, heads, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rotary_dim", [2, 4, 6, 8])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotation_is_multiplication_by_a_complex_number(layout, rotary_dim):
    cfg = config(layout, rotary_dim)
    x = random_vectors()
    expected = torch.stack([rotated(row, cfg) for row in x])
    torch.testing.assert_close(turned(x, torch.arange(16)[None], cfg), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_two_layouts_differ_by_a_permutation_only(layout):
    x, positions = random_vectors(), torch.arange(16)[None]
    pairs = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])  # half's plane i, written interleaved
    half, interleaved = (
        turned(y, positions, config(kind)) for y, kind in ((x, "half"), (x[..., pairs], "interleaved"))
    )
    torch.testing.assert_close(half[..., pairs], interleaved)
    assert not torch.allclose(turned(x, positions, config("half")), turned(x, positions, config("interleaved")))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_depend_on_the_offset_alone(layout):
    cfg = config(layout, 6)
    q, k = random_vectors(1, seed=1), random_vectors(1, seed=2)

    def score(at_q, at_k):
        return (turned(q, torch.tensor([[at_q]]), cfg) * turned(k, torch.tensor([[at_k]]), cfg)).sum(-1)

    for offset in (0, 1, 7):
        near = score(offset, 0)
        for shift in (1, 13, 50):
            torch.testing.assert_close(score(offset + shift, shift), near, rtol=0, atol=1e-4)
    assert not torch.allclose(score(1, 0), score(2, 0), atol=1e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotations_compose_and_keep_lengths(layout):
    cfg = config(layout)
    x = random_vectors(1)
    at = lambda y, pos: turned(y, torch.tensor([[pos]]), cfg)  # noqa: E731
    torch.testing.assert_close(at(at(x, 5), 9), at(x, 14), rtol=0, atol=1e-5)
    torch.testing.assert_close(at(at(x, 5), -5), x, rtol=0, atol=1e-6)
    torch.testing.assert_close(at(x, 23).norm(dim=-1), x.norm(dim=-1), rtol=0, atol=1e-6)
    assert torch.equal(at(x, 0), x)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_partial_rotary_leaves_the_rest_alone(layout):
    x = random_vectors()
    y = turned(x, torch.arange(16)[None], config(layout, 4))
    assert torch.equal(y[..., 4:], x[..., 4:])
    assert not torch.allclose(y[:, 1:, :, :4], x[:, 1:, :, :4])


def test_frequencies():
    theta = frequencies(config(rotary_base=100.0))
    assert theta.dtype == torch.float32
    torch.testing.assert_close(theta, torch.tensor([1.0, 100**-0.25, 100**-0.5, 100**-0.75]))


@pytest.mark.parametrize(
    "scaling",
    [
        RotaryScaling(kind="linear", factor=4.0),
        RotaryScaling(kind="llama3", factor=8.0, original_n_ctx=8192),
        RotaryScaling(kind="llama3", factor=32.0, original_n_ctx=40, low_freq=1.0, high_freq=3.0),
    ],
)
def test_scaled_frequencies(scaling):
    cfg = config(rotary_base=500_000.0 if scaling.original_n_ctx == 8192 else 20.0, rotary_scaling=scaling)
    expected = torch.tensor([angle_per_position(plane, cfg) for plane in range(4)])
    torch.testing.assert_close(frequencies(cfg), expected)
    plain = frequencies(cfg.replace(rotary_scaling=None))
    ratio = frequencies(cfg) / plain
    assert math.isclose(ratio.min(), 1 / scaling.factor, rel_tol=1e-5)
    assert (ratio.max() == 1) == (scaling.kind == "llama3")


@pytest.mark.parametrize("name", ["attn-only-bare", "llama", "interleaved-gqa", "neox"])
def test_a_rotary_models_scores_move_with_the_tokens(name):
    """Shifting all positions by padding on the left changes nothing; only a constant in the stream would show."""
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg, 1, 6)
    shifted = torch.tensor([[1, 1, 1, *tokens[0].tolist()]])
    score = "blocks.0.attn.hook_attn_scores"
    _, cache = model.run_with_cache(tokens, names_filter=score)
    _, later = model.run_with_cache(shifted, names_filter=score)
    torch.testing.assert_close(later[score][..., 3:, 3:], cache[score], rtol=0, atol=1e-5)
