"""Metrics of whole distributions: KL to another run, and the mean next-token loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.checks import as_ids
from interp.metrics.metric import Metric
from models.errors import InputError


@dataclass(frozen=True, eq=False)
class KL(Metric):
    """KL(reference || this run) of the next-token distributions at the last real token, in nats.

    Args:
        reference: logits ``[batch, d_vocab]`` of the run compared with, such as the clean run's.
    """

    name: ClassVar[str] = "kl"
    unit: ClassVar[str] = "nats"
    higher_is_better: ClassVar[bool] = False
    reference: Float[Tensor, "batch d_vocab"]

    def check(self, tokens: Int[Tensor, "batch pos"], d_vocab: int) -> None:
        if not isinstance(self.reference, Tensor) or not self.reference.is_floating_point():
            shown = self.reference.dtype if isinstance(self.reference, Tensor) else type(self.reference).__name__
            raise InputError(f"kl's reference is {shown}; expected logits, a float tensor [batch, d_vocab]")
        if self.reference.shape != (tokens.shape[0], d_vocab):
            raise InputError(
                f"kl's reference has shape {tuple(self.reference.shape)}; "
                f"expected [batch, d_vocab] = {(tokens.shape[0], d_vocab)}"
            )

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        log_p, log_q = self.reference.to(logits).log_softmax(-1), logits[..., 0, :].log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum(-1)


@dataclass(frozen=True, eq=False)
class Loss(Metric):
    """Mean next-token loss of each example, in nats, over its real (token, next token) pairs.

    Args:
        tokens: the ids that are predicted, ``[batch, pos]``: the run's own.
        real: False at tokens not to count; padding of the run is never counted.
    """

    name: ClassVar[str] = "loss"
    unit: ClassVar[str] = "nats"
    higher_is_better: ClassVar[bool] = False
    tokens: Int[Tensor, "batch pos"]
    real: Bool[Tensor, "batch pos"] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", as_ids(self.tokens, "loss's tokens"))

    def with_mask(self, real: Bool[Tensor, "batch pos"] | None) -> Loss:
        if real is None:
            return self
        if self.real is None:
            return replace(self, real=real)
        return replace(self, real=self.real.bool().to(real.device) & real) if self.real.shape == real.shape else self

    def positions(self, tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"] | None) -> Tensor:
        return torch.arange(tokens.shape[1] - 1, device=tokens.device).expand(tokens.shape[0], -1)

    def check(self, tokens: Int[Tensor, "batch pos"], d_vocab: int) -> None:
        if self.tokens.shape != tokens.shape:
            raise InputError(
                f"loss predicts tokens of shape {tuple(self.tokens.shape)}; the run's are {tuple(tokens.shape)}"
            )
        if self.tokens.numel() and not 0 <= int(self.tokens.min()) <= int(self.tokens.max()) < d_vocab:
            raise InputError(
                f"loss predicts ids from {int(self.tokens.min())} to {int(self.tokens.max())}; this vocabulary is 0 to "
                f"{d_vocab - 1}"
            )
        if self.real is not None and self.real.shape != tokens.shape:
            raise InputError(f"loss has a mask of shape {tuple(self.real.shape)}; the run's is {tuple(tokens.shape)}")
        if tokens.shape[1] < 2 or (self.real is not None and not self._counts().any(1).all()):
            raise InputError("loss needs two real tokens side by side in every example; drop the others")

    def _counts(self) -> Bool[Tensor, "batch pos-1"]:
        assert self.real is not None
        return self.real[:, :-1].bool() & self.real[:, 1:].bool()

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        target = self.tokens[:, 1:].to(logits.device)
        index = target[..., None].expand(*logits.shape[:-1], 1)
        loss = -logits.log_softmax(-1).gather(-1, index).squeeze(-1)
        if self.real is None:
            return loss.mean(-1)
        counts = self._counts().to(loss.device)
        return loss.masked_fill(~counts, 0.0).sum(-1) / counts.sum(-1)
