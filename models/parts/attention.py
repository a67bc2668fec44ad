"""Multi-head attention with grouped keys and values, hooked.

    q = x W_Q + b_Q        k = x W_K + b_K        v = x W_V + b_V
    scores = q k^T / sqrt(d_head)                 (q and k rotated first, for rotary positions)
    pattern = softmax(mask(scores))
    z = pattern v          result_h = z_h W_O,h   out = sum_h result_h + b_O

Query head h reads kv head h // group_size (GQA, arXiv 2305.13245). While nothing is attached to the scores or the
pattern, and no function transform is in play, torch's fused kernel computes z. It keeps scores in float32 whatever the
model's dtype, and so do the hooked scores: in float16 they may pass 65,504, in bfloat16 rounding one of 50 moves its
weight by a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from models.config import StackConfig
from models.hooks.point import HookPoint
from models.parts.kv_cache import LayerKV
from models.parts.linear import Linear
from models.parts.masks import AttentionMask
from models.parts.rope import Rotation, rotate
from models.parts.transforms import in_transform


@dataclass(frozen=True)
class Step:
    """What every block of one forward pass shares: where its columns stand and what they may see."""

    positions: Int[Tensor, "batch pos"]
    mask: AttentionMask
    rotation: Rotation | None = None


class Attention(nn.Module):
    """One attention sublayer, without its norm.

    The weights are ``nn.Linear`` layers ``q, k, v, o``; ``W_Q`` ... ``W_O`` are views of them with the head axis
    first.

    Args:
        cfg: widths, heads, biases, rotary layout.
        cross: cross-attention: keys and values come from elsewhere, nothing is rotated, and there are no hooks
            on per-head inputs.
    """

    def __init__(self, cfg: StackConfig, *, cross: bool = False) -> None:
        super().__init__()
        self.d_head, self.n_heads, self.n_kv_heads = cfg.d_head, cfg.n_heads, cfg.n_kv_heads
        self.rotary = cfg.positions == "rotary" and not cross
        self.rotary_layout = cfg.rotary_layout
        self.scale = cfg.d_head**-0.5
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, bias=cfg.qkv_bias)
        self.k = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.qkv_bias)
        self.v = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.qkv_bias)
        self.o = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, bias=cfg.out_bias)

        self.hook_attn_in = HookPoint()
        self.hook_q = HookPoint()
        self.hook_k = HookPoint()
        self.hook_v = HookPoint()
        if self.rotary:
            self.hook_rot_q = HookPoint()
            self.hook_rot_k = HookPoint()
        self.hook_attn_scores = HookPoint()
        self.hook_pattern = HookPoint()
        self.hook_z = HookPoint()
        self.hook_result = HookPoint()

    # -- views of the weights, head first ------------------------------------------------------------------------

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_head"]:
        return rearrange(self.q.weight, "(head d_head) d_model -> head d_model d_head", d_head=self.d_head)

    @property
    def W_K(self) -> Float[Tensor, "kv_head d_model d_head"]:
        return rearrange(self.k.weight, "(head d_head) d_model -> head d_model d_head", d_head=self.d_head)

    @property
    def W_V(self) -> Float[Tensor, "kv_head d_model d_head"]:
        return rearrange(self.v.weight, "(head d_head) d_model -> head d_model d_head", d_head=self.d_head)

    @property
    def W_O(self) -> Float[Tensor, "head d_head d_model"]:
        return rearrange(self.o.weight, "d_model (head d_head) -> head d_head d_model", d_head=self.d_head)

    # -- the forward pass ----------------------------------------------------------------------------------------

    def forward(
        self,
        q_input: Float[Tensor, "batch pos *head d_model"],
        k_input: Float[Tensor, "batch key_pos *kv_head d_model"],
        v_input: Float[Tensor, "batch key_pos *kv_head d_model"],
        step: Step,
        past: LayerKV | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Attend; inputs are shared by all heads, or have a head axis where a hook made them differ."""
        q = self.hook_q(self._project(self.q, q_input))
        k = self.hook_k(self._project(self.k, k_input))
        v = self.hook_v(self._project(self.v, v_input))
        if self.rotary:
            q = self.hook_rot_q(self.rotate(q, step.rotation))
            k = self.hook_rot_k(self.rotate(k, step.rotation))
        if past is not None:
            k, v = past.append(k, v)
        z = self.hook_z(self.attend(q, k, v, step.mask))
        return self.write(z)

    def _project(self, linear: nn.Linear, x: Tensor) -> Float[Tensor, "batch pos head d_head"]:
        if x.ndim == 3:
            return linear(x).unflatten(-1, (-1, self.d_head))
        weight = rearrange(linear.weight, "(head d_head) d_model -> head d_model d_head", d_head=self.d_head)
        out = einsum(x, weight, "batch pos head d_model, head d_model d_head -> batch pos head d_head")
        return out if linear.bias is None else out + linear.bias.unflatten(0, (-1, self.d_head))

    def rotate(
        self, x: Float[Tensor, "*batch pos head d_head"], turn: Rotation | None
    ) -> Float[Tensor, "*batch pos head d_head"]:
        """Turn queries or keys by their positions; without rotary positions, return them as they are."""
        return rotate(x, turn, self.rotary_layout) if self.rotary and turn is not None else x

    def attend(
        self,
        q: Float[Tensor, "batch pos head d_head"],
        k: Float[Tensor, "batch key_pos kv_head d_head"],
        v: Float[Tensor, "batch key_pos kv_head d_head"],
        mask: AttentionMask,
    ) -> Float[Tensor, "batch pos head d_head"]:
        """Return each head's weighted sum of values: fused, or step by step where scores or pattern are hooked."""
        if not (self.hook_attn_scores.in_use or self.hook_pattern.in_use or in_transform()):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            grouped = q.shape[1] != k.shape[1]
            z = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask.allowed, is_causal=mask.causal, scale=self.scale, enable_gqa=grouped
            )
            return z.transpose(1, 2)
        scores = self.hook_attn_scores(mask.apply(self.scores(q, k)))
        pattern = self.hook_pattern(scores.softmax(-1).to(v.dtype))
        grouped_pattern = rearrange(pattern, "batch (kv_head group) q k -> batch kv_head group q k", kv_head=v.shape[2])
        z = einsum(grouped_pattern, v, "batch kv_head group q k, batch k kv_head d -> batch q kv_head group d")
        return z.flatten(2, 3)

    def scores(
        self, q: Float[Tensor, "batch pos head d_head"], k: Float[Tensor, "batch key_pos kv_head d_head"]
    ) -> Float[Tensor, "batch head query_pos key_pos"]:
        """Return q.k / sqrt(d_head), before the mask; at least float32, as in the fused kernel."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide) * self.scale, k.to(wide)
        grouped = rearrange(q, "batch pos (kv_head group) d -> batch pos kv_head group d", kv_head=k.shape[2])
        scores = einsum(grouped, k, "batch q kv_head group d, batch k kv_head d -> batch kv_head group q k")
        return scores.flatten(1, 2)

    def results(self, z: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos head d_model"]:
        """Return what each head writes, without b_O."""
        return einsum(z, self.W_O, "batch pos head d_head, head d_head d_model -> batch pos head d_model")

    def write(self, z: Float[Tensor, "batch pos head d_head"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the sublayer's output; head by head only where a hook may change one head's result."""
        if self.hook_result.in_use:
            result = self.hook_result(self.results(z))
            if self.hook_result.acts:
                out = result.sum(2)
                return out if self.o.bias is None else out + self.o.bias
        return self.o(z.flatten(2))
