"""Small configurations that together take every value of every option of ``DecoderConfig``, and models of them.

``CONFIGS`` names architectures people know or combinations that have broken tools; ``random_config`` draws from the
whole space.
"""

from __future__ import annotations

import random

import torch

from models.config import DecoderConfig, RotaryScaling
from models.decoder import HookedDecoder

_SMALL = {"n_layers": 2, "d_model": 8, "n_heads": 2, "d_vocab": 11, "n_ctx": 12, "d_mlp": 12}
_NO_BIAS = {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
_LLAMA = {
    **_SMALL,
    **_NO_BIAS,
    "positions": "rotary",
    "norm": "rms",
    "act": "silu",
    "gated": True,
    "n_heads": 4,
    "n_kv_heads": 2,
    "d_head": 4,
}
_2017 = {
    **_SMALL,
    "positions": "sinusoidal",
    "norm_position": "post",
    "act": "relu",
    "scale_embedding": True,
    "tied": True,
}

CONFIGS: dict[str, DecoderConfig] = {
    "gpt2": DecoderConfig(**_SMALL, tied=True),
    "gpt2-window": DecoderConfig(**_SMALL, sliding_window=3),
    "learned-mqa": DecoderConfig(**_SMALL, n_kv_heads=1, d_head=3, unembed_bias=True),
    "llama": DecoderConfig(**_LLAMA),
    "llama-tied": DecoderConfig(**_LLAMA, tied=True, norm_eps=1e-6),
    "mistral": DecoderConfig(**_LLAMA, sliding_window=3),
    "qwen2": DecoderConfig(**{**_LLAMA, "qkv_bias": True}, rotary_base=1e6),
    "linear-scaling": DecoderConfig(**_LLAMA, rotary_scaling=RotaryScaling(kind="linear", factor=2.0)),
    "llama3-scaling": DecoderConfig(
        **{**_LLAMA, "d_head": 8},
        rotary_base=20.0,
        rotary_scaling=RotaryScaling(kind="llama3", factor=4.0, original_n_ctx=24, high_freq=3.0),
    ),
    "gptj": DecoderConfig(
        **{**_SMALL, "qkv_bias": False, "out_bias": False},
        positions="rotary",
        rotary_layout="interleaved",
        d_head=6,
        rotary_dim=4,
        parallel=True,
        unembed_bias=True,
    ),
    "neox": DecoderConfig(**_SMALL, positions="rotary", rotary_dim=2, parallel=True, act="gelu"),
    "qwen3": DecoderConfig(**_LLAMA, qk_norm="head"),
    "flat-qk-norm": DecoderConfig(**_LLAMA, qk_norm="flat", sliding_window=(3, None)),
    "normed-no-positions": DecoderConfig(**{**_SMALL, "n_heads": 4}, n_kv_heads=2, positions="none", qk_norm="head"),
    "by-layer": DecoderConfig(
        **_LLAMA,
        sliding_window=(None, 2),
        rotary_base=(10_000.0, 50.0),
        rotary_scaling=(RotaryScaling(kind="linear", factor=4.0), None),
    ),
    "interleaved-gqa": DecoderConfig(**_LLAMA, rotary_layout="interleaved"),
    "transformer-2017": DecoderConfig(**_2017),
    "post-rms-rotary": DecoderConfig(**{**_LLAMA, "n_kv_heads": 1}, norm_position="post"),
    "post-attn-only": DecoderConfig(
        n_layers=2, d_model=8, n_heads=2, d_vocab=11, n_ctx=12, attn_only=True, norm_position="post"
    ),
    "attn-only": DecoderConfig(n_layers=2, d_model=8, n_heads=4, d_vocab=11, n_ctx=12, attn_only=True),
    "attn-only-bare": DecoderConfig(
        n_layers=2, d_model=8, n_heads=2, d_vocab=11, n_ctx=12, attn_only=True, norm="none", positions="rotary"
    ),
    "no-positions": DecoderConfig(**_SMALL, positions="none", norm_bias=False),
    "no-norm": DecoderConfig(**_SMALL, norm="none", act="relu"),
    "no-norm-parallel": DecoderConfig(**_SMALL, norm="none", parallel=True, positions="sinusoidal"),
    "rms-parallel-window": DecoderConfig(**_LLAMA, parallel=True, sliding_window=2),
    "geglu": DecoderConfig(**_SMALL, act="gelu", gated=True, scale_embedding=True),
    "reglu-gqa": DecoderConfig(**{**_SMALL, "n_heads": 4}, n_kv_heads=2, act="relu", gated=True, mlp_bias=False),
    "one-layer-one-head": DecoderConfig(n_layers=1, d_model=6, n_heads=1, d_vocab=7, n_ctx=12, d_mlp=5, out_bias=False),
}


def _by_layer(draw: random.Random, n_layers: int, values: list) -> tuple:
    return tuple(draw.choice(values) for _ in range(n_layers))


def random_config(seed: int) -> DecoderConfig:
    """Draw every option at once; the combinations that describe no model are left out by construction."""
    draw = random.Random(seed)
    n_kv_heads = draw.choice([1, 2])
    n_layers = draw.choice([1, 2, 3])
    attn_only = draw.random() < 0.2
    norm = draw.choice(["layer", "rms", "none"])
    pre = norm == "none" or draw.random() < 0.7
    rotary = {}
    positions = draw.choice(["learned", "rotary", "sinusoidal", "none"])
    d_head = draw.choice([4, 6])
    if positions == "rotary":
        rotary = {"rotary_layout": draw.choice(["half", "interleaved"]), "rotary_dim": draw.choice([2, 4, d_head])}
        rotary["rotary_base"] = draw.choice([10_000.0, 30.0, _by_layer(draw, n_layers, [10_000.0, 20.0])])
        linear = RotaryScaling(kind="linear", factor=3.0)
        rotary["rotary_scaling"] = draw.choice([None, linear, _by_layer(draw, n_layers, [None, linear])])
    return DecoderConfig(
        n_layers=n_layers,
        d_model=draw.choice([8, 10]),
        n_heads=n_kv_heads * draw.choice([1, 2, 3]),
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_vocab=11,
        n_ctx=12,
        d_mlp=None if attn_only else draw.choice([7, 16]),
        attn_only=attn_only,
        positions=positions,
        **rotary,
        sliding_window=draw.choice([None, None, 2, 4, 50, _by_layer(draw, n_layers, [None, 2, 3])]),
        norm=norm,
        norm_bias=draw.random() < 0.5,
        norm_position="pre" if pre else "post",
        parallel=pre and not attn_only and draw.random() < 0.4,
        act=draw.choice(["gelu", "gelu_tanh", "relu", "silu"]),
        gated=not attn_only and draw.random() < 0.5,
        qkv_bias=draw.random() < 0.5,
        out_bias=draw.random() < 0.5,
        qk_norm=draw.choice(["none", "none", "head", "flat"]),
        mlp_bias=draw.random() < 0.5,
        unembed_bias=draw.random() < 0.5,
        tied=draw.random() < 0.5,
        scale_embedding=draw.random() < 0.5,
    )


def random_model(cfg: DecoderConfig, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> HookedDecoder:
    """Return a model in which every parameter is random: no bias is zero and no gain is one."""
    model = HookedDecoder(cfg).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            centre = 1.0 if name.endswith(".w") else 0.0
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(centre + 0.5 * drawn)
    return model


def random_tokens(cfg: DecoderConfig, batch: int = 2, n: int = 6, *, seed: int = 0) -> torch.Tensor:
    """Return token ids ``[batch, n]``."""
    return torch.randint(cfg.d_vocab, (batch, n), generator=torch.Generator().manual_seed(seed))
