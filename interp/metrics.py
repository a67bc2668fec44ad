"""Metrics: what a run is judged by, one number per example.

A metric says beforehand which positions and which tokens of the vocabulary it reads, so that a sweep computes only
those logits. Every metric is larger the better the answer does, except ``Loss``, ``KL`` and ``Rank``.

==================  =====================================================  ===========
LogitDifference     logit(answer) - logit(wrong)                           logits
Logit               logit(answer)                                          logits
Probability         p(answer)                                              probability
LogProbability      log p(answer)                                          nats
Rank                how many tokens have a higher logit than the answer    tokens
KL                  KL(reference || this run)                              nats
Loss                mean next-token loss                                   nats
==================  =====================================================  ===========

``recovered_fraction`` puts a patched run between two others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
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

    def check(self, tokens: Int[Tensor, "batch pos"], d_vocab: int) -> None:
        """Raise InputError where the metric does not fit the batch."""
        read = self.vocabulary()
        if read is not None:
            _check_tokens(read, tokens.shape[0], d_vocab, self.name)

    @abstractmethod
    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        """Return one number per example (and cell), from the logits that were asked for, float32 or wider."""

    def of_logits(
        self, logits: Float[Tensor, "batch pos d_vocab"], real: Bool[Tensor, "batch pos"] | None = None
    ) -> Float[Tensor, "batch"]:
        """Return the metric of a whole run's logits; ``real`` is False at padding.

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
        return self(at_least_float32(picked))


def as_tokens(tokens: int | Sequence[int] | Tensor, batch: int | None = None) -> Int[Tensor, "batch"]:
    """Return token ids as a vector; a single id stands for every example."""
    vector = torch.as_tensor(tokens, dtype=torch.long).reshape(-1)
    return vector.expand(batch) if batch is not None and len(vector) == 1 else vector


def _check_tokens(read: Tensor, batch: int, d_vocab: int, name: str) -> None:
    if read.shape[0] not in (1, batch):
        raise InputError(f"{name} has answers for {read.shape[0]} examples; the batch has {batch}")
    for token in (int(read.min()), int(read.max())):
        if not 0 <= token < d_vocab:
            raise InputError(f"{name} names token {token}; this vocabulary is 0 to {d_vocab - 1}")


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

    def vocabulary(self) -> Int[Tensor, "batch two"]:
        answer, wrong = as_tokens(self.answer), as_tokens(self.wrong)
        batch = max(len(answer), len(wrong))
        answer, wrong = as_tokens(answer, batch), as_tokens(wrong, batch)
        if len(answer) != len(wrong):
            raise InputError(f"{len(answer)} answers and {len(wrong)} wrong answers; give one of each per example")
        return torch.stack([answer, wrong], dim=1)

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        return logits[..., 0, 0] - logits[..., 0, 1]


@dataclass(frozen=True, eq=False)
class Logit(Metric):
    """logit(answer) at the last real token, in logits."""

    name: ClassVar[str] = "logit"
    unit: ClassVar[str] = "logits"
    answer: int | Sequence[int] | Tensor

    def vocabulary(self) -> Int[Tensor, "batch one"]:
        return as_tokens(self.answer)[:, None]

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        return logits[..., 0, 0]


@dataclass(frozen=True, eq=False)
class _OfAnswer(Metric):
    answer: int | Sequence[int] | Tensor

    def check(self, tokens: Int[Tensor, "batch pos"], d_vocab: int) -> None:
        _check_tokens(as_tokens(self.answer), tokens.shape[0], d_vocab, self.name)

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
        real: False at padding.
    """

    name: ClassVar[str] = "loss"
    unit: ClassVar[str] = "nats"
    higher_is_better: ClassVar[bool] = False
    tokens: Int[Tensor, "batch pos"]
    real: Bool[Tensor, "batch pos"] | None = None

    def positions(self, tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"] | None) -> Tensor:
        return torch.arange(tokens.shape[1] - 1, device=tokens.device).expand(tokens.shape[0], -1)

    def check(self, tokens: Int[Tensor, "batch pos"], d_vocab: int) -> None:
        if self.tokens.shape != tokens.shape:
            raise InputError(
                f"loss predicts tokens of shape {tuple(self.tokens.shape)}; the run's are {tuple(tokens.shape)}"
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


@dataclass(frozen=True, eq=False)
class Custom(Metric):
    """Any function of logits ``[batch, pos, d_vocab]`` that returns ``[batch]`` (or one number for all).

    Args:
        function: called once per cell with the logits of every position.
    """

    name: ClassVar[str] = "custom"
    unit: ClassVar[str] = ""
    function: Callable[[Tensor], Any]

    def positions(self, tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"] | None) -> Tensor:
        return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape[0], -1)

    def __call__(self, logits: Float[Tensor, "*cell batch read token"]) -> Float[Tensor, "*cell batch"]:
        if logits.ndim == 3:
            return self._one(logits)
        return torch.stack([self(cell) for cell in logits])

    def _one(self, logits: Float[Tensor, "batch pos d_vocab"]) -> Float[Tensor, "batch"]:
        value = torch.as_tensor(self.function(logits), device=logits.device, dtype=logits.dtype)
        if value.ndim == 0:
            return value.expand(logits.shape[0])
        if value.shape != logits.shape[:1]:
            raise InputError(
                f"the metric returned shape {tuple(value.shape)}; expected one number per example, [{logits.shape[0]}]"
            )
        return value


AnyMetric = Metric | Callable[[Tensor], Any]


def as_metric(metric: AnyMetric) -> Metric:
    """Return ``metric`` as a Metric; a plain function of logits ``[batch, pos, d_vocab]`` becomes ``Custom``."""
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, type) or not callable(metric):
        shown = metric.__name__ if isinstance(metric, type) else type(metric).__name__
        raise InputError(
            f"a metric is one of interp.metrics, such as LogitDifference(answer, wrong), or a function of logits; "
            f"got {shown}"
        )
    return Custom(metric)


def as_metrics(metric: AnyMetric | Mapping[str, AnyMetric]) -> dict[str, Metric]:
    """Return one or several metrics by name; one alone goes by its own."""
    if isinstance(metric, Mapping):
        if not metric:
            raise InputError("no metric was given; name at least one")
        return {name: as_metric(one) for name, one in metric.items()}
    one = as_metric(metric)
    return {one.name: one}


def recovered_fraction(
    patched: Float[np.ndarray, "..."],
    clean: float,
    corrupted: float,
    *,
    name: str = "the metric",
    unit: str = "",
    higher_is_better: bool = True,
) -> Float[np.ndarray, "..."]:
    """Return (patched - corrupted) / (clean - corrupted): 1 is the clean run, 0 the corrupted one.

    Raises:
        InputError: the two runs hardly differ in this metric, or differ the wrong way round.

    >>> recovered_fraction(np.array([1.0, 2.0, 4.0]), clean=3.0, corrupted=1.0).tolist()
    [0.0, 0.5, 1.5]
    """
    gap = clean - corrupted
    found = f"{name} is {clean:.4g} {unit}".rstrip() + f" on the clean run and {corrupted:.4g} on the corrupted one"
    if not abs(gap) > 1e-3 * max(abs(clean), abs(corrupted), 1e-6):  # NaN too
        raise InputError(f"no fraction can be recovered: {found}. Choose prompts or a metric on which the runs differ")
    if (gap > 0) != higher_is_better:
        raise InputError(
            f"no fraction can be recovered: {found}, the wrong way round. Swap the prompts, or answer and wrong answer"
        )
    return (patched - corrupted) / gap
