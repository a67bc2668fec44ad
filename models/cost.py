"""What a decoder costs: parameters, forward FLOPs and KV-cache bytes, as formulas over its configuration.

With n new tokens after m cached ones (m = 0 for a full sequence), d = d_model, H query heads and G kv heads of width
d_h, an MLP of width f, L layers and a vocabulary of V, and 2 FLOPs for each multiply-and-add:

==============  =======================================================  ======================================
component       FLOPs per sequence                                       parameters (with all biases)
==============  =======================================================  ======================================
projections     L * 2n * d * d_h * (2H + 2G)                             L * (2H + 2G) d d_h
                                                                         + L * ((H + 2G) d_h + d)
attention       L * 4n(n + m) * H * d_h                                  none
MLP             L * 4n * d * f,  gated L * 6n * d * f                    L * (2df + f + d),  gated L * (3df + 2f + d)
norms           5 n d each (2L + 1 pre-norm, 2L post-norm)               d each, 2d with bias
                + L * 4n (H + G) d_h with ``qk_norm``                    + L * 2 d_h per head, or (H + G) d_h
un/embedding    2n * d * V (the embedding is a lookup)                   Vd, or 2Vd untied; + V with a bias
positions       none counted                                             n_ctx * d where learned
==============  =======================================================  ======================================

So attention is O(n^2 d) over a full sequence and O(n d) for one cached step, and everything else is linear in n
("Inside the Transformer Decoder", figure 7). The causal half of the scores is counted as computed, as dense kernels
and ``torch.utils.flop_counter`` count it. FLOPs of activations, softmax and residual additions are left out; those
of norms are an estimate (square, sum, divide, gain, bias), all others are exact for dense matrix products.

A KV cache holds 2 * L * G * d_h values per token and sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from models.config import DecoderConfig
from models.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One quantity by component; which quantity, its unit says: parameters, or FLOPs.

    Attributes:
        projections: the maps to queries, keys and values, and from the heads to the residual stream.
        attention: scores and the weighted sum of values.
        mlp: all MLPs.
        norms: all norms, the final one included.
        embedding: the table of tokens.
        positions: the table of learned positions.
        unembedding: the map to logits; 0 parameters where it is tied.
    """

    projections: int
    attention: int
    mlp: int
    norms: int
    embedding: int
    positions: int
    unembedding: int

    @property
    def total(self) -> int:
        """The sum over components."""
        return sum(getattr(self, field.name) for field in fields(self))


def _n_norms(cfg: DecoderConfig) -> int:
    if cfg.norm == "none":
        return 0
    per_layer = 1 if cfg.attn_only else 2
    return per_layer * cfg.n_layers + (cfg.norm_position == "pre")


def _qk_gains(cfg: DecoderConfig) -> int:
    """Return the gains of one layer's norms on queries and keys."""
    return {"none": 0, "head": 2 * cfg.d_head, "flat": (cfg.n_heads + cfg.n_kv_heads) * cfg.d_head}[cfg.qk_norm]


def parameters(cfg: DecoderConfig) -> Cost:
    """Return the number of learned parameters by component.

    A model at the size of a typical "7B" one:

    >>> seven = DecoderConfig(n_layers=32, d_model=4096, n_heads=32, d_mlp=16384, d_vocab=50_000, n_ctx=2048,
    ...                       positions="rotary", norm="rms", qkv_bias=False, out_bias=False, mlp_bias=False)
    >>> count = parameters(seven)
    >>> f"{count.projections + count.mlp:,} in the blocks, {count.embedding:,} embedding, {count.total:,} in all"
    '6,442,450,944 in the blocks, 204,800,000 embedding, 6,852,317,184 in all'
    """
    heads, kv_heads = cfg.n_heads * cfg.d_head, cfg.n_kv_heads * cfg.d_head
    projections = cfg.d_model * (2 * heads + 2 * kv_heads)
    projections += (heads + 2 * kv_heads) * cfg.qkv_bias + cfg.d_model * cfg.out_bias
    mlp = 0
    if cfg.d_mlp is not None:
        inward = 2 if cfg.gated else 1
        mlp = (inward + 1) * cfg.d_model * cfg.d_mlp + (inward * cfg.d_mlp + cfg.d_model) * cfg.mlp_bias
    table = cfg.d_vocab * cfg.d_model
    return Cost(
        projections=cfg.n_layers * projections,
        attention=0,
        mlp=cfg.n_layers * mlp,
        norms=_n_norms(cfg) * cfg.d_model * (1 + cfg.norm_bias) + cfg.n_layers * _qk_gains(cfg),
        embedding=table,
        positions=cfg.n_ctx * cfg.d_model if cfg.positions == "learned" else 0,
        unembedding=(0 if cfg.tied else table) + cfg.d_vocab * cfg.unembed_bias,
    )


def forward_flops(cfg: DecoderConfig, n_new: int, n_cached: int = 0, batch: int = 1) -> Cost:
    """Return the FLOPs of one forward pass by component.

    Args:
        n_new: tokens per sequence that the pass is given.
        n_cached: tokens whose keys and values a KV cache already holds.
        batch: sequences.

    Raises:
        InputError: fewer than one token, or more than ``n_ctx`` in all.

    The price of one more token, with and without a cache, grows as n and as n^2 in attention alone:

    >>> cfg = DecoderConfig(n_layers=12, d_model=768, n_heads=12, d_vocab=50257, n_ctx=1024)
    >>> step = [forward_flops(cfg, 1, n_cached=n - 1).attention for n in (256, 512)]
    >>> full = [forward_flops(cfg, n).attention for n in (256, 512)]
    >>> step[1] // step[0], full[1] // full[0]
    (2, 4)
    """
    if n_new < 1 or n_cached < 0 or batch < 1 or n_new + n_cached > cfg.n_ctx:
        raise InputError(
            f"n_new {n_new}, n_cached {n_cached}, batch {batch}; expected at least 1 new token, 0 cached and "
            f"1 sequence, and at most n_ctx {cfg.n_ctx} tokens"
        )
    rows = batch * n_new
    heads, kv_heads = cfg.n_heads * cfg.d_head, cfg.n_kv_heads * cfg.d_head
    matrices = 0 if cfg.d_mlp is None else 3 if cfg.gated else 2
    return Cost(
        projections=cfg.n_layers * 2 * rows * cfg.d_model * (2 * heads + 2 * kv_heads),
        attention=cfg.n_layers * 4 * rows * (n_new + n_cached) * heads,
        mlp=cfg.n_layers * 2 * rows * matrices * cfg.d_model * (cfg.d_mlp or 0),
        norms=_n_norms(cfg) * 5 * rows * cfg.d_model
        + 4 * cfg.n_layers * rows * (heads + kv_heads) * (cfg.qk_norm != "none"),
        embedding=0,
        positions=0,
        unembedding=2 * rows * cfg.d_model * cfg.d_vocab,
    )


def kv_cache_bytes(cfg: DecoderConfig, n: int, batch: int = 1, dtype: torch.dtype = torch.float32) -> int:
    """Return the size of a KV cache of ``n`` tokens in bytes.

    >>> gpt2 = DecoderConfig(n_layers=12, d_model=768, n_heads=12, d_vocab=50257, n_ctx=1024)
    >>> kv_cache_bytes(gpt2, 1024, dtype=torch.float16) // 2**20
    36
    """
    return 2 * cfg.n_layers * cfg.n_kv_heads * cfg.d_head * n * batch * dtype.itemsize
