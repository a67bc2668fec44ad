"""Promise 8 and scenario 15: unused hooks cost nothing, and a run stops as soon as it may."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from models.errors import HookNeverFired, InputError
from models.parts.block import Block
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.fixture
def fused_calls(monkeypatch):
    calls = Counter()
    fused = F.scaled_dot_product_attention

    def counted(*args, **kwargs):
        calls["fused"] += 1
        return fused(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    return calls


@pytest.mark.parametrize("config", CONFIGS)
def test_the_fused_kernel_runs_unless_scores_or_pattern_are_hooked(config, fused_calls):
    model = random_model(CONFIGS[config])
    tokens = random_tokens(model.cfg)
    n_layers = model.cfg.n_layers
    model(tokens)
    assert fused_calls["fused"] == n_layers
    fused_calls.clear()
    elsewhere = lambda name: not name.endswith(("attn_scores", "pattern"))  # noqa: E731
    model.run_with_cache(tokens, names_filter=elsewhere)
    model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.attn.hook_z", lambda value, hook: value)])
    model.run_with_hooks(tokens, bwd_hooks=[("blocks.0.attn.hook_z", lambda value, hook: value)])
    assert fused_calls["fused"] == 3 * n_layers
    fused_calls.clear()
    model.run_with_cache(tokens, names_filter="blocks.0.attn.hook_pattern")
    assert fused_calls["fused"] == n_layers - 1
    fused_calls.clear()
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :2] = False
    model(tokens, attention_mask=real)
    model.generate(tokens, 2)
    assert fused_calls["fused"] == 3 * n_layers


@pytest.mark.parametrize("config", ["llama", "gpt2"])
def test_readers_elsewhere_do_not_even_copy_per_head_results(config, monkeypatch):
    model = random_model(CONFIGS[config])
    monkeypatch.setattr(type(model.blocks[0].attn), "results", lambda *args: pytest.fail("results were computed"))
    model.run_with_cache(random_tokens(model.cfg), names_filter=lambda name: "result" not in name)


# -- scenario 15 -----------------------------------------------------------------------------------------------------


@pytest.fixture
def block_calls(monkeypatch):
    calls = Counter()
    forward = Block.forward

    def counted(self, *args, **kwargs):
        calls["blocks"] += 1
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Block, "forward", counted)
    return calls


DEEP = random_model(CONFIGS["gpt2"].replace(n_layers=5))


@pytest.mark.parametrize(
    ("names", "n_blocks"),
    [
        ("hook_embed", 0),
        (["hook_embed", "hook_pos_embed"], 0),
        ("blocks.0.hook_resid_pre", 1),
        ("blocks.1.attn.hook_pattern", 2),
        (lambda name: ".3." in name, 4),
        ("blocks.4.hook_resid_post", 5),
        ("ln_final.hook_scale", 5),
        (None, 5),
    ],
)
def test_a_run_for_the_cache_alone_stops_after_the_last_layer_asked_for(names, n_blocks, block_calls, monkeypatch):
    monkeypatch.setattr(type(DEEP.unembed), "forward", lambda *args: pytest.fail("the unembedding was computed"))
    tokens = random_tokens(DEEP.cfg)
    result, cache = DEEP.run_with_cache(tokens, return_type=None, names_filter=names)
    assert block_calls["blocks"] == n_blocks
    assert len(cache) == len(DEEP._select(names))
    assert result is None or result.shape == (2, 6, 8)


@pytest.mark.parametrize("stop", range(-5, 6))
def test_stop_at_layer(stop, block_calls):
    tokens = random_tokens(DEEP.cfg)
    _, full = DEEP.run_with_cache(tokens)
    block_calls.clear()
    layer = stop if stop >= 0 else 5 + stop
    x = DEEP(tokens, stop_at_layer=stop)
    assert block_calls["blocks"] == layer
    expected = full["resid_pre", layer] if layer < 5 else full["resid_post", 4]
    torch.testing.assert_close(x, expected)
    x, cache = DEEP.run_with_cache(tokens, stop_at_layer=stop)
    torch.testing.assert_close(x, expected)
    before = [
        name
        for name in DEEP.hook_names()
        if not name.startswith("ln_final") and (not name.startswith("blocks") or int(name.split(".")[1]) < layer)
    ]
    assert list(cache) == before
    assert all(torch.equal(cache[name], full[name]) for name in before)


@pytest.mark.parametrize("stop", [6, -6, 100])
def test_stop_at_a_layer_that_is_not_there(stop):
    with pytest.raises(InputError, match=f"stop_at_layer is {stop}; this model has 5 layers"):
        DEEP(random_tokens(DEEP.cfg), stop_at_layer=stop)


def test_a_named_hook_beyond_the_stop_raises():
    with pytest.raises(HookNeverFired, match=r"blocks\.3\.hook_resid_pre"):
        DEEP.run_with_cache(random_tokens(DEEP.cfg), names_filter="blocks.3.hook_resid_pre", stop_at_layer=3)
