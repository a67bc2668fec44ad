"""Metrics as users give them: one, several by name, or any function of logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.metrics.metric import Metric, check_positions
from models.errors import InputError

# columns of a result's frame: a metric of such a name would take a column's place
TAKEN = (
    "layer", "pos", "head", "kv_head", "dest_pos", "src_pos", "neuron", "sender", "receiver", "part",
    "change", "low", "high", "p_mean_change",
)  # fmt: skip


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
        value = _as_values(self.function(logits), logits)
        if value.ndim == 0:
            return value.expand(logits.shape[0])
        if value.shape != logits.shape[:1]:
            raise InputError(
                f"the metric returned shape {tuple(value.shape)}; expected one number per example, [{logits.shape[0]}]"
            )
        return value


def _as_values(returned: Any, logits: Tensor) -> Tensor:
    """Return what a metric's function returned as a tensor. Raises InputError where it is not real numbers."""
    expected = f"expected one real number per example, [{len(logits)}], or one for all"
    try:
        is_complex = returned.is_complex() if isinstance(returned, Tensor) else bool(np.iscomplexobj(returned))
        if not is_complex:
            return torch.as_tensor(returned, device=logits.device, dtype=logits.dtype)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"the metric returned a {type(returned).__name__}; {expected}") from None
    raise InputError(f"the metric returned complex numbers; {expected}")


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
    """Return one or several metrics by name; one alone goes by its own. Raises InputError on what is no metric."""
    if isinstance(metric, Mapping):
        if not metric:
            raise InputError("no metric was given; name at least one")
        metrics = {name: as_metric(one) for name, one in metric.items()}
    else:
        one = as_metric(metric)
        metrics = {one.name: one}
    for name in metrics:
        if not isinstance(name, str) or not name:
            raise InputError(f"{name!r} names a metric; expected text, such as 'logit_difference'")
        if name in TAKEN:
            raise InputError(f"a metric is named {name!r}, like a column of every result's table; name it otherwise")
    return metrics


def fitting(
    metric: AnyMetric | Mapping[str, AnyMetric],
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
    d_vocab: int,
) -> dict[str, Metric]:
    """Return metrics by name, told which tokens are real. Raises InputError where one does not fit the batch."""
    metrics = {name: one.with_mask(real) for name, one in as_metrics(metric).items()}
    for one in metrics.values():
        one.check(tokens, d_vocab)
        check_positions(one, tokens, real)
    return metrics
