"""What leaves a model's function as it is leaves every reading of its weights as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from interp.readout.logit_attribution import logit_attribution
from interp.sites import Head
from interp.weights import (
    composition_scores,
    eigenvalue_copying_scores,
    full_ov_circuit,
    full_qk_circuit,
    link_effects,
    memories,
    output_copying_scores,
    positional_qk,
    singular_directions,
    virtual_head,
)
from models import HookedDecoder
from models.loading import load_model
from tests.configurations import CONFIGS, random_model

TOKENS = torch.tensor([[1, 5, 3, 7, 1, 5, 3, 7], [2, 9, 4, 0, 2, 9, 4, 0]])
LAYER_NORM = ["gpt2", "learned-mqa", "gptj", "attn-only", "no-positions", "geglu", "transformer-2017", "post-attn-only"]


def readings(model: HookedDecoder) -> Iterator[tuple[str, Tensor]]:
    """Give every reading of the weights, and those of a run that is read through frozen norms."""
    rotary = model.cfg.positions == "rotary"
    relative = 1 if rotary else None
    for kind in ("Q", "K", "V"):
        found = composition_scores(model, kind, n_rotations=3)
        for name in ("scores", "null_mean", "null_sd"):
            yield f"{kind} composition, {name}", getattr(found, name)[0, :, 1]
    yield "copying by eigenvalues", eigenvalue_copying_scores(model)
    yield "copying by outputs", output_copying_scores(model, n_tokens=8)
    yield "OV between tokens", full_ov_circuit(model, 0, 1, TOKENS[0]).values
    yield "QK between tokens", full_qk_circuit(model, 1, 1, TOKENS[0], relative=relative).values
    virtual = virtual_head(model, "L0H0", "L1H1")
    yield "virtual head", torch.stack([virtual.norm(), *virtual.eigenvalues().abs().sort().values])
    yield "singular values", torch.tensor([one.value for one in singular_directions(model, 0, 1)])
    for read in ("reads", "writes"):
        tables = [dict(getattr(one, read)) for one in singular_directions(model, 0, 1, n_directions=1, n_tokens=99)]
        yield (
            f"what a singular direction {read}",
            torch.tensor([table[t] for table in tables for t in sorted(table)]).abs(),
        )
    if model.cfg.positions != "none" and not rotary:
        yield "scores by position", positional_qk(model, 1, 0).tril()
    if not model.cfg.attn_only:
        for memory in memories(model, 0, [0, 3], n_tokens=99):
            for which in ("key_tokens", "value_tokens"):
                table = dict(getattr(memory, which))
                yield f"{memory.name} {which}", torch.tensor([table[token] for token in sorted(table)])
    found = logit_attribution(model, TOKENS, [3, 4], [5, 6], by="head")
    heads = [i for i, label in enumerate(found.labels) if "H" in label]
    yield "direct attributions of heads", found.values[heads]
    for route in ("K", "Q"):
        effects, _ = link_effects(model, TOKENS, [(Head(0, 0), Head(1, 1)), (Head(0, 1), Head(1, 0))], route)
        yield f"links through {route}", torch.stack(list(effects.values()))


@torch.no_grad()
def written_along_ones(model: HookedDecoder) -> None:
    """Let everything write along (1, ..., 1) too, which a LayerNorm takes away."""
    generator = torch.Generator().manual_seed(0)

    def add(weight: Tensor | None, d_model_axis: int) -> None:
        if weight is not None:
            shape = [1 if axis == d_model_axis % weight.ndim else size for axis, size in enumerate(weight.shape)]
            weight += torch.randn(shape, generator=generator).to(weight)

    for block in model.blocks:
        add(block.attn.o.weight, 0)
        add(block.attn.o.bias, 0)
        if not model.cfg.attn_only:
            add(block.mlp.out.weight, 0)
            add(block.mlp.out.bias, 0)


@torch.no_grad()
def unembedded_along_a_vector(model: HookedDecoder) -> None:
    """Let every token's logit rise alike, of which no softmax knows."""
    model.unembed.weight += torch.randn(model.cfg.d_model, generator=torch.Generator().manual_seed(0)).to(model.W_U)


