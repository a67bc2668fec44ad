"""MetricResult: what results about a clean and a corrupted run share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from interp.interventions.cell_result import CellResult
from interp.metrics import Metric, recovered_fraction
from interp.results import described
from models.protocol import HookedModel


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class MetricResult(CellResult):
    """The metric of every cell of a grid, beside both runs' baselines.

    Attributes:
        direction: ``denoise`` (clean into corrupted) or ``noise`` (corrupted into clean).
        clean, corrupted: per metric, the unpatched runs, ``[batch]``.
        clean_tokens, corrupted_tokens: the prompts, one string per token, ``batch`` of them.
    """

    direction: str
    clean: Mapping[str, np.ndarray]
    corrupted: Mapping[str, np.ndarray]
    clean_tokens: tuple[tuple[str, ...], ...]
    corrupted_tokens: tuple[tuple[str, ...], ...]

    def into(self, metric: str | None = None) -> np.ndarray:
        """Return the metric of the run that is patched into, ``[batch]``."""
        return (self.corrupted if self.direction == "denoise" else self.clean)[self.metric(metric)]

    def prompts(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        return self.clean_tokens, self.corrupted_tokens

    def recovered(self, metric: str | None = None) -> np.ndarray:
        """Return (patched - corrupted) / (clean - corrupted) of the means over examples, ``[*axes]``.

        1 is the clean run and 0 the corrupted one, in either direction.

        Raises:
            InputError: the two runs hardly differ in this metric, or differ the wrong way round.
        """
        name = self.metric(metric)
        return recovered_fraction(
            self.mean(name),
            float(self.clean[name].mean()),
            float(self.corrupted[name].mean()),
            name=name,
            unit=self.units[name],
            higher_is_better=self.higher_is_better[name],
        )


def cell_fields(model: HookedModel, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return the fields that every ``CellResult`` of this model and these metrics has."""
    return described(model) | {
        "units": {name: metric.unit for name, metric in metrics.items()},
        "higher_is_better": {name: metric.higher_is_better for name, metric in metrics.items()},
    }


def common_fields(
    model: HookedModel, metrics: Mapping[str, Metric], tokens: tuple[Tensor, Tensor], baselines: Sequence[Tensor]
) -> dict[str, Any]:
    """Return the fields that every ``MetricResult`` of these prompts has.

    ``baselines`` are ``[clean and corrupted, batch]``, per metric.
    """
    shown = [tuple(tuple(model.to_str_tokens(row)) for row in side) for side in tokens]
    pairs = dict(zip(metrics, (pair.double().cpu().numpy() for pair in baselines), strict=True))
    return cell_fields(model, metrics) | {
        "clean": {name: pair[0] for name, pair in pairs.items()},
        "corrupted": {name: pair[1] for name, pair in pairs.items()},
        "clean_tokens": shown[0],
        "corrupted_tokens": shown[1],
    }


def by_metric(metrics: Mapping[str, Metric], values: Sequence[Tensor], runs: str) -> dict[str, Tensor]:
    """Return values by what they are, as errors name them: a metric of some runs."""
    return {f"{name} of {runs}": one for name, one in zip(metrics, values, strict=True)}
