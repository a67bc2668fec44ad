"""The Llama family from Hugging Face: Llama, TinyLlama, SmolLM (``llama``), Mistral, Qwen2.

Rotary positions in the half-split layout, RMSNorm, a gated MLP, grouped keys and values. They differ in biases
(Qwen2: on q, k and v only; Llama: on all four where ``attention_bias``) and in the sliding window.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from models.config import DecoderConfig, RotaryScaling
from models.decoder import HookedDecoder
from models.errors import UnsupportedModel
from models.loading.settings import Settings
from models.loading.stream import Adapter, adapter, block_part

_OUTSIDE = {"embed.W_E": "embed_tokens.weight", "ln_final.w": "norm.weight"}
_IN_BLOCK = {
    "ln1": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.o": "self_attn.o_proj",
    "ln2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.inp": "mlp.up_proj",
    "mlp.out": "mlp.down_proj",
}
_IGNORED = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")  # follows from the configuration


def configuration(settings: Settings) -> DecoderConfig:
    """Translate config.json. Raises UnsupportedModel on any setting that changes the mathematics and is not handled."""
    model_type = settings.take("model_type")
    n_ctx = settings.take("max_position_embeddings")
    n_layers = settings.take("num_hidden_layers")
    base, scaling = _rotary(settings, n_ctx)
    attention_bias = model_type == "llama" and settings.take("attention_bias", False)
    cfg = DecoderConfig(
        n_layers=n_layers,
        d_model=settings.take("hidden_size"),
        n_heads=settings.take("num_attention_heads"),
        n_kv_heads=settings.take("num_key_value_heads", None),
        d_head=settings.take("head_dim", None),
        d_mlp=settings.take("intermediate_size"),
        d_vocab=settings.take("vocab_size"),
        n_ctx=n_ctx,
        positions="rotary",
        rotary_base=base,
        rotary_scaling=scaling,
        sliding_window=_window(settings, model_type, n_layers),
        norm="rms",
        norm_eps=settings.take("rms_norm_eps", 1e-6),
        act=settings.activation("hidden_act", "silu"),
        gated=True,
        qkv_bias=attention_bias or model_type == "qwen2",
        out_bias=attention_bias,
        mlp_bias=model_type == "llama" and settings.take("mlp_bias", False),
        tied=settings.take("tie_word_embeddings", False),
    )
    settings.finish()
    return cfg


def _rotary(settings: Settings, n_ctx: int) -> tuple[float, RotaryScaling | None]:
    """Read base and scaling, from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``."""
    settings.expect("partial_rotary_factor", 1.0, None)
    given: dict[str, Any] = {"rope_theta": settings.take("rope_theta", None) or 10_000.0}
    given |= settings.take("rope_scaling", None) or {}
    given |= settings.take("rope_parameters", None) or {}
    rope = Settings(given, f"{settings.origin}, rope settings")
    rope.expect("partial_rotary_factor", 1.0, None)
    base = float(rope.take("rope_theta"))
    old_name = rope.take("type", "default")
    kind = rope.take("rope_type", old_name)
    original = rope.take("original_max_position_embeddings", n_ctx)
    scaling = None
    if kind == "linear":
        scaling = RotaryScaling(kind="linear", factor=rope.take("factor"))
    elif kind == "llama3":
        scaling = RotaryScaling(
            kind="llama3",
            factor=rope.take("factor"),
            low_freq=rope.take("low_freq_factor"),
            high_freq=rope.take("high_freq_factor"),
            original_n_ctx=original,
        )
    elif kind != "default":
        raise UnsupportedModel(f"{settings.origin}: rope_type = {kind!r}; handled are default, linear and llama3")
    rope.finish(harmless=("factor",) if kind == "default" else ())
    return base, scaling


def _window(settings: Settings, model_type: str, n_layers: int) -> int | None:
    """Return the sliding window of all layers. Raises UnsupportedModel where only some layers have one."""
    if model_type == "mistral":
        return settings.take("sliding_window", 4096)
    if model_type != "qwen2":
        return None
    window = settings.take("sliding_window", 4096)
    first = settings.take("max_window_layers", 28)
    layer_types = settings.take("layer_types", None)
    if not settings.take("use_sliding_window", False) or window is None:
        return None
    if layer_types is None:
        layer_types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(n_layers)]
    kinds = set(layer_types)
    if len(kinds) > 1:
        raise UnsupportedModel(
            f"{settings.origin}: use_sliding_window with layers of both kinds ({', '.join(sorted(kinds))}); "
            "handled is one window for all layers, or none"
        )
    return window if kinds == {"sliding_attention"} else None


def tensors(model: HookedDecoder, names: Collection[str]) -> Adapter:
    """Return the places of a checkpoint with these names, which may lack the ``model.`` in front."""
    prefix = "model." if any(name.startswith("model.") for name in names) else ""

    def locate(ours: str) -> tuple[str, None]:
        if ours == "unembed.weight":
            return "lm_head.weight", None
        if ours in _OUTSIDE:
            return prefix + _OUTSIDE[ours], None
        layer, part, kind = block_part(ours)
        return f"{prefix}layers.{layer}.{_IN_BLOCK[part]}.{kind}", None

    return adapter(model, locate, tied_copy="lm_head.weight", ignored=_IGNORED)
