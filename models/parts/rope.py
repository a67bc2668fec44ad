"""Rotary positions (RoFormer, arXiv 2104.09864): queries and keys turn by an angle proportional to their position.

In plane j, position m turns (a, b) by m * theta_j, with theta_j = base^(-2j / rotary_dim):

    (a, b)  ->  (a cos - b sin,  a sin + b cos)

``half`` takes the planes (i, i + rotary_dim/2) (Llama, Hugging Face), ``interleaved`` the planes (2i, 2i+1) (the
paper, GPT-J). Dimensions beyond ``rotary_dim`` stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.config import AttentionConfig, RotaryLayout, RotaryScaling, of_layer

Rotation = tuple[Float[Tensor, "batch pos 1 planes"], Float[Tensor, "batch pos 1 planes"]]


def frequencies(cfg: AttentionConfig, layer: int = 0) -> Float[Tensor, "planes"]:
    """Return theta_j in radians per position, float32, scaled as ``cfg.rotary_scaling`` says of the layer."""
    assert cfg.rotary_dim is not None
    # in float32 and in this order, as Hugging Face computes it: a rounding here grows with the position
    exponent = torch.arange(0, cfg.rotary_dim, 2, dtype=torch.int64, device="cpu").float() / cfg.rotary_dim
    theta = 1.0 / (of_layer(cfg.rotary_base, layer) ** exponent)
    scaling = of_layer(cfg.rotary_scaling, layer)
    return theta if scaling is None else _scaled(theta, scaling)


def _scaled(theta: Tensor, scaling: RotaryScaling) -> Tensor:
    if scaling.kind == "linear":
        return theta / scaling.factor
    wavelength = 2 * math.pi / theta
    low, high = scaling.original_n_ctx / scaling.low_freq, scaling.original_n_ctx / scaling.high_freq
    keep = (scaling.original_n_ctx / wavelength - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    blended = (1 - keep) * theta / scaling.factor + keep * theta
    return torch.where(wavelength > low, theta / scaling.factor, torch.where(wavelength < high, theta, blended))


@dataclass(frozen=True, eq=False)
class Rotary:
    """How one layer turns its queries and keys.

    Attributes:
        theta: radians per position of every plane, float32 and on the CPU: a cast of the model must not round angles.
        layout: which dimensions make a plane.
    """

    theta: Float[Tensor, "planes"]
    layout: RotaryLayout

    @staticmethod
    def of(cfg: AttentionConfig, layer: int) -> Rotary | None:
        """Return a layer's rotation, None for a model that does not rotate."""
        return Rotary(frequencies(cfg, layer), cfg.rotary_layout) if cfg.positions == "rotary" else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rotary) and self.layout == other.layout and torch.equal(self.theta, other.theta)

    __hash__ = None  # type: ignore[assignment]


def rotation(theta: Float[Tensor, "planes"], positions: Int[Tensor, "batch pos"]) -> Rotation:
    """Return cos and sin of every angle, with an axis of length 1 for the heads."""
    angle = positions[..., None, None].float() * theta.to(positions.device)
    return angle.cos(), angle.sin()


def rotate(
    x: Float[Tensor, "batch pos head d_head"], turn: Rotation, layout: RotaryLayout
) -> Float[Tensor, "batch pos head d_head"]:
    """Turn every plane of ``x`` by its angle.

    >>> x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    >>> quarter = rotation(torch.tensor([math.pi / 2]), torch.tensor([[1]]))
    >>> [round(value, 6) + 0.0 for value in rotate(x, quarter, "half").flatten().tolist()]
    [0.0, 1.0]
    """
    cos, sin = (part.to(x.dtype) for part in turn)
    rotary_dim = 2 * cos.shape[-1]
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    if layout == "half":
        a, b = turned.chunk(2, dim=-1)
        parts = [a * cos - b * sin, b * cos + a * sin]
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        parts = [torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)]
    return torch.cat([*parts, rest] if rest.shape[-1] else parts, dim=-1)
