"""Metric: what every metric is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.precision import at_least_float32
from models.errors import InputError


@dataclass(frozen=True, eq=False)
class Metric(ABC):
    """One number per example, from the logits at the positions it reads."""

    name: ClassVar[str]
    unit: ClassVar[str]
    higher_is_better: ClassVar[bool] = True

    def positions(self, tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"] | None) -> Tensor:
        """Return the columns that are read, ``[batch, read]``: by default each example's last real token."""
        batch, width = tokens.shape
        if real is None:
            return torch.full((batch, 1), width - 1, device=tokens.device)
        columns = torch.arange(width, device=tokens.device)
        return torch.where(real, columns, -1).amax(1, keepdim=True)

    def vocabulary(self) -> Int[Tensor, "batch token"] | None:
        """Return the tokens whose logits are read, per example; None for all of them."""
        return None

    def with_mask(self, real: Bool[Tensor, "batch pos"] | None) -> Metric:
        """Return the metric told which tokens of the run are real, for those that count tokens; others stay as is."""
        return self

    def check(self, tokens: Int[Tensor, "batch pos"], d_vocab: int) -> None:
        """Raise InputError where the metric does not fit the batch."""
        read = self.vocabulary()
        if read is not None:
            check_vocabulary(read, tokens.shape[0], d_vocab, self.name)

    @abstractmethod
    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        """Return one number per example (and cell), from the logits that were asked for, float32 or wider."""

    def of_logits(
        self, logits: Float[Tensor, "batch pos d_vocab"], real: Bool[Tensor, "batch pos"] | None = None
    ) -> Float[Tensor, "batch"]:
        """Return the metric of a whole run's logits; ``real`` is False at padding.

        >>> from interp.metrics import LogitDifference
        >>> LogitDifference(answer=2, wrong=0).of_logits(torch.tensor([[[0.0, 1.0, 5.0]]])).tolist()
        [5.0]
        """
        tokens = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)  # only their shape is read
        where = self.positions(tokens, real).to(logits.device)
        picked = logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1]))
        vocabulary = self.vocabulary()
        if vocabulary is not None:
            index = vocabulary.to(logits.device).expand(len(logits), -1)
            picked = picked.gather(2, index[:, None].expand(*picked.shape[:2], -1))
        return self.with_mask(real)(at_least_float32(picked))


def check_vocabulary(read: Tensor, batch: int, d_vocab: int, name: str) -> None:
    """Raise InputError unless the tokens read exist, for one example or for all of the batch."""
    if read.shape[0] not in (1, batch):
        raise InputError(f"{name} has answers for {read.shape[0]} examples; the batch has {batch}")
    for token in (int(read.min()), int(read.max())):
        if not 0 <= token < d_vocab:
            raise InputError(f"{name} names token {token}; this vocabulary is 0 to {d_vocab - 1}")


def check_positions(metric: Metric, tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"] | None) -> None:
    """Raise InputError unless the columns that a metric reads exist: an engine would read others in silence."""
    batch, width = tokens.shape
    where: Any = metric.positions(tokens, real)
    expected = f"expected integers [batch, read] of 0 to {width - 1}, batch {batch}, at least one to read"
    if not isinstance(where, Tensor) or where.is_floating_point() or where.is_complex() or where.dtype == torch.bool:
        shown = f"a tensor of {where.dtype}" if isinstance(where, Tensor) else f"a {type(where).__name__}"
        raise InputError(f"{metric.name}.positions returned {shown}; {expected}")
    if where.ndim != 2 or where.shape[0] != batch or where.shape[1] == 0:
        raise InputError(f"{metric.name}.positions returned shape {tuple(where.shape)}; {expected}")
    low, high = int(where.min()), int(where.max())
    if low < 0 or high >= width:
        raise InputError(f"{metric.name}.positions returned columns {low} to {high}; {expected}")
