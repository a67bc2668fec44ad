"""What the hooks of a pre-norm decoder mean, as equations between their values: the table that ``probe`` goes through.

Of one layer, with s = sqrt(d_head) and the names of ``models.hooks.names``:

    normalized = (x - mean) / scale       scale = sqrt(mean square + eps)      RMS: without the mean
    scores_ij  = q_i . k_j / s            pattern = softmax(scores)            q, k rotated where they are
    z          = pattern v                attn_out = z W_O + b_O
    resid_mid  = resid_pre + attn_out     resid_post = resid_mid + mlp_out     parallel: their sum
    post       = act(pre) (* pre_linear)  mlp_out = post W_out + b_out

An equation is about one hook, ``of``: it holds in a plain run where ``of`` means what its name says. It holds in a run
edited at another hook it reads where that edit acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum, repeat
from torch import Tensor
from torch.nn import functional

from models.config import DecoderConfig

Sides = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Layer:
    """The activations of one run, without a batch axis, at one layer (None: outside the blocks), and its weights."""

    values: Mapping[str, Tensor]
    index: int | None
    cfg: DecoderConfig
    block: Any = None

    def name(self, hook: str) -> str:
        return hook if self.index is None else f"blocks.{self.index}.{hook}"

    def weight(self, part: str, name: str) -> Tensor | None:
        """Return a weight of the block as TransformerLens names it, None where it has none."""
        value = getattr(getattr(self.block, part), name, None)
        return value.detach().float() if isinstance(value, Tensor) else None

    def __getitem__(self, hook: str) -> Tensor:
        return self.values[self.name(hook)]


@dataclass(frozen=True, kw_only=True)
class Equation:
    """``of`` means what its name says where both sides agree, and an edit at one of ``acts`` acts where they still do.

    Attributes:
        of: the hook, without ``blocks.{l}.``, that is not listed where a plain run contradicts.
        reads: the other hooks that the sides read.
        acts: the hooks whose edit reaches what this is about.
        wrong: why ``of`` is not listed.
        sides: vectors along the last axis; None where a weight cannot be read.
        applies: to which configurations.
        without: only where this hook is not there.
    """

    of: str
    reads: tuple[str, ...]
    acts: tuple[str, ...]
    wrong: str
    sides: Callable[[Layer], Sides | None]
    applies: Callable[[DecoderConfig], bool] = lambda cfg: True
    without: str | None = None


def _serial(cfg: DecoderConfig) -> bool:
    return not cfg.parallel


def _parallel(cfg: DecoderConfig) -> bool:
    return cfg.parallel


def _rotary(cfg: DecoderConfig) -> bool:
    return cfg.positions == "rotary"


def _same(of: str, read: str, wrong: str, applies: Callable[[DecoderConfig], bool] = lambda cfg: True) -> Equation:
    return Equation(of=of, reads=(read,), acts=(read,), wrong=wrong, sides=lambda x: (x[of], x[read]), applies=applies)


def norm_equations(norm: str, reads: str) -> list[Equation]:
    """Return what the hooks of a norm mean that reads the hook ``reads``."""
    scale, normalized = f"{norm}.hook_scale", f"{norm}.hook_normalized"

    def centred(x: Layer) -> Tensor:
        stream = x[reads]
        return stream - stream.mean(-1, keepdim=True) if x.cfg.norm == "layer" else stream

    def divisor(x: Layer) -> Sides:
        return x[scale], (centred(x).pow(2).mean(-1, keepdim=True) + x.cfg.norm_eps).sqrt()

    def divided(x: Layer) -> Sides:
        return x[normalized], centred(x) / x[scale]

    not_scale, not_divided = f"it is not the divisor of {reads}", f"it is not {reads}, centred and divided by {scale}"
    return [
        Equation(of=scale, reads=(reads,), acts=(reads,), wrong=not_scale, sides=divisor),
        Equation(of=normalized, reads=(reads, scale), acts=(reads, scale), wrong=not_divided, sides=divided),
    ]


def _per_query_head(x: Layer, hook: str) -> Tensor:
    """Return keys or values once for each query head."""
    return repeat(x[hook], "pos kv_head d -> pos (kv_head group) d", group=x.cfg.group_size)


def _masked(scores: Tensor) -> Tensor:
    """Return where a cell is masked: ahead, or holding a dtype's lowest number."""
    n = scores.shape[-1]
    return torch.ones(n, n, dtype=torch.bool, device=scores.device).triu(1) | (scores < -3e4)


