"""Absolute positions, and the vectors that learned or sinusoidal positions add to the embedding.

Sinusoidal (2017, section 3.5):  PE(pos, 2i) = sin(pos / 10000^(2i/d)),  PE(pos, 2i+1) = cos(pos / 10000^(2i/d))
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.config import PositionsConfig


def absolute_positions(
    real: Bool[Tensor, "batch pos"] | None, n_new: int, device: torch.device, offset: int = 0
) -> Int[Tensor, "batch pos"]:
    """Return the absolute position of the last ``n_new`` columns: how many real tokens stand before each.

    Padding does not count, whichever side it is on; a padded column gets the nearest position, which no real token
    can see. Without a mask the batch axis is 1.

    >>> absolute_positions(torch.tensor([[False, True, True]]), 3, torch.device("cpu")).tolist()
    [[0, 0, 1]]
    """
    if real is None:
        return torch.arange(offset, offset + n_new, device=device)[None]
    return (real.long().cumsum(-1) - 1).clamp(min=0)[:, -n_new:]


def sinusoids(n_ctx: int, d_model: int) -> Float[Tensor, "n_ctx d_model"]:
    """Return the table of the 2017 paper; sines and cosines alternate."""
    pos = torch.arange(n_ctx, dtype=torch.float64, device="cpu")[:, None]
    frequency = 10_000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model)
    angle = pos * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).float()


class PositionEmbedding(nn.Module):
    """A table of vectors by absolute position: a parameter when learned, a buffer when sinusoidal."""

    def __init__(self, cfg: PositionsConfig) -> None:
        super().__init__()
        assert cfg.positions in ("learned", "sinusoidal")
        if cfg.positions == "learned":
            self.W_pos: Tensor = nn.Parameter(torch.empty(cfg.n_ctx, cfg.d_model))
        else:
            self.register_buffer("W_pos", sinusoids(cfg.n_ctx, cfg.d_model), persistent=False)

    def forward(self, positions: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        return self.W_pos[positions]
