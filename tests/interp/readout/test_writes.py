"""The steps that writes and attributions are made of: their order, their names, and the frozen norms between."""

from __future__ import annotations

import pytest
import torch

from interp.readout.writes import NormStep, Write, hooks_needed, norm_step, steps
from models.errors import CacheError, InputError
from tests.configurations import CONFIGS, random_model, random_tokens

BY = ("component", "head", "neuron")


def run(name: str, by: str = "component"):
    cfg = CONFIGS[name]
    model = random_model(cfg)
    _, cache = model.run_with_cache(random_tokens(cfg), names_filter=hooks_needed(model, by))
    return model, cache


def names(model, cache, by, layer, **kwargs):
    found = steps(model, cache, by, layer, **kwargs)
    return [label for step in found for label in (step.labels if isinstance(step, Write) else [f"norm: {step.label}"])]


def test_steps_come_in_the_order_of_the_forward_pass():
    model, cache = run("gpt2", "head")
    heads = ["L0H0", "L0H1", "L0 attn bias"]
    assert names(model, cache, "head", 0) == ["embed", "pos_embed"]
    assert names(model, cache, "head", 0, mlp_input=True) == ["embed", "pos_embed", *heads]
    assert names(model, cache, "head", 1) == ["embed", "pos_embed", *heads, "L0 mlp"]
    assert len(names(model, cache, "head", 2)) == 2 + 2 * 4


def test_post_norms_stand_between_the_writes():
    model, cache = run("transformer-2017")
    assert names(model, cache, "component", 1) == [
        "embed", "pos_embed", "L0 attn", "norm: L0 ln1 bias", "L0 mlp", "norm: L0 ln2 bias"
    ]  # fmt: skip
    assert names(model, cache, "component", 1, mlp_input=True)[-2:] == ["L1 attn", "norm: L1 ln1 bias"]


def test_a_parallel_mlp_reads_what_attention_reads():
    model, cache = run("gptj")
    assert names(model, cache, "component", 1, mlp_input=True) == names(model, cache, "component", 1)


@pytest.mark.parametrize("name", ["gpt2", "llama", "attn-only", "transformer-2017", "reglu-gqa"])
@pytest.mark.parametrize("by", BY)
def test_a_dot_product_is_that_of_the_vectors(name, by):
    model, cache = run(name, by)
    direction = torch.randn(2, 6, model.cfg.d_model, dtype=torch.float64)
    for step in steps(model, cache, by, model.cfg.n_layers):
        if isinstance(step, Write):
            assert step.vectors().shape == (len(step.labels), 2, 6, model.cfg.d_model)
            torch.testing.assert_close(step.along(direction), (step.vectors() * direction).sum(-1))


@pytest.mark.parametrize("name", ["transformer-2017", "post-rms-rotary"])
def test_a_frozen_norm_is_the_norm_at_its_run(name):
    model, cache = run(name)
    norm, x = model.blocks[0].ln1, cache["hook_embed"] + cache.get("hook_pos_embed", 0) + cache["attn_out", 0]
    step = norm_step(norm, "a", cache["scale", 0, "ln1"])
    bias = 0 if step.bias is None else step.bias
    torch.testing.assert_close(step.linear(x) + bias, norm(x))
    direction = torch.randn_like(x)
    torch.testing.assert_close((step.pull_back(direction) * x).sum(-1), (direction * step.linear(x)).sum(-1))


@pytest.mark.parametrize("by", BY)
def test_a_cache_of_the_hooks_needed_is_enough_and_none_is_for_nothing(by):
    model, cache = run("transformer-2017", by)
    list(steps(model, cache, by, 2))
    assert set(cache) == set(hooks_needed(model, by))
    wanted = {"component": "hook_attn_out", "head": "hook_z", "neuron": "hook_post"}[by]
    small = type(cache)({name: value for name, value in cache.items() if not name.endswith(wanted)})
    with pytest.raises(CacheError, match=wanted):
        list(steps(model, small, by, 2))


def test_another_by_is_refused():
    with pytest.raises(InputError, match="by is 'layer'; expected 'component', 'head' or 'neuron'"):
        hooks_needed(random_model(CONFIGS["gpt2"]), "layer")


def test_half_precision_is_raised():
    cfg = CONFIGS["transformer-2017"]
    model = random_model(cfg, dtype=torch.bfloat16)
    _, cache = model.run_with_cache(random_tokens(cfg))
    for by in BY:
        for step in steps(model, cache, by, 2):
            if isinstance(step, NormStep):
                assert step.gain.dtype == step.scale.dtype == torch.float32
            else:
                assert step.vectors().dtype == torch.float32
