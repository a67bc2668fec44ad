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

from models.config import StackConfig
from models.hooks.point import HookPoint


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last axis.

    Args:
        cfg: gives ``norm``, ``norm_eps``, ``norm_bias`` and ``d_model``.
    """

    def __init__(self, cfg: StackConfig) -> None:
        super().__init__()
        self.centred, self.eps = cfg.norm == "layer", cfg.norm_eps
        self.w = nn.Parameter(torch.ones(cfg.d_model))
        self.b = nn.Parameter(torch.zeros(cfg.d_model)) if cfg.norm_bias else None
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
        centred = x - x.mean(-1, keepdim=True) if self.centred else x
        return centred, (centred.square().mean(-1, keepdim=True) + self.eps).sqrt()

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

    def forward(self, x: Tensor) -> Tensor:
        return x

    def unhooked(self, x: Tensor) -> Tensor:
        return x


def make_norm(cfg: StackConfig) -> Norm | NoNorm:
    """Return the norm that ``cfg`` asks for."""
    return NoNorm() if cfg.norm == "none" else Norm(cfg)
