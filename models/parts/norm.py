"""LayerNorm and RMSNorm, hooked.

LayerNorm:  y = (x - mean(x)) / scale * w + b,   scale = sqrt(mean((x - mean(x))^2) + eps)
RMSNorm:    y = x / scale * w,                   scale = sqrt(mean(x^2) + eps)

``hook_scale`` is the divisor, ``hook_normalized`` the quotient before gain and bias, for both kinds (as in
TransformerLens 4). With nothing attached, torch's fused kernel runs. Statistics are taken in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models.config import NormConfig
from models.hooks.point import HookPoint


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last axis, or the last axes.

    Args:
        shape: of what is normed, such as ``(d_model,)``.
        centred: LayerNorm, which takes the mean first.
        eps: added to the mean square.
        bias: whether one is added.
    """

    def __init__(self, shape: tuple[int, ...], *, centred: bool, eps: float, bias: bool = False) -> None:
        super().__init__()
        self.centred, self.eps = centred, eps
        self.axes = tuple(range(-len(shape), 0))
        self.w = nn.Parameter(torch.ones(shape))
        self.b = nn.Parameter(torch.zeros(shape)) if bias else None
        self.hook_scale = HookPoint()
        self.hook_normalized = HookPoint()

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        if not (self.hook_scale.in_use or self.hook_normalized.in_use):
            return self.unhooked(x)
        centred, scale = self.statistics(x)
        scale = self.hook_scale(scale)
        return self.affine(self.hook_normalized((centred / scale).to(x.dtype)))

    def statistics(self, x: Float[Tensor, "... d_model"]) -> tuple[Tensor, Tensor]:
        """Return the centred input (for RMSNorm the input) and the divisor, both at least float32."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        centred = self.centre(x)
        return centred, (centred.square().mean(self.axes, keepdim=True) + self.eps).sqrt()

    def normalised(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Return the input centred and divided, before gain and bias, at least float32."""
        centred, scale = self.statistics(x)
        return centred / scale

    def centre(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Take away what the norm does not see: for LayerNorm the mean, for RMSNorm nothing."""
        return x - x.mean(self.axes, keepdim=True) if self.centred else x

    def gain(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Multiply by the gain, at least in float32."""
        return x * self.w.to(torch.promote_types(self.w.dtype, torch.float32))

    def gain_of(self, head: int, x: Float[Tensor, "*any d_head"]) -> Float[Tensor, "*any d_head"]:
        """Multiply one head by its gain; the same for all, or each its own."""
        return x * (self.w if self.w.ndim == 1 else self.w[head]).to(x.dtype)

    def affine(self, normalized: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """Apply gain and bias."""
        scaled = normalized * self.w
        return scaled if self.b is None else scaled + self.b

    def unhooked(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """The same function past the hooks, by torch's fused kernel."""
        if self.centred:
            return F.layer_norm(x, self.w.shape, self.w, self.b, self.eps)
        return F.rms_norm(x, self.w.shape, self.w, self.eps)


class NoNorm(nn.Module):
    """The norm of a model without norms: the identity, with no hooks because nothing happens here."""

    centred = False
    b = None

    def forward(self, x: Tensor) -> Tensor:
        return x

    unhooked = normalised = centre = gain = affine = forward

    def gain_of(self, head: int, x: Tensor) -> Tensor:
        return x


def make_norm(cfg: NormConfig) -> Norm | NoNorm:
    """Return the norm of the residual stream that ``cfg`` asks for."""
    if cfg.norm == "none":
        return NoNorm()
    return Norm((cfg.d_model,), centred=cfg.norm == "layer", eps=cfg.norm_eps, bias=cfg.norm_bias)


def make_final_norm(cfg: NormConfig) -> Norm | NoNorm:
    """Return the norm before the unembedding; post-norm, the last block ends in one already."""
    return make_norm(cfg) if cfg.norm_position == "pre" else NoNorm()
