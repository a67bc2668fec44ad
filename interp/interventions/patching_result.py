"""PatchingResult: what activation patching found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from interp.interventions.cells import Grid, n_layers_of
from interp.interventions.metric_result import MetricResult, common_fields
from interp.interventions.sweep import Sweep
from interp.metrics import Metric
from models.protocol import HookedModel


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PatchingResult(MetricResult):
    """The metric of every cell of a patching sweep, per example, beside both runs' baselines.

    Attributes:
        site: the activation patched.
        block_tokens, naive_block_tokens: (token, block) pairs computed for the cells, and those of one run per cell.
        resumed: False where every cell took a whole run.
    """

    site: str
    block_tokens: int
    naive_block_tokens: int
    resumed: bool

    @property
    def title(self) -> str:
        into = "clean into corrupted" if self.direction == "denoise" else "corrupted into clean"
        return f"{self.site} patching of {self.model}, {self.direction} ({into})"


def cell_values(sweep: Sweep, names: Mapping[str, Any], per_example: bool) -> dict[str, np.ndarray]:
    """Return a sweep's values by metric, ``[*axes, batch]``, or their means over examples, ``[*axes, 1]``."""
    arrays = {name: value.numpy() for name, value in zip(names, sweep.values, strict=True)}
    return arrays if per_example else {name: array.mean(-1, keepdims=True) for name, array in arrays.items()}


def make_result(
    model: HookedModel,
    grid: Grid,
    metrics: Mapping[str, Metric],
    sweep: Sweep,
    baselines: list[Tensor],
    *,
    direction: str,
    tokens: tuple[Tensor, Tensor],
    per_example: bool = True,
) -> PatchingResult:
    """Assemble the result; ``baselines`` are ``[clean and corrupted, batch]`` per metric."""
    if not per_example:
        baselines = [pair.mean(-1, keepdim=True) for pair in baselines]
    return PatchingResult(
        site=grid.site.name,
        axes=grid.axes,
        direction=direction,
        values=cell_values(sweep, metrics, per_example),
        **sweep_counts(model, grid, sweep, tokens[0]),
        **common_fields(model, metrics, tokens, baselines),
    )


def sweep_counts(model: HookedModel, grid: Grid, sweep: Sweep, tokens: Tensor) -> dict[str, Any]:
    """Return how a sweep was computed, as fields of its result."""
    return {
        "block_tokens": sweep.block_tokens,
        "naive_block_tokens": len(grid.cells()) * tokens.numel() * n_layers_of(model.cfg),
        "resumed": sweep.resumed,
        "complete": sweep.complete,
    }
