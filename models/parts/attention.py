"""Multi-head attention with grouped keys and values, hooked.

    q = x W_Q + b_Q        k = x W_K + b_K        v = x W_V + b_V
    scores = q k^T / sqrt(d_head)                 (q and k normed with ``qk_norm``, then rotated for rotary positions)
    pattern = softmax(mask(scores))
    z = pattern v          result_h = z_h W_O,h   out = sum_h result_h + b_O

Query head h reads kv head h // group_size (GQA, arXiv 2305.13245). While nothing is attached to the scores or the
pattern, and no function transform is in play, torch's fused kernel computes z. It keeps scores in float32 whatever the
model's dtype, and so do the hooked scores: in float16 they may pass 65,504, in bfloat16 rounding one of 50 moves its
weight by a tenth.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from models.config import AttentionConfig, of_layer
from models.hooks.point import HookPoint
from models.parts.kv_cache import LayerKV
from models.parts.linear import Linear
from models.parts.masks import AttentionMask
from models.parts.norm import NoNorm, Norm
from models.parts.rope import Rotary, rotate
from models.parts.step import Step
from models.parts.transforms import in_transform


class Attention(nn.Module):
    """One attention sublayer, without its norm.

    The weights are ``nn.Linear`` layers ``q, k, v, o``; ``W_Q`` ... ``W_O`` are views of them with the head axis
    first.

    Args:
        cfg: widths, heads, biases, windows, rotary positions.
        layer: whose values of options that differ by layer.
        cross: cross-attention: keys and values come from elsewhere, nothing is rotated, and there are no hooks
            on per-head inputs.
    """

    def __init__(self, cfg: AttentionConfig, layer: int = 0, *, cross: bool = False) -> None:
        super().__init__()
        self.d_head, self.n_heads, self.n_kv_heads = cfg.d_head, cfg.n_heads, cfg.n_kv_heads
        self.rotary = None if cross else Rotary.of(cfg, layer)
        self.window = of_layer(cfg.sliding_window, layer)
        self.scale = cfg.d_head**-0.5
        self.q_norm, self.k_norm = _qk_norm(cfg, cfg.n_heads), _qk_norm(cfg, cfg.n_kv_heads)
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, bias=cfg.qkv_bias)
        self.k = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.qkv_bias)
        self.v = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=cfg.qkv_bias)
        self.o = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, bias=cfg.out_bias)

        self.hook_attn_in = HookPoint()
        self.hook_q = HookPoint()
        self.hook_k = HookPoint()
        self.hook_v = HookPoint()
        if self.rotary is not None:
            self.hook_rot_q = HookPoint()
            self.hook_rot_k = HookPoint()
        self.hook_attn_scores = HookPoint()
        self.hook_pattern = HookPoint()
        self.hook_z = HookPoint()
        self.hook_result = HookPoint()

    @property
    def readers(self) -> tuple[nn.Linear, ...]:
        """What is read with."""
        return self.q, self.k, self.v

    @property
    def writer(self) -> nn.Linear:
        """What is written with."""
        return self.o

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
        q = self.queries(self.hook_q(self.project(self.q, q_input)), step)
        k = self.keys(self.hook_k(self.project(self.k, k_input)), step)
        v = self.hook_v(self.project(self.v, v_input))
        if self.rotary is not None:
            q, k = self.hook_rot_q(q), self.hook_rot_k(k)
        if past is not None:
            k, v = past.append(k, v)
        z = self.hook_z(self.attend(q, k, v, step.mask(self.window)))
        return self.write(z)

    def project(self, linear: nn.Linear, x: Float[Tensor, "batch pos *head d_model"]) -> Tensor:
        """Return queries, keys or values, ``[batch, pos, head, d_head]``, of one input or of one for each head."""
        if x.ndim == 3:
            return linear(x).unflatten(-1, (-1, self.d_head))
        weight = rearrange(linear.weight, "(head d_head) d_model -> head d_model d_head", d_head=self.d_head)
        out = einsum(x, weight, "batch pos head d_model, head d_model d_head -> batch pos head d_head")
        return out if linear.bias is None else out + linear.bias.unflatten(0, (-1, self.d_head))

    def queries(self, q: Float[Tensor, "*batch pos head d_head"], step: Step) -> Tensor:
        """Return projected queries as they meet keys: normed and turned, where the model does it."""
        return self._turned(self.q_norm(q), step)

    def keys(self, k: Float[Tensor, "*batch pos kv_head d_head"], step: Step) -> Tensor:
        """Return projected keys as they meet queries."""
        return self._turned(self.k_norm(k), step)

    def _turned(self, x: Tensor, step: Step) -> Tensor:
        return x if self.rotary is None else rotate(x, step.rotation(self.rotary), self.rotary.layout)

    @property
    def heads_apart(self) -> bool:
        """Whether a head's queries and keys, as they meet, come of that head's projections alone."""
        return not isinstance(self.q_norm, Norm) or len(self.q_norm.axes) == 1

    def linear_query(self, head: int, x: Float[Tensor, "*any d_head"], offset: int | None) -> Tensor:
        """Return the linear part of what ``queries`` makes of a head, seen from a key ``offset`` positions before.

        What a norm divides by is left out: one positive factor for each query.
        """
        x = self.q_norm.gain_of(head, x)
        if offset is None:
            return x
        step = Step(torch.tensor([[offset]], device=x.device), n_key=1)
        return self._turned(x.reshape(-1, 1, 1, x.shape[-1]), step).view(x.shape)

    def linear_key(self, kv_head: int, x: Float[Tensor, "*any d_head"]) -> Tensor:
        """Return the linear part of what ``keys`` makes of a key/value head, not turned."""
        return self.k_norm.gain_of(kv_head, x)

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


def _qk_norm(cfg: AttentionConfig, n_heads: int) -> Norm | NoNorm:
    if cfg.qk_norm == "none":
        return NoNorm()
    shape = (cfg.d_head,) if cfg.qk_norm == "head" else (n_heads, cfg.d_head)
    return Norm(shape, centred=False, eps=cfg.norm_eps)