@torch.no_grad()
def values_biased(model: HookedDecoder) -> None:
    """Let b_V write what b_O wrote: every query's weights sum to 1."""
    for block in model.blocks:
        block.attn.v.bias += 1.0
        extra = torch.ones(model.cfg.n_kv_heads, model.cfg.d_head).repeat_interleave(model.cfg.group_size, 0)
        block.attn.o.bias -= torch.einsum("hd,hdm->m", extra.to(block.attn.W_O), block.attn.W_O)


def changed(model: HookedDecoder, change: Callable[[HookedDecoder], None]) -> HookedDecoder:
    other = deepcopy(model)
    change(other)
    before, after = (one(TOKENS[:, :8]).log_softmax(-1) for one in (model, other))
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)  # the model is as it was
    return other


@pytest.mark.parametrize("name", LAYER_NORM)
def test_b13_what_is_written_along_ones_changes_no_reading_through_a_layer_norm(name: str) -> None:
    model = random_model(CONFIGS[name])
    other = changed(model, written_along_ones)
    for (what, before), (_, after) in zip(readings(model), readings(other), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5, msg=lambda text, what=what: f"{what}: {text}")


def test_b13_the_toy_s_k_composition_stays_where_its_heads_write_along_ones() -> None:
    toy = load_model("toy")
    before = composition_scores(toy, "K", n_rotations=2).scores
    with torch.no_grad():
        for block in toy.blocks:
            block.attn.o.weight += 0.5
    after = composition_scores(toy, "K", n_rotations=2).scores
    torch.testing.assert_close(after[0, :, 1], before[0, :, 1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "no-norm"])
def test_b13_where_no_norm_takes_the_mean_it_is_read(name: str) -> None:
    model = random_model(CONFIGS[name])
    other = deepcopy(model)
    written_along_ones(other)
    assert not torch.allclose(model(TOKENS), other(TOKENS), atol=1e-3)
    before, after = (composition_scores(one, "K", n_rotations=2).scores[0, :, 1] for one in (model, other))
    assert not torch.allclose(before, after, atol=1e-3)


@pytest.mark.parametrize("name", ["learned-mqa", "llama", "no-norm"])
def test_b13_what_raises_all_logits_alike_is_no_copying(name: str) -> None:
    model = random_model(CONFIGS[name])
    other = changed(model, unembedded_along_a_vector)
    for score in (eigenvalue_copying_scores, lambda one: output_copying_scores(one, n_tokens=8)):
        torch.testing.assert_close(score(other), score(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "learned-mqa", "transformer-2017"])
def test_b13_what_a_head_writes_whatever_it_attends_to_is_no_copying(name: str) -> None:
    model = random_model(CONFIGS[name])
    other = changed(model, values_biased)
    scores = [output_copying_scores(one, n_tokens=8) for one in (model, other)]
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_b13_gains_count_where_a_norm_reads(name: str) -> None:
    """Doubling a norm's gain and halving what reads it is the same model."""
    model = random_model(CONFIGS[name])

    @torch.no_grad()
    def shifted(one: HookedDecoder) -> None:
        factors = torch.rand(one.cfg.d_model, generator=torch.Generator().manual_seed(1)).to(one.W_E) + 0.5
        for block in one.blocks:
            block.ln1.w *= factors
            if block.ln1.b is not None:
                block.ln1.b *= factors
            for linear in (block.attn.q, block.attn.k, block.attn.v):
                linear.weight /= factors

    other = changed(model, shifted)
    for (what, before), (_, after) in zip(readings(model), readings(other), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5, msg=lambda text, what=what: f"{what}: {text}")
