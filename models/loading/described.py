"""The configuration of an architecture that only TransformerLens runs, from what it says of it."""

from __future__ import annotations

from typing import Any

from models.config import DecoderConfig
from models.errors import UnsupportedModel


def described(bridge: Any, values: dict[str, Any]) -> DecoderConfig:
    """Describe an architecture that only TransformerLens can run. Raises UnsupportedModel where we have no words."""
    theirs = bridge.cfg
    positions = {"standard": "learned", "rotary": "rotary"}.get(theirs.positional_embedding_type)
    norm = {"LN": "layer", "RMS": "rms"}.get(theirs.normalization_type)
    tanh = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
    act_fn = values.get("activation", theirs.act_fn)  # Falcon's word for it, which TransformerLens does not read
    act = {name: name for name in ("gelu", "relu", "silu")} | dict.fromkeys(tanh, "gelu_tanh")
    if positions is None or norm is None or act_fn not in act:
        raise UnsupportedModel(
            f"{theirs.architecture} has positions {theirs.positional_embedding_type!r}, norm "
            f"{theirs.normalization_type!r}, activation {act_fn!r}; our configuration cannot describe it"
        )
    W_out = getattr(bridge.blocks[0].mlp, "W_out", None)  # OPT's width has a word that TransformerLens does not read
    return DecoderConfig(
        n_layers=theirs.n_layers,
        d_model=theirs.d_model,
        n_heads=theirs.n_heads,
        n_kv_heads=theirs.n_key_value_heads or theirs.n_heads,
        d_head=theirs.d_head,
        d_mlp=theirs.d_mlp if W_out is None else len(W_out),
        d_vocab=theirs.d_vocab,
        n_ctx=theirs.n_ctx,
        positions=positions,  # type: ignore[arg-type]
        rotary_dim=theirs.rotary_dim if positions == "rotary" else None,
        norm=norm,  # type: ignore[arg-type]
        norm_eps=theirs.eps,
        parallel=theirs.parallel_attn_mlp,
        act=act[act_fn],  # type: ignore[arg-type]
        gated=theirs.gated_mlp,
        tied=bool(theirs.tie_word_embeddings),
    )
