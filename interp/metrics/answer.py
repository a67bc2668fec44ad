"""Metrics of one answer, at each example's last real token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks import as_ids
from interp.metrics.metric import Metric, check_vocabulary
from models.errors import InputError


def as_tokens(tokens: int | Sequence[int] | Tensor, batch: int | None = None) -> Int[Tensor, "batch"]:
    """Return token ids as a vector; a single id stands for every example. Raises InputError on what is no id."""
    vector = as_ids(tokens, "an answer").reshape(-1)
    return vector.expand(batch) if batch is not None and len(vector) == 1 else vector


@dataclass(frozen=True, eq=False)
class LogitDifference(Metric):
    """logit(answer) - logit(wrong) at the last real token, in logits.

    Args:
        answer, wrong: one token id per example, or one for all.
    """

    name: ClassVar[str] = "logit_difference"
    unit: ClassVar[str] = "logits"
    answer: int | Sequence[int] | Tensor
    wrong: int | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        pairs = self.vocabulary()
        if bool((same := pairs[:, 0] == pairs[:, 1]).any()):
            pair = int(same.nonzero()[0])
            raise InputError(
                f"answer and wrong answer are the same token, {int(pairs[pair, 0])}, in example {pair}, so that their "
                "difference is always 0; give another wrong answer, or use Logit"
            )

    def vocabulary(self) -> Int[Tensor, "batch two"]:
        answer, wrong = as_tokens(self.answer), as_tokens(self.wrong)
        batch = max(len(answer), len(wrong))
        answer, wrong = as_tokens(answer, batch), as_tokens(wrong, batch)
        if len(answer) != len(wrong):
            raise InputError(f"{len(answer)} answers and {len(wrong)} wrong answers; give one of each per example")
        return torch.stack([answer, wrong.to(answer.device)], dim=1)

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        return logits[..., 0, 0] - logits[..., 0, 1]


@dataclass(frozen=True, eq=False)
class Logit(Metric):
    """logit(answer) at the last real token, in logits."""

    name: ClassVar[str] = "logit"
    unit: ClassVar[str] = "logits"
    answer: int | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        as_tokens(self.answer)

    def vocabulary(self) -> Int[Tensor, "batch one"]:
        return as_tokens(self.answer)[:, None]

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        return logits[..., 0, 0]


@dataclass(frozen=True, eq=False)
class _OfAnswer(Metric):
    answer: int | Sequence[int] | Tensor

    def __post_init__(self) -> None:
        as_tokens(self.answer)

    def check(self, tokens: Int[Tensor, "batch pos"], d_vocab: int) -> None:
        check_vocabulary(as_tokens(self.answer), tokens.shape[0], d_vocab, self.name)

    def _of_answer(self, values: Float[Tensor, "*cell batch token"]) -> Float[Tensor, "*cell batch 1"]:
        batch = values.shape[-2]
        index = as_tokens(self.answer, batch).to(values.device)
        return values.gather(-1, index[:, None].expand(*values.shape[:-1], 1))


@dataclass(frozen=True, eq=False)
class Probability(_OfAnswer):
    """p(answer) at the last real token."""

    name: ClassVar[str] = "probability"
    unit: ClassVar[str] = "probability"

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        return self._of_answer(logits[..., 0, :].softmax(-1)).squeeze(-1)


@dataclass(frozen=True, eq=False)
class LogProbability(_OfAnswer):
    """log p(answer) at the last real token, in nats."""

    name: ClassVar[str] = "log_probability"
    unit: ClassVar[str] = "nats"

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        return self._of_answer(logits[..., 0, :].log_softmax(-1)).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Rank(_OfAnswer):
    """How many tokens have a higher logit than the answer; 0 is the top guess."""

    name: ClassVar[str] = "rank"
    unit: ClassVar[str] = "tokens"
    higher_is_better: ClassVar[bool] = False

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        last = logits[..., 0, :]
        return (last > self._of_answer(last)).sum(-1).to(last.dtype)
