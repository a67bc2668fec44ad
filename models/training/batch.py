"""What a training step is given: tokens, and which of their predictions count."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.decoder import HookedDecoder
from models.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Tokens to predict, and which predictions enter the loss (None for all).

    Attributes:
        tokens: ids ``[batch, pos]``.
        counts: at ``[batch, i]`` whether predicting ``tokens[:, i + 1]`` counts, ``[batch, pos - 1]``.

    Raises:
        InputError: ``counts`` of another shape, or counting nothing.
    """

    tokens: Int[Tensor, "batch pos"]
    counts: Bool[Tensor, "batch pos-1"] | None = None

    def __post_init__(self) -> None:
        if self.counts is None:
            return
        batch, pos = self.tokens.shape
        if self.counts.shape != (batch, pos - 1):
            raise InputError(f"counts has shape {tuple(self.counts.shape)}; tokens {batch, pos} need {batch, pos - 1}")
        if not self.counts.any():
            raise InputError("counts leaves out every prediction of the batch; nothing is left to learn from")

    def loss(self, model: HookedDecoder) -> Float[Tensor, ""]:
        """Return the mean next-token loss over the predictions that count, in nats."""
        if self.counts is None:
            return model(self.tokens, return_type="loss")
        per_token = model(self.tokens, return_type="loss", loss_per_token=True)
        counts = self.counts.to(per_token)
        return (per_token * counts).sum() / counts.sum()
