"""Folding: a new model with the same log-probabilities and simpler weights, as in TransformerLens.

==================  ===============================================================================================
``norm``            every norm's gain and bias go into the weights that read it: gains become 1, biases disappear
``centre_writes``   what writes to the stream loses its mean over d_model, which every LayerNorm takes away anyway
``centre_unembed``  each of W_U's rows (and b_U) loses its mean over the vocabulary: a position's logits move together
``value_bias``      b_V goes into b_O, because attention weights sum to 1
==================  ===============================================================================================

Folding multiplies and adds weights in the model's own precision; fold in float32, then cast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError
from models.loading.state import state_of
from models.loading.stream import empty_model
from models.parts.block import Block
from models.parts.norm import NoNorm, Norm


@torch.no_grad()
def fold(
    model: HookedDecoder,
    *,
    norm: bool = True,
    centre_writes: bool = True,
    centre_unembed: bool = True,
    value_bias: bool = True,
) -> HookedDecoder:
    """Return a folded copy, frozen and in eval mode; the model itself is left as it was.

    Logits are the same too, unless ``centre_unembed`` moves them. The copy is untied where folding makes embedding and
    unembedding differ, has biases where folding makes some, and learned positions where it moves sinusoidal ones.

    Args:
        model: any decoder of ours.
        norm, centre_writes, centre_unembed, value_bias: see the table above.

    Raises:
        ConfigError: ``norm`` or ``centre_writes`` on a post-norm model, whose norms stand on the stream itself;
            ``centre_writes`` where norms do not centre, and the mean is read.

    >>> source = HookedDecoder(DecoderConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=10, n_ctx=8, tied=True))
    >>> folded, tokens = fold(source), torch.tensor([[1, 2, 3]])
    >>> torch.allclose(folded(tokens).log_softmax(-1), source(tokens).log_softmax(-1), atol=1e-5)
    True
    """
    cfg, state = state_of(model)
    if cfg.norm_position == "post" and (norm or centre_writes):
        raise ConfigError(
            "this model is post-norm: its norms stand on the stream itself and cannot be folded, nor can means be "
            "taken from it; use fold(model, norm=False, centre_writes=False)"
        )
    if centre_writes and cfg.norm != "layer":
        raise ConfigError(
            f"centre_writes needs LayerNorm, which ignores the mean; this model has norm={cfg.norm!r}: "
            "use fold(model, centre_writes=False)"
        )
    norm = norm and cfg.norm != "none"
    folded = _copy(model, state, _with_biases(cfg, norm, centre_writes, centre_unembed, value_bias))
    blocks = folded.blocks
    if norm:
        for sublayer in (sublayer for block in blocks for sublayer in block.sublayers):
            _fold_norm(sublayer.norm_in, sublayer.core.readers)
        _fold_norm(folded.ln_final, [folded.unembed])
    if value_bias:
        for block in blocks:
            _fold_value_bias(block, cfg.group_size)
    if centre_writes:
        _centre_writes(folded, blocks)
    if centre_unembed:
        _centre(folded.unembed.weight, 0)
        if folded.unembed.bias is not None:
            _centre(folded.unembed.bias, 0)
    if norm and cfg.norm_bias:
        return _copy(folded, folded.state_dict(), folded.cfg.replace(norm_bias=False))
    return folded


def _with_biases(
    cfg: DecoderConfig, norm: bool, centre_writes: bool, centre_unembed: bool, value_bias: bool
) -> DecoderConfig:
    """Return the configuration with room for what folding makes."""
    changes: dict[str, Any] = {}
    if norm and cfg.norm_bias:
        changes |= {"qkv_bias": True, "mlp_bias": True, "unembed_bias": True}
    if value_bias and (cfg.qkv_bias or "qkv_bias" in changes):
        changes |= {"out_bias": True}
    if norm or centre_writes or centre_unembed:
        changes |= {"tied": False}
    if centre_writes and cfg.positions == "sinusoidal":
        changes |= {"positions": "learned"}
    return cfg.replace(**changes)


def _copy(model: HookedDecoder, state: Mapping[str, Tensor], cfg: DecoderConfig) -> HookedDecoder:
    """Return a frozen model of another configuration with these weights; biases that they lack are zero."""
    copy = empty_model(cfg, model.tokenizer, model.dtype, model.device)
    own = dict(state) | dict(model.named_buffers())
    if "unembed.weight" not in own:
        own["unembed.weight"] = own["embed.W_E"]
    for name, parameter in copy.named_parameters():
        if name in own:
            parameter.copy_(own[name])
        else:
            parameter.zero_()
    return copy


def _fold_norm(norm: Norm | NoNorm, readers: Sequence[Any]) -> None:
    """Move gain and bias into what reads the norm: W (w * n + b) + c = (W w) n + (W b + c)."""
    assert isinstance(norm, Norm)
    for reader in readers:
        if norm.b is not None:
            reader.bias += reader.weight @ norm.b
        reader.weight *= norm.w
    norm.w.fill_(1.0)
    if norm.b is not None:
        norm.b.zero_()


def _fold_value_bias(block: Block, group_size: int) -> None:
    attn = block.attn
    if attn.v.bias is None:
        return
    per_head = attn.v.bias.unflatten(0, (-1, attn.d_head)).repeat_interleave(group_size, 0)
    attn.o.bias.add_(attn.o.weight @ per_head.flatten())
    attn.v.bias.zero_()


def _centre_writes(model: HookedDecoder, blocks: Sequence[Block]) -> None:
    _centre(model.embed.W_E, 1)
    if model.pos_embed is not None:
        _centre(model.pos_embed.W_pos, 1)
    for writer in (sublayer.core.writer for block in blocks for sublayer in block.sublayers):
        _centre(writer.weight, 0)
        if writer.bias is not None:
            _centre(writer.bias, 0)


def _centre(weight: torch.Tensor, axis: int) -> None:
    """Take the mean over an axis from a weight, in place."""
    weight -= weight.mean(axis, keepdim=True)
