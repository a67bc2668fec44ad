"""The cost formulas against what the real model has and does."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.config import DecoderConfig
from models.cost import forward_flops, kv_cache_bytes, parameters
from models.decoder import HookedDecoder
from models.errors import InputError
from models.parts.kv_cache import KVCache

BASE = DecoderConfig(n_layers=3, d_model=24, n_heads=4, d_vocab=31, n_ctx=32)

CONFIGS = {
    "gpt2": BASE,
    "tied": BASE.replace(tied=True),
    "unembedding bias": BASE.replace(unembed_bias=True),
    "no biases": BASE.replace(qkv_bias=False, out_bias=False, mlp_bias=False, norm_bias=False),
    "llama": BASE.replace(
        positions="rotary", norm="rms", gated=True, act="silu", n_kv_heads=2, d_mlp=40, mlp_bias=False, out_bias=False
    ),
    "multi-query": BASE.replace(n_kv_heads=1, d_head=10),
    "attention only": BASE.replace(attn_only=True, d_mlp=None),
    "attention only, post-norm": BASE.replace(attn_only=True, d_mlp=None, norm_position="post"),
    "post-norm": BASE.replace(norm_position="post", positions="sinusoidal", act="relu", scale_embedding=True),
    "no norms": BASE.replace(norm="none", positions="none"),
    "parallel": BASE.replace(parallel=True),
    "gated with biases": BASE.replace(gated=True),
}


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def cfg(request):
    return request.param


def real_parameters(cfg):
    """Numbers of parameters by component, counted from the modules."""
    model = HookedDecoder(cfg)
    counts = dict.fromkeys(("projections", "mlp", "norms", "embedding", "positions", "unembedding"), 0)
    for name, weight in model.named_parameters():
        component = (
            "projections" if ".attn." in name
            else "mlp" if ".mlp." in name
            else "norms" if "ln" in name
            else "positions" if name.startswith("pos_embed")
            else "unembedding" if name.startswith("unembed")
            else "embedding"
        )  # fmt: skip
        counts[component] += weight.numel()
    return counts


def test_parameters_are_those_of_the_real_model(cfg):
    count = parameters(cfg)
    assert {name: getattr(count, name) for name in real_parameters(cfg)} == real_parameters(cfg)
    assert count.attention == 0
    assert count.total == sum(p.numel() for p in HookedDecoder(cfg).parameters())


def test_the_article_model_has_103296_parameters():
    cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, d_mlp=256, d_vocab=9, n_ctx=32, act="gelu")
    assert parameters(cfg).total == 103_296


def test_the_seven_billion_example():
    """V d + N (4 d^2 + 2 d d_ff) + d V at d 4096, d_ff 16384, N 32, V 50000, biases and norms ignored."""
    d, d_ff, n, vocabulary = 4096, 16384, 32, 50_000
    cfg = DecoderConfig(
        n_layers=n, d_model=d, n_heads=32, d_mlp=d_ff, d_vocab=vocabulary, n_ctx=2048, positions="rotary",
        norm="none", qkv_bias=False, out_bias=False, mlp_bias=False,
    )  # fmt: skip
    assert parameters(cfg).total == vocabulary * d + n * (4 * d**2 + 2 * d * d_ff) + d * vocabulary
    assert parameters(cfg.replace(tied=True)).total == pytest.approx(6.65e9, rel=1e-3)


def counted_flops(cfg, n_new, n_cached=0, batch=1):
    """FLOPs that torch counts in the real forward pass."""
    model = HookedDecoder(cfg)
    cache = KVCache(cfg.n_layers) if n_cached else None
    tokens = torch.zeros(batch, n_cached + n_new, dtype=torch.long)
    with torch.no_grad():
        if n_cached:
            model(tokens[:, :n_cached], kv_cache=cache)
        # the scores are hooked so that their two products run as plain matrix products, which the counter knows
        hooks = [(lambda name: name.endswith("hook_pattern"), lambda value, hook: None)]
        with FlopCounterMode(display=False) as counter:
            model.run_with_hooks(tokens[:, n_cached:], kv_cache=cache, fwd_hooks=hooks)
    return counter.get_total_flops()


@pytest.mark.parametrize(("n_new", "n_cached", "batch"), [(7, 0, 2), (1, 12, 1), (3, 9, 2)])
def test_forward_flops_are_those_torch_counts(cfg, n_new, n_cached, batch):
    cost = forward_flops(cfg, n_new, n_cached, batch)
    assert cost.total - cost.norms == counted_flops(cfg, n_new, n_cached, batch)


def test_figure_7_orders_of_growth():
    cfg = BASE.replace(n_ctx=4096)

    def growth(component, flops):
        return getattr(flops(2048), component) / getattr(flops(1024), component)

    def full(n):
        return forward_flops(cfg, n)

    def cached_step(n):
        return forward_flops(cfg, 1, n_cached=n - 1)

    assert growth("attention", full) == 4
    assert growth("attention", cached_step) == 2
    for component in ("projections", "mlp", "norms", "unembedding"):
        assert growth(component, full) == 2, component
        assert growth(component, cached_step) == 1, component
    plain = parameters(BASE.replace(qkv_bias=False, out_bias=False, mlp_bias=False))
    assert plain.projections == 3 * 4 * 24**2
    assert plain.mlp == 3 * 8 * 24**2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_bytes_are_those_of_its_tensors(cfg, dtype):
    model = HookedDecoder(cfg).to(dtype)
    cache = KVCache(cfg.n_layers)
    tokens = torch.zeros(2, 11, dtype=torch.long)
    with torch.no_grad():
        model(tokens[:, :8], kv_cache=cache)
        model(tokens[:, 8:], kv_cache=cache)
    real = sum(tensor.numel() * tensor.element_size() for layer in cache.layers for tensor in (layer.k, layer.v))
    assert kv_cache_bytes(cfg, 11, batch=2, dtype=dtype) == real


@pytest.mark.parametrize(("n_new", "n_cached", "batch"), [(0, 0, 1), (1, -1, 1), (1, 0, 0), (30, 3, 1)])
def test_impossible_passes_are_refused(n_new, n_cached, batch):
    with pytest.raises(InputError, match="at most n_ctx 32 tokens"):
        forward_flops(BASE, n_new, n_cached, batch)
