"""Composition equals the dense formula, its nulls hold on random weights, and a planted link stands out."""

from __future__ import annotations

import pytest
import torch

from interp.sites import Head
from interp.weights import composition_scores, ov_circuit, qk_circuit, virtual_head
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from tests.configurations import CONFIGS, random_model
from tests.oracles.carrying import path


def dense_score(model, kind, earlier, later, relative):
    """Return the score by its definition, from matrices written out."""
    ov = ov_circuit(model, *earlier).matrix.dense() @ path(model, earlier[0], later[0])
    if kind == "V":
        read = ov_circuit(model, *later).matrix.dense() @ path(model, later[0], later[0] + 1)
    else:
        read = qk_circuit(model, *later, relative=relative).matrix.dense()
        read = read.T if kind == "K" else read
    return (ov @ read).norm() / (ov.norm() * read.norm())


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "gptj", "attn-only-bare", "transformer-2017"])
def test_scores_equal_the_dense_formula(name, kind):
    model = random_model(CONFIGS[name])
    relative = 2 if model.cfg.positions == "rotary" and kind != "V" else None
    found = composition_scores(model, kind, relative=relative, n_rotations=2)
    assert found.relative == relative
    for h1 in range(model.cfg.n_heads):
        for h2 in range(model.cfg.n_heads):
            expected = dense_score(model, kind, (0, h1), (1, h2), relative)
            torch.testing.assert_close(found.scores[0, h1, 1, h2], expected)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_a_write_by_hand_reaches_what_the_kind_says(kind):
    """The earlier head writes along one direction, which one input of the later head reads and no other does."""
    cfg = DecoderConfig(
        n_layers=2, d_model=8, n_heads=1, d_head=2, d_vocab=5, n_ctx=4, attn_only=True, norm="none", positions="none"
    )
    model = HookedDecoder(cfg)
    inputs = {"Q": "q", "K": "k", "V": "v"}
    with torch.no_grad():
        model.blocks[0].attn.o.weight.zero_()[3, 0] = 1.0
        for other, linear in inputs.items():
            weight = getattr(model.blocks[1].attn, linear).weight.zero_()
            weight[0, 3 if other == kind else 5] = 1.0
    for asked in inputs:
        score = composition_scores(model, asked, n_rotations=2).scores[0, 0, 1, 0]
        assert float(score) == pytest.approx(1.0 if asked == kind else 0.0, abs=1e-6)


def test_nulls_on_random_weights():
    cfg = DecoderConfig(n_layers=3, d_model=64, n_heads=4, d_vocab=10, n_ctx=8)
    found = composition_scores(HookedDecoder(cfg, seed=3), "K", n_rotations=16)
    assert found.dimension_null == 63**-0.5  # of 64 directions a LayerNorm takes one
    real = found.scores.isfinite()
    assert found.scores[real].mean().item() == pytest.approx(63**-0.5, rel=0.1)
    assert found.null_mean[real].mean().item() == pytest.approx(63**-0.5, rel=0.1)
    assert found.z[real].mean().abs() < 0.6
    assert found.z[real].abs().max() < 8


def test_a_planted_link_stands_out():
    cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_vocab=10, n_ctx=8)
    model = HookedDecoder(cfg)
    with torch.no_grad():
        attn = model.blocks[1].attn
        attn.k.weight[2 * 16 : 3 * 16] = model.blocks[0].attn.W_O[1]
    found = composition_scores(model, "K")
    best = found.to_frame().iloc[0]
    assert (best["earlier"], best["later"]) == ("L0H1", "L1H2")
    assert best["score"] > 2 * found.dimension_null
    assert best["z"] > 10
    assert composition_scores(model, "Q").scores[0, 1, 1, 2] < 0.2


def test_only_later_heads_and_only_those_asked_for():
    model = random_model(CONFIGS["gpt2"].replace(n_layers=3))
    whole, part = composition_scores(model, "K"), composition_scores(model, "K", later=["L2H1", (1, 0)])
    for l1 in range(3):
        for l2 in range(3):
            assert whole.scores[l1, :, l2].isfinite().all() == (l1 < l2)
    asked = part.scores.isfinite()
    assert asked.nonzero()[:, 2:].unique(dim=0).tolist() == [[1, 0], [2, 1]]
    for got, expected in zip(
        (part.scores, part.null_mean, part.z), (whole.scores, whole.null_mean, whole.z), strict=True
    ):
        torch.testing.assert_close(got[asked], expected[asked])
    assert len(part.to_frame()) == 2 + 4


def test_the_seed_decides_and_the_global_state_stays():
    model = random_model(CONFIGS["llama"])
    state = torch.get_rng_state()
    first, again, other = (composition_scores(model, "V", seed=seed).null_mean[0, 0, 1] for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_rotary_circuits_are_taken_one_step_apart_by_default():
    model = random_model(CONFIGS["llama"])
    default = composition_scores(model, "K")
    assert default.relative == 1
    assert composition_scores(model, "V").relative is None
    seen = default.scores.isfinite()
    torch.testing.assert_close(default.scores[seen], composition_scores(model, "K", relative=1).scores[seen])
    assert not torch.allclose(default.scores[seen], composition_scores(model, "K", relative=3).scores[seen])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision(dtype):
    found = composition_scores(random_model(CONFIGS["llama"], dtype=dtype), "K")
    assert found.scores.dtype == torch.float32


def test_a_virtual_head_is_one_after_the_other():
    model = random_model(CONFIGS["reglu-gqa"])
    virtual = virtual_head(model, "L0H1", Head(1, 2))
    wrote = ov_circuit(model, 0, 1).matrix.dense() @ path(model, 0, 1)
    expected = wrote @ ov_circuit(model, 1, 2).matrix.dense() @ path(model, 1, 2)
    torch.testing.assert_close(virtual.dense(), expected)
    assert virtual.rank == model.cfg.d_head
    with pytest.raises(InputError, match="L1H0 does not write before L1H2 reads; name the earlier head first"):
        virtual_head(model, (1, 0), "1.2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "k"}, "kind is 'k'; expected 'Q', 'K' or 'V'"),
        ({"n_rotations": 1}, "n_rotations is 1; a spread needs at least 2"),
        ({"later": []}, "later is empty"),
        ({"later": ["L2H0"]}, "layer 2 in 'L2H0' is out of range"),
        ({"relative": 1}, "this model's positions rotate nothing"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(InputError, match=message):
        composition_scores(random_model(CONFIGS["gpt2"]), **arguments)


@pytest.mark.smollm2
def test_smollm2(smollm2):
    later = ["L17H3", "L17H4", "L17H5", "L18H6", "L18H7"]
    found = composition_scores(smollm2, "K", later=later, n_rotations=4)
    expected = dense_score(smollm2, "K", (16, 0), (18, 6), 1)
    torch.testing.assert_close(found.scores[16, 0, 18, 6], expected, rtol=1e-3, atol=1e-5)
    assert found.dimension_null == pytest.approx(0.0417, abs=1e-4)