def _products(q: str, k: str) -> Callable[[Layer], Sides]:
    def sides(x: Layer) -> Sides:
        scores, keys = x[_SCORES], _per_query_head(x, k)
        products = einsum(x[q], keys, "query head d, key head d -> head query key") * x.cfg.d_head**-0.5
        return scores.masked_fill(_masked(scores), 0), products.masked_fill(_masked(scores), 0)

    return sides


def _weighted(x: Layer, pattern: Tensor) -> Sides:
    return x[_Z], einsum(pattern, _per_query_head(x, _V), "head query key, key head d -> query head d")


def _softmax(scores: Tensor) -> Tensor:
    return scores.masked_fill(_masked(scores), -torch.inf).softmax(-1)


def _total(x: Layer) -> Sides:
    total = x[_PATTERN].tril().sum(-1, keepdim=True)
    return total, torch.ones_like(total)


def _projected(part: str, name: str, reads: str, writes: str, axes: str) -> Callable[[Layer], Sides | None]:
    def sides(x: Layer) -> Sides | None:
        matrix, bias = x.weight(part, f"W_{name}"), x.weight(part, f"b_{name}")
        if matrix is None:
            return None
        written = einsum(x[reads], matrix, axes)
        return x[writes], written if bias is None else written + bias

    return sides


def _activated(x: Layer) -> Sides:
    act = {"gelu": functional.gelu, "gelu_tanh": _gelu_tanh, "relu": torch.relu, "silu": functional.silu}
    post: Tensor = act[x.cfg.act](x["mlp.hook_pre"])  # type: ignore[operator]
    return x["mlp.hook_post"], post * x["mlp.hook_pre_linear"] if x.cfg.gated else post


def _gelu_tanh(pre: Tensor) -> Tensor:
    return functional.gelu(pre, approximate="tanh")


def _gain(
    of: str, total: str, parts: tuple[str, ...], applies: Any = lambda cfg: True, without: Any = None
) -> Equation:
    others = tuple(part for part in parts if part != of)

    def sides(x: Layer) -> Sides:
        return x[total], torch.stack([x[part] for part in parts]).sum(0)

    return Equation(
        of=of, reads=(total, *others), acts=parts, sides=sides, applies=applies, without=without,
        wrong=f"it is not what the stream gains: {total} is not {' + '.join(parts)}",
    )  # fmt: skip


def _middle(x: Layer) -> Sides:
    """The stream between, from before or from after it: one of both must be right, be it that a write is not."""
    pairs = [(x[_MID], x[_PRE] + x[_ATTN]), (x[_POST], x[_MID] + x[_MLP])]
    return min(pairs, key=lambda pair: float((pair[0] - pair[1]).abs().max()))


_Q, _K, _SCORES, _PATTERN = "attn.hook_q", "attn.hook_k", "attn.hook_attn_scores", "attn.hook_pattern"
_ROT_Q, _ROT_K, _V, _Z = "attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_v", "attn.hook_z"
_PRE, _MID, _POST, _ATTN, _MLP = (
    "hook_resid_pre",
    "hook_resid_mid",
    "hook_resid_post",
    "hook_attn_out",
    "hook_mlp_out",
)
_NOT_SCORES = "it is not q.k / sqrt(d_head)"
_BETWEEN = "something more, such as a norm or a factor, lies between"

