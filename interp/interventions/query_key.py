"""The QK fix of AtP* (arXiv 2403.00745, section 3.1.1): queries and keys act through a softmax that may be saturated.

Instead of a gradient through the softmax, the softmax is computed anew with the patched query or key, and the change of
the pattern is multiplied by the metric's gradient with respect to the pattern:

    sum_j (softmax(s + ds)_ij - softmax(s)_ij) g_ij          with  s = q k^T / sqrt(d_head)

A patched query changes its own row. A patched key at column j changes one score of every row; with w = exp(s), that
row's new weighted gradient is (w_j e^ds g_j + sum_{k != j} w_k g_k) / (w_j e^ds + sum_{k != j} w_k).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from interp.decoders import is_resumable
from models.config import StackConfig
from models.parts.step import Step
from models.protocol import HookedModel

_LARGEST = 700.0  # exp of it is finite in float64


def needed(model: HookedModel) -> list[str]:
    """Return the hooks, without ``blocks.{l}.``, whose activations ``pattern_effect`` reads, in both runs."""
    turned = "rot_" if not is_resumable(model) and "blocks.0.attn.hook_rot_q" in model.hook_names() else ""
    return [f"attn.hook_{turned}q", f"attn.hook_{turned}k", "attn.hook_attn_scores"]


@dataclass(frozen=True)
class QueryKeyRuns:
    """Two runs' queries and keys.

    Attributes:
        model: any hooked model.
        base, source: activations of the run patched into, and of the other; see ``needed``.
        step: where the columns stand, for our models.
    """

    model: HookedModel
    base: Mapping[str, Tensor]
    source: Mapping[str, Tensor]
    step: Step | None

    def effect(
        self,
        site: str,
        layer: int,
        gradient: Float[Tensor, "batch head query_pos key_pos"],
        *,
        by_head: bool,
        by_position: bool,
    ) -> Float[Tensor, "batch head pos"]:
        """Return what patching q (or k) of one layer does to the metric through the pattern.

        Args:
            site: ``q``, or ``k``: its heads are then key/value heads.
            layer: which.
            gradient: of the metric with respect to the pattern.
            by_head: patch heads one at a time; else the sum over heads is what patching all does.
            by_position: patch keys one position at a time; else all at once, and the last axis has length 1.
        """
        patched = self._raw(self.source, layer)[0 if site == "q" else 1]
        if not by_head or self._heads_apart(layer):
            return self._effect(site, layer, patched, gradient, by_position)
        own = self._raw(self.base, layer)[0 if site == "q" else 1]
        effects = []
        for head in range(own.shape[2]):
            one = own.clone()
            one[:, :, head] = patched[:, :, head]
            effects.append(self._effect(site, layer, one, gradient, by_position).sum(1))
        return torch.stack(effects, dim=1)

    def _effect(self, site: str, layer: int, patched: Tensor, gradient: Tensor, by_position: bool) -> Tensor:
        q, k = self._raw(self.base, layer)
        base = self._meeting(layer, q, k)
        source = self._meeting(layer, patched, k) if site == "q" else self._meeting(layer, q, patched)
        model = self.model
        scale = model.blocks[layer].attn.scale if is_resumable(model) else model.cfg.d_head**-0.5
        scores = self.base[f"blocks.{layer}.attn.hook_attn_scores"]
        return pattern_effect(site, model.cfg, base, source, scores, gradient, by_position, scale)

    def _raw(self, run: Mapping[str, Tensor], layer: int) -> tuple[Tensor, Tensor]:
        q, k = (run[f"blocks.{layer}.{hook}"] for hook in needed(self.model)[:2])
        return q, k

    def _heads_apart(self, layer: int) -> bool:
        return not is_resumable(self.model) or self.model.blocks[layer].attn.heads_apart

    def _meeting(self, layer: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys as they meet."""
        if is_resumable(self.model):
            assert self.step is not None
            attn = self.model.blocks[layer].attn
            q, k = attn.queries(q, self.step), attn.keys(k, self.step)
        return q.double(), k.double()


def pattern_effect(
    site: str,
    cfg: StackConfig,
    base: tuple[Tensor, Tensor],
    source: tuple[Tensor, Tensor],
    scores: Float[Tensor, "batch head query_pos key_pos"],
    gradient: Float[Tensor, "batch head query_pos key_pos"],
    by_position: bool,
    scale: float,
) -> Float[Tensor, "batch head pos"]:
    """Return what patching q (or k) does to the metric through the pattern, for each head and position.

    Args:
        site: ``q``, or ``k``: its heads are then key/value heads.
        cfg: of the model.
        base, source: queries and keys of the run patched into, and of the other, as they meet.
        scores: of the run patched into.
        gradient: of the metric with respect to the pattern.
        by_position: patch keys one position at a time; else all at once, and the last axis has length 1.
        scale: what q.k is multiplied by, 1 / sqrt(d_head).
    """
    q, k = base
    if site == "q":
        q = source[0] - q
    else:
        k = source[1] - k
    grouped = rearrange(q, "batch pos (kv_head group) d -> batch pos kv_head group d", kv_head=cfg.n_kv_heads)
    change = einsum(grouped, k, "batch q kv_head group d, batch k kv_head d -> batch kv_head group q k")
    change = change.flatten(1, 2) * scale
    scores, gradient = scores.double(), gradient.double()
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
