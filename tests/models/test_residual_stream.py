"""Scenarios 6 and 9: what is written adds up to the stream, wherever the equations say so, in every dtype."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.configurations import CONFIGS, random_model, random_tokens

PRE = [name for name, cfg in CONFIGS.items() if cfg.norm_position == "pre"]
POST = [name for name, cfg in CONFIGS.items() if cfg.norm_position == "post"]


@pytest.mark.parametrize("name", PRE)
def test_pre_norm_blocks_add(name):
    model = random_model(CONFIGS[name])
    _, cache = model.run_with_cache(random_tokens(model.cfg))
    stream = cache["hook_embed"] + cache.get("hook_pos_embed", 0)
    for layer in range(model.cfg.n_layers):
        torch.testing.assert_close(cache["resid_pre", layer], stream)
        results = cache["result", layer].sum(2) + model.b_O[layer]
        torch.testing.assert_close(cache["attn_out", layer], results)
        stream = stream + cache["attn_out", layer]
        if ("resid_mid", layer) in cache:
            torch.testing.assert_close(cache["resid_mid", layer], stream)
        if not model.cfg.attn_only:
            neurons = cache["post", layer] @ model.W_out[layer] + model.b_out[layer]
            torch.testing.assert_close(cache["mlp_out", layer], neurons)
            stream = stream + cache["mlp_out", layer]
        torch.testing.assert_close(cache["resid_post", layer], stream)


@pytest.mark.parametrize("name", POST)
def test_post_norm_blocks_normalise_the_sum(name):
    model = random_model(CONFIGS[name])
    _, cache = model.run_with_cache(random_tokens(model.cfg))
    torch.testing.assert_close(cache["resid_pre", 0], cache["hook_embed"] + cache.get("hook_pos_embed", 0))
    for layer, block in enumerate(model.blocks):
        mid = block.ln1(cache["resid_pre", layer] + cache["attn_out", layer])
        if not model.cfg.attn_only:
            torch.testing.assert_close(cache["resid_mid", layer], mid)
            mid = block.ln2(mid + cache["mlp_out", layer])
        torch.testing.assert_close(cache["resid_post", layer], mid)
        assert not torch.allclose(cache["resid_post", layer], cache["resid_pre", layer] + cache["attn_out", layer])


@pytest.mark.parametrize("name", CONFIGS)
def test_which_stream_each_sublayer_reads(name):
    model = random_model(CONFIGS[name])
    _, cache = model.run_with_cache(random_tokens(model.cfg))
    for layer in range(model.cfg.n_layers):
        pre = cache["resid_pre", layer]
        assert torch.equal(cache["attn_in", layer], pre)
        for which in ("q_input", "k_input", "v_input"):
            assert torch.equal(cache[which, layer], pre[:, :, None].expand_as(cache[which, layer]))
        if not model.cfg.attn_only:
            assert torch.equal(cache["mlp_in", layer], pre if model.cfg.parallel else cache["resid_mid", layer])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CONFIGS)
def test_low_precision(name, dtype):
    exact = random_model(CONFIGS[name])
    with torch.no_grad():  # sums of a few numbers near 1, so that one rounding is about eps
        for parameter in exact.parameters():
            parameter.mul_(0.5)
    model = copy.deepcopy(exact).to(dtype)
    tokens = random_tokens(model.cfg)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :2] = False
    logits, cache = model.run_with_cache(tokens, attention_mask=real)
    assert logits.dtype == model.dtype == dtype
    assert logits.isfinite().all()
    wide = [hook for hook in cache if hook.endswith(("hook_scale", "hook_attn_scores"))]
    assert {cache[hook].dtype for hook in cache if hook not in wide} == {dtype}
    assert {cache[hook].dtype for hook in wide} == {torch.float32}
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(logits[real].double(), exact(tokens, attention_mask=real)[real], rtol=0, atol=40 * eps)
    torch.testing.assert_close(model(tokens, attention_mask=real), logits, rtol=0, atol=20 * eps)
    if exact.cfg.norm_position == "pre":
        names = ["hook_embed", "hook_pos_embed", *(n for n in cache if n.endswith(("hook_attn_out", "hook_mlp_out")))]
        writes = sum(cache[n].float() for n in names if n in cache)
        last = cache["resid_post", -1].float()
        torch.testing.assert_close(writes, last, rtol=0, atol=float(20 * eps * last.abs().max()))
    loss, gradients = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    assert loss.dtype == torch.float32
    assert all(value.isfinite().all() for key, value in gradients.items() if key.endswith("_grad"))
    model.check_finite(tokens, attention_mask=real)
    assert model.generate(tokens, 3).shape == (2, 9)
    assert torch.linalg.svdvals(model.W_Q.float()).isfinite().all()


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_cast_does_not_round_the_rotary_angles(layout):
    cfg = CONFIGS["llama"].replace(n_ctx=4096, rotary_layout=layout)
    cast, built = random_model(cfg), random_model(cfg)
    cast.to(torch.bfloat16).to(torch.float64)
    built.load_state_dict(cast.state_dict())
    tokens = random_tokens(cfg, 1, 600)
    torch.testing.assert_close(cast(tokens), built(tokens), rtol=0, atol=1e-9)
