"""Folding: a new model with the same log-probabilities and simpler weights.

========================  =====================================================================================
norm                      every norm's gain and bias go into the weights that read it; norms keep gain 1, no bias
centre_writes             what writes to the stream loses its mean over d_model, which LayerNorm removes anyway
centre_unembed            every row of W_U loses its mean over the vocabulary: logits move by a constant per token
value_bias                b_V goes into b_O, for attention weights sum to 1
========================  =====================================================================================

As in TransformerLens's compatibility mode. The source model is left as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import ConfigError
from models.parts.attention import Attention
from models.parts.norm import Norm


@torch.no_grad()
def fold(
    model: HookedDecoder,
    *,
    norm: bool = True,
    centre_writes: bool = True,
    centre_unembed: bool = True,
    value_bias: bool = True,
) -> HookedDecoder:
    """Return a folded copy; see the table above.

    Raises:
        ConfigError: ``norm`` on a post-norm model (its norms stand on the stream itself), ``centre_writes`` on a model
            whose norms do not centre.
    """
    cfg = model.cfg
    if cfg.norm_position == "post" and (norm or centre_writes):
        raise ConfigError(
            "post-norm models normalise the stream itself, so their norms and means cannot be folded; "
            "use fold(model, norm=False, centre_writes=False)"
        )
    if centre_writes and cfg.norm != "layer":
        raise ConfigError(
            f"centre_writes needs LayerNorm, which ignores the mean; this model has norm={cfg.norm!r}: "
            "use fold(model, centre_writes=False)"
        )
    folded = _copy(model, _folded_config(cfg, norm, centre_writes, centre_unembed, value_bias))
    if norm and cfg.norm != "none":
        _fold_norms(folded)
    if value_bias:
        _fold_value_biases(folded)
    if centre_writes:
        _centre_writes(folded)
    if centre_unembed:
        folded.unembed.weight -= folded.unembed.weight.mean(0)
        if folded.unembed.bias is not None:
            folded.unembed.bias -= folded.unembed.bias.mean()
    if norm and cfg.norm != "none":
        folded = _copy(folded, folded.cfg.replace(norm_bias=False))
    return folded.requires_grad_(False).eval()


def _folded_config(
    cfg: DecoderConfig, norm: bool, centre_writes: bool, centre_unembed: bool, value_bias: bool
) -> DecoderConfig:
    changes: dict[str, object] = {}
    if norm and cfg.norm_bias:
        changes |= {"qkv_bias": True, "mlp_bias": not cfg.attn_only, "unembed_bias": True}
    if value_bias and (cfg.qkv_bias or changes.get("qkv_bias")):
        changes |= {"out_bias": True}
    if norm or centre_writes or centre_unembed:
        changes |= {"tied": False}
    if centre_writes and cfg.positions == "sinusoidal":
        changes |= {"positions": "learned"}
    return cfg.replace(**changes)


def _copy(model: HookedDecoder, cfg: DecoderConfig) -> HookedDecoder:
    """Return a model of another configuration with this one's weights; biases it lacks are zero."""
    copy = HookedDecoder(cfg, tokenizer=model.tokenizer).to(model.device, model.dtype)
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    for name, parameter in copy.named_parameters():
        if name in own:
            parameter.copy_(own[name])
        else:
            parameter.zero_()
    return copy


def _fold_norms(model: HookedDecoder) -> None:
    for block in model.blocks:
        _fold_into(block.ln1, [block.attn.q, block.attn.k, block.attn.v])
        if block.mlp is not None:
            _fold_into(block.ln2, [linear for linear in (block.mlp.inp, block.mlp.gate) if linear is not None])
    _fold_into(model.ln_final, [model.unembed])


def _fold_into(norm: Norm, readers: list[nn.Module]) -> None:
    for reader in readers:
        weight, bias = reader.weight, reader.bias
        assert isinstance(weight, Tensor)
        if norm.b is not None:
            assert isinstance(bias, Tensor)
            bias += weight @ norm.b
        weight *= norm.w
    norm.w.fill_(1.0)
    if norm.b is not None:
        norm.b.zero_()


def _fold_value_biases(model: HookedDecoder) -> None:
    for block in model.blocks:
        attn: Attention = block.attn
        if attn.v.bias is None:
            continue
        assert attn.o.bias is not None
        per_head = attn.v.bias.unflatten(0, (-1, attn.d_head)).repeat_interleave(model.cfg.group_size, 0)
        attn.o.bias += attn.o.weight @ per_head.flatten()
        attn.v.bias.zero_()


def _centre_writes(model: HookedDecoder) -> None:
    model.embed.W_E -= model.embed.W_E.mean(1, keepdim=True)
    if model.pos_embed is not None:
        model.pos_embed.W_pos -= model.pos_embed.W_pos.mean(1, keepdim=True)
    for block in model.blocks:
        writers = [block.attn.o] + ([] if block.mlp is None else [block.mlp.out])
        for writer in writers:
            writer.weight -= writer.weight.mean(0)
            if writer.bias is not None:
                writer.bias -= writer.bias.mean()
