"""GPT-2 checkpoints from Hugging Face: learned positions, LayerNorm, GELU, biases everywhere.

Their ``Conv1D`` keeps weights as [in, out], the transpose of ``nn.Linear``, and ``c_attn`` holds q, k and v side by
side. Keys come with or without ``transformer.`` in front.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from torch import Tensor

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.loading.settings import Settings
from models.loading.stream import Adapter, adapter, block_part

_OUTSIDE = {
    "embed.W_E": "wte.weight",
    "pos_embed.W_pos": "wpe.weight",
    "ln_final.w": "ln_f.weight",
    "ln_final.b": "ln_f.bias",
}
_IN_BLOCK = {
    "ln1": "ln_1",
    "attn.q": "attn.c_attn",
    "attn.k": "attn.c_attn",
    "attn.v": "attn.c_attn",
    "attn.o": "attn.c_proj",
    "ln2": "ln_2",
    "mlp.inp": "mlp.c_fc",
    "mlp.out": "mlp.c_proj",
}
_IGNORED = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)")  # causal masks, stored as buffers
_HARMLESS = {
    "n_ctx",  # an old name; n_positions counts
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
}  # fmt: skip


def configuration(settings: Settings) -> DecoderConfig:
    """Translate config.json. Raises UnsupportedModel on any setting that changes the mathematics and is not handled."""
    settings.expect("scale_attn_weights", True)
    settings.expect("scale_attn_by_inverse_layer_idx", False)
    settings.expect("add_cross_attention", False)
    cfg = DecoderConfig(
        n_layers=settings.take("n_layer"),
        d_model=settings.take("n_embd"),
        n_heads=settings.take("n_head"),
        d_vocab=settings.take("vocab_size"),
        n_ctx=settings.take("n_positions"),
        d_mlp=settings.take("n_inner", None),
        norm_eps=settings.take("layer_norm_epsilon", 1e-5),
        act=settings.activation("activation_function", "gelu_new"),
        tied=settings.take("tie_word_embeddings", True),
    )
    settings.finish(_HARMLESS)
    return cfg


def tensors(model: HookedDecoder, names: Collection[str]) -> Adapter:
    """Return the places of a checkpoint with these names."""
    prefix = "transformer." if any(name.startswith("transformer.") for name in names) else ""

    def locate(ours: str) -> tuple[str, Callable[[Tensor], Tensor] | None]:
        if ours == "unembed.weight":
            return "lm_head.weight", None
        if ours in _OUTSIDE:
            return prefix + _OUTSIDE[ours], None
        layer, part, kind = block_part(ours)
        theirs = f"{prefix}h.{layer}.{_IN_BLOCK[part]}.{kind}"
        if part in ("ln1", "ln2"):
            return theirs, None
        if part in ("attn.q", "attn.k", "attn.v"):
            return theirs, _third("qkv".index(part[-1]))
        return theirs, _transposed

    return adapter(model, locate, tied_copy="lm_head.weight", ignored=_IGNORED)


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.T if tensor.ndim == 2 else tensor


def _third(i: int) -> Callable[[Tensor], Tensor]:
    """Cut q (0), k (1) or v (2) out of the fused weight [in, 3 out] or bias [3 out]."""
    return lambda fused: _transposed(fused.tensor_split(3, dim=-1)[i])