EQUATIONS = [
    _same("attn.hook_attn_in", _PRE, "it is not the stream entering the block"),
    *norm_equations("ln1", "attn.hook_attn_in"),
    Equation(
        of=_SCORES, reads=(_ROT_Q, _ROT_K), acts=(_ROT_Q, _ROT_K), wrong=_NOT_SCORES,
        sides=_products(_ROT_Q, _ROT_K), applies=_rotary,
    ),
    Equation(
        of=_SCORES, reads=(_Q, _K), acts=(_Q, _K), wrong=_NOT_SCORES,
        sides=_products(_Q, _K), applies=lambda cfg: not _rotary(cfg),
    ),
    Equation(
        of=_Z, reads=(_PATTERN, _V), acts=(_PATTERN, _V), wrong="it is not the pattern-weighted sum of v",
        sides=lambda x: _weighted(x, x[_PATTERN]),
    ),
    Equation(of=_PATTERN, reads=(), acts=(), wrong="its rows do not sum to 1", sides=_total),
    Equation(
        of=_SCORES, reads=(_V, _Z), acts=(_SCORES, _V), wrong="their softmax does not weigh v to z",
        sides=lambda x: _weighted(x, _softmax(x[_SCORES])),
    ),
    _gain(_ATTN, _MID, (_PRE, _ATTN), _serial),
    _gain(_MLP, _POST, (_MID, _MLP), _serial),
    Equation(
        of=_MID, reads=(_PRE, _POST), acts=(), sides=_middle, applies=_serial,
        wrong="it is neither resid_pre + attn_out nor resid_post - mlp_out",
    ),
    _gain(_ATTN, _POST, (_PRE, _ATTN, _MLP), without=_MID),
    Equation(
        of=_ATTN, reads=(_Z,), acts=(_Z,), wrong=f"it is not z W_O + b_O: {_BETWEEN}",
        sides=_projected("attn", "O", _Z, _ATTN, "pos head d, head d d_model -> pos d_model"),
    ),
    _same("hook_mlp_in", _MID, "it is not the stream after attention", _serial),
    _same("hook_mlp_in", _PRE, "it is not the stream entering the block", _parallel),
    *norm_equations("ln2", "hook_mlp_in"),
    Equation(
        of="mlp.hook_post", reads=("mlp.hook_pre",), acts=("mlp.hook_pre",), wrong="it is not act(pre), act as in cfg",
        sides=_activated, applies=lambda cfg: not cfg.gated,
    ),
    Equation(
        of="mlp.hook_post", reads=("mlp.hook_pre", "mlp.hook_pre_linear"),
        acts=("mlp.hook_pre", "mlp.hook_pre_linear"), wrong="it is not act(pre) * pre_linear, with act as in cfg",
        sides=_activated, applies=lambda cfg: cfg.gated,
    ),
    _gain(_MLP, _POST, (_PRE, _ATTN, _MLP), without=_MID),
    Equation(
        of=_MLP, reads=("mlp.hook_post",), acts=("mlp.hook_post",), wrong=f"it is not post W_out + b_out: {_BETWEEN}",
        sides=_projected("mlp", "out", "mlp.hook_post", _MLP, "pos d_mlp, d_mlp d_model -> pos d_model"),
    ),
]  # fmt: skip

# With another prompt's value at the first hook, these become that prompt's too, position by position.
REACHES = {
    _PRE: (_Q, _K, _V),
    "attn.hook_attn_in": (_Q, _K, _V),
    "ln1.hook_normalized": (_Q, _K, _V),
    _Q: (_ROT_Q,),
    _K: (_ROT_K,),
    _SCORES: (_PATTERN,),
    _Z: (_ATTN,),
    _MID: (_POST,),
    "hook_mlp_in": (_MLP,),
    "ln2.hook_normalized": (_MLP,),
    "mlp.hook_post": (_MLP,),
}
# Weaker, for hooks of which no equation can be written down from what is there: this one changes.
STIRS = dict.fromkeys(("attn.hook_attn_in", "ln1.hook_normalized", _Q, _K, _V, _ROT_Q, _ROT_K), _Z)
STIRS |= {"mlp.hook_pre": _MLP, "mlp.hook_pre_linear": _MLP}
# In a parallel block, an edit of what one sublayer alone reads leaves what the other writes as it was.
SPARES = {"attn.hook_attn_in": _MLP, "hook_mlp_in": _ATTN}
