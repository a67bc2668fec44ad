"""The QK fix of AtP* (arXiv 2403.00745, section 3.1.1): queries and keys act through a softmax that may be saturated.

Instead of a gradient through the softmax, the softmax is computed anew with the patched query or key, and the change of
the pattern is multiplied by the metric's gradient with respect to the pattern:

    sum_j (softmax(s + ds)_ij - softmax(s)_ij) g_ij          with  s = q k^T / sqrt(d_head)

A patched query changes its own row. A patched key at column j changes one score of every row; with w = exp(s), that
row's new weighted gradient is (w_j e^ds g_j + sum_{k != j} w_k g_k) / (w_j e^ds + sum_{k != j} w_k).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from models.config import StackConfig

_LARGEST = 700.0  # exp of it is finite in float64


def needed(site: str, cfg: StackConfig) -> list[str]:
    """Return the hooks, without ``blocks.{l}.``, whose activations ``pattern_effect`` reads, in both runs."""
    turned = "rot_" if cfg.positions == "rotary" else ""
    return [f"attn.hook_{turned}q", f"attn.hook_{turned}k", "attn.hook_attn_scores"]


def pattern_effect(
    site: str,
    layer: int,
    cfg: StackConfig,
    base: Mapping[str, Tensor],
    source: Mapping[str, Tensor],
    gradient: Float[Tensor, "batch head query_pos key_pos"],
    by_position: bool,
    scale: float,
) -> Float[Tensor, "batch head pos"]:
    """Return what patching q (or k) does to the metric through the pattern, for each head and position.

    Args:
        site: ``q``, or ``k``: its heads are then key/value heads.
        layer, cfg: where.
        base, source: activations of the run patched into, and of the other; see ``needed``.
        gradient: of the metric with respect to the pattern.
        by_position: patch keys one position at a time; else all at once, and the last axis has length 1.
        scale: what q.k is multiplied by, 1 / sqrt(d_head).
    """
    q_name, k_name, scores_name = (f"blocks.{layer}.{hook}" for hook in needed(site, cfg))
    q, k = base[q_name].double(), base[k_name].double()
    if site == "q":
        q = source[q_name].double() - q
    else:
        k = source[k_name].double() - k
    grouped = rearrange(q, "batch pos (kv_head group) d -> batch pos kv_head group d", kv_head=cfg.n_kv_heads)
    change = einsum(grouped, k, "batch q kv_head group d, batch k kv_head d -> batch kv_head group q k")
    change = change.flatten(1, 2) * scale
    scores, gradient = base[scores_name].double(), gradient.double()
    if site == "k" and by_position:
        return _by_group(_one_key(scores, change, gradient).sum(-2), cfg)
    effect = (((scores + change).softmax(-1) - scores.softmax(-1)) * gradient).sum(-1)
    return effect if site == "q" else _by_group(effect.sum(-1, keepdim=True), cfg)


def _by_group(effect: Float[Tensor, "batch head pos"], cfg: StackConfig) -> Float[Tensor, "batch kv_head pos"]:
    """Sum over the query heads that read one key/value head: each has a pattern of its own."""
    return effect.unflatten(1, (cfg.n_kv_heads, -1)).sum(2)


def _one_key(scores: Tensor, change: Tensor, gradient: Tensor) -> Float[Tensor, "batch head query_pos key_pos"]:
    """Return what the change of each score alone does to its row's weighted gradient."""
    weight = (scores - scores.amax(-1, keepdim=True)).exp()
    own = weight * change.clamp(-_LARGEST, _LARGEST).exp()
    others, others_weighted = _all_but_one(weight), _all_but_one(weight * gradient)
    before = (weight * gradient).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True)
    return (own * gradient + others_weighted) / (own + others) - before


def _all_but_one(x: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Return for each entry the sum of the others, without subtracting: a saturated row would lose them to rounding."""
    zero = torch.zeros_like(x[..., :1])
    before = torch.cat([zero, x[..., :-1].cumsum(-1)], dim=-1)
    after = torch.cat([x[..., 1:].flip(-1).cumsum(-1).flip(-1), zero], dim=-1)
    return before + after
