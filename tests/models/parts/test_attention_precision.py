"""Observing changes nothing, in any dtype: hooked attention keeps the precision of the fused kernel."""

from __future__ import annotations

import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.encoder_decoder import EncoderDecoderConfig, HookedEncoderDecoder
from tests.oracles.decoder import decode

CFG = DecoderConfig(n_layers=2, d_model=64, n_heads=1, d_vocab=20, n_ctx=16, init="torch")
TOKENS = torch.tensor([[1, 5, 2, 9, 5, 2, 7, 3]])
HALVES = (torch.float16, torch.bfloat16)


def sharp(cfg, dtype, factor):
    """Return a model whose queries and keys are large, its weights those that ``dtype`` can hold."""
    model = HookedDecoder(cfg, seed=2).requires_grad_(False)
    for block in model.blocks:
        block.attn.q.weight *= factor
        block.attn.k.weight *= factor
    return model.to(dtype)


def largest_product(model):
    """Return the largest q.k before the scale, in float64."""
    _, seen = decode(model, TOKENS)
    scores = torch.cat([value.flatten() for name, value in seen.items() if name.endswith("attn_scores")])
    return float(scores[scores.isfinite()].abs().max()) * model.cfg.d_head**0.5


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("names", [None, "blocks.0.attn.hook_pattern", lambda name: "attn_scores" in name])
def test_a11_products_beyond_float16_before_the_scale(names, positions):
    model = sharp(CFG.replace(positions=positions), torch.float16, 120.0)
    assert 65_504 < largest_product(model) < 65_504 * 8
    plain = model(TOKENS)
    observed, cache = model.run_with_cache(TOKENS, names_filter=names)
    assert plain.isfinite().all()
    torch.testing.assert_close(observed, plain, rtol=2**-8, atol=2**-8)
    assert not any(value.isnan().any() for value in cache.values())


@pytest.mark.parametrize("dtype", HALVES)
def test_a11_scores_beyond_float16_after_the_scale(dtype):
    model = sharp(CFG, dtype, 300.0)
    assert largest_product(model) > 65_504 * 8
    plain = model(TOKENS)
    seen = []
    hooks = [
        (f"blocks.{layer}.attn.{name}", lambda value, hook: seen.append(value.dtype))
        for layer in range(2)
        for name in ("hook_attn_scores", "hook_pattern")
    ]
    observed = model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    torch.testing.assert_close(observed, plain, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
    assert seen == [torch.float32, dtype] * 2


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("seed", range(4))
def test_a11_scores_are_not_rounded_before_the_softmax(seed, dtype):
    model = sharp(CFG, dtype, 8.0)
    tokens = torch.randint(20, (4, 12), generator=torch.Generator().manual_seed(seed))
    _, cache = model.run_with_cache(tokens)
    q, k = (cache[name, 0].double() for name in ("q", "k"))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8
    assert scores.abs().max() > 20
    allowed = torch.ones(12, 12, dtype=torch.bool).tril()
    kept = cache["attn_scores", 0].double()
    torch.testing.assert_close(kept[..., allowed], scores[..., allowed], rtol=1e-5, atol=1e-4)
    pattern = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    torch.testing.assert_close(cache["pattern", 0].double(), pattern, rtol=torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("norm", "size"), [("rms", 1.0), ("layer", 1.0), ("rms", 600.0), ("layer", 600.0)])
def test_a11_norms_of_a_large_stream(norm, size, dtype):
    model = HookedDecoder(CFG.replace(norm=norm), seed=2).requires_grad_(False)
    model.embed.W_E *= size
    model.to(dtype)
    plain = model(TOKENS)
    observed, _ = model.run_with_cache(TOKENS)
    assert plain.isfinite().all()
    torch.testing.assert_close(observed, plain, rtol=8 * torch.finfo(dtype).eps, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALVES)
def test_a11_an_encoder_decoder(dtype):
    cfg = EncoderDecoderConfig(
        n_encoder_layers=1, n_decoder_layers=1, d_model=64, n_heads=1, d_vocab=20, n_ctx=16, init="torch"
    )
    model = HookedEncoderDecoder(cfg, seed=2).requires_grad_(False)
    for block in (*model.encoder, *model.decoder):
        for attn in filter(None, (block.attn, block.cross_attn)):
            attn.q.weight *= 120.0
            attn.k.weight *= 120.0
    model.to(dtype)
    plain = model(TOKENS, TOKENS)
    observed, cache = model.run_with_cache(TOKENS, TOKENS)
    scores = cache["decoder.0.cross_attn.hook_attn_scores"]
    assert scores.abs().max() * 8 > 65_504
    torch.testing.assert_close(observed, plain, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALVES)
def test_a11_gradients_are_of_the_plain_run(dtype):
    model = sharp(CFG, dtype, 2.0).requires_grad_(True)
    model(TOKENS, return_type="loss").backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with model.hooks(fwd_hooks=[(lambda name: "pattern" in name or "attn_scores" in name, lambda value, hook: None)]):
        model(TOKENS, return_type="loss").backward()
    for name, p in model.named_parameters():
        if name.endswith("k.bias"):
            continue  # no softmax feels it: its gradient is rounding alone
        scale = float(plain[name].abs().max())
        torch.testing.assert_close(p.grad, plain[name], rtol=0.05, atol=0.02 * scale + 1e-5, msg=name)
