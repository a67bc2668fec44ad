"""What all blocks of one forward pass share: where its columns stand, and who is real.

Each layer makes of it what it needs, a mask for its window and a rotation for its frequencies; layers that need the
same get the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.parts.masks import AttentionMask, causal_mask, padding_mask
from models.parts.rope import Rotary, Rotation, rotation

Columns = slice | list[int]


@dataclass(frozen=True, eq=False)
class Step:
    """The columns of one pass, which are the last ones of ``n_key``.

    Attributes:
        positions: absolute positions, ``[batch, pos]``; batch 1 where all rows agree.
        n_key: columns that may be attended to, those in a KV cache included.
        real: False where one of them is padding; None where all are real.
        causal: whether a column sees earlier ones only.
    """

    positions: Int[Tensor, "batch pos"]
    n_key: int
    real: Bool[Tensor, "batch key_pos"] | None = None
    causal: bool = True
    _part_of: tuple[Step, Columns] | None = None
    _masks: dict[int | None, AttentionMask] = field(default_factory=dict)
    _rotations: list[tuple[Rotary, Rotation]] = field(default_factory=list)

    def mask(self, window: int | None = None) -> AttentionMask:
        """Return who may see whom in a layer with this sliding window."""
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        return self._masks[window]

    def _mask(self, window: int | None) -> AttentionMask:
        if self._part_of is not None:
            whole, columns = self._part_of
            every = torch.arange(whole.positions.shape[1], device=self.positions.device)
            return whole.mask(window).rows(every[columns], self.n_key)
        if not self.causal:
            return padding_mask(self.real)
        n_query = self.positions.shape[1]
        return causal_mask(n_query, self.n_key, device=self.positions.device, real=self.real, window=window)

    def rotation(self, rotary: Rotary) -> Rotation:
        """Return cos and sin of every column's angles in a layer that turns so."""
        for known, turn in self._rotations:
            if known is rotary or known == rotary:
                return turn
        if self._part_of is None:
            turn = rotation(rotary.theta, self.positions)
        else:
            whole, columns = self._part_of
            cos, sin = whole.rotation(rotary)
            turn = cos[:, columns], sin[:, columns]
        self._rotations.append((rotary, turn))
        return turn

    def at(self, columns: Columns, n_key: int) -> Step:
        """Return the step of some of the columns, which see the first ``n_key`` keys."""
        return Step(self.positions[:, columns], n_key, _part_of=(self, columns))
