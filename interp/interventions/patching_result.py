"""PatchingResult: the metric of every cell of a sweep, per example, beside both runs' baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from torch import Tensor

from interp.interventions.cells import Grid
from interp.interventions.sweep import Sweep
from interp.metrics import Metric
from interp.results import Result, current_versions
from models.errors import InputError, nearest
from models.protocol import HookedModel

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchingResult(Result):
    """What a patching sweep found.

    Attributes:
        site: the activation patched.
        axes: names of the grid's axes.
        direction: ``denoise`` (clean into corrupted) or ``noise`` (corrupted into clean).
        values: per metric, ``[*axes, batch]``; NaN at cells that an interrupt left out.
        clean, corrupted: per metric, the unpatched runs, ``[batch]``.
        units: per metric.
        higher_is_better: per metric, whether the clean run should have the larger value.
        clean_tokens, corrupted_tokens: the prompts, one string per token, ``batch`` of them.
        model, config, versions: what computed this.
        block_tokens, naive_block_tokens: (token, block) pairs computed for the cells, and those of one run per cell.
        resumed: False where every cell took a whole run.
        complete: False after an interrupt.
    """

    site: str
    axes: tuple[str, ...]
    direction: str
    values: Mapping[str, np.ndarray]
    clean: Mapping[str, np.ndarray]
    corrupted: Mapping[str, np.ndarray]
    units: Mapping[str, str]
    higher_is_better: Mapping[str, bool]
    clean_tokens: tuple[tuple[str, ...], ...]
    corrupted_tokens: tuple[tuple[str, ...], ...]
    model: str
    config: dict[str, Any]
    versions: dict[str, str]
    block_tokens: int
    naive_block_tokens: int
    resumed: bool
    complete: bool

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics' names."""
        return tuple(self.values)

    def _name(self, metric: str | None) -> str:
        if metric is None:
            if len(self.values) > 1:
                raise InputError(f"this result has several metrics; name one of {', '.join(self.values)}")
            return next(iter(self.values))
        if metric not in self.values:
            raise InputError(f"no metric {metric!r}{nearest(metric, self.values)}; this result has {self.metrics}")
        return metric

    def mean(self, metric: str | None = None) -> np.ndarray:
        """Return the metric of every cell, averaged over examples, ``[*axes]``."""
        return cast(np.ndarray, self.values[self._name(metric)].mean(-1))

    def recovered(self, metric: str | None = None) -> np.ndarray:
        """Return (patched - corrupted) / (clean - corrupted) of the means over examples, ``[*axes]``.

        1 is the clean run and 0 the corrupted one, in either direction.

        Raises:
            InputError: the two runs hardly differ in this metric, or differ the wrong way round.
        """
        name = self._name(metric)
        clean, corrupted = float(self.clean[name].mean()), float(self.corrupted[name].mean())
        gap = clean - corrupted
        found = f"{name} is {clean:.4g} {self.units[name]} on the clean run and {corrupted:.4g} on the corrupted one"
        if abs(gap) <= 1e-3 * max(abs(clean), abs(corrupted), 1e-6):
            raise InputError(
                f"no fraction can be recovered: {found}. Choose prompts or a metric on which the runs differ"
            )
        if (gap > 0) != self.higher_is_better[name]:
            raise InputError(
                f"no fraction can be recovered: {found}, the wrong way round. "
                "Swap the prompts, or answer and wrong answer"
            )
        return (self.mean(name) - corrupted) / gap

    def to_frame(self, metric: str | None = None) -> pd.DataFrame:
        """Return one row per cell: its index on each axis, the mean and the change from the run patched into."""
        import pandas as pd

        name = self._name(metric)
        mean = self.mean(name)
        index = {axis: grid.ravel() for axis, grid in zip(self.axes, np.indices(mean.shape), strict=True)}
        into = self.corrupted[name] if self.direction == "denoise" else self.clean[name]
        return pd.DataFrame({**index, name: mean.ravel(), "change": mean.ravel() - into.mean()})

    def to_dict(self) -> dict[str, Any]:
        def lists(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
            return {name: np.where(np.isnan(array), cast(Any, None), array).tolist() for name, array in arrays.items()}

        plain = {name: getattr(self, name) for name in _PLAIN}
        arrays = {name: lists(getattr(self, name)) for name in _ARRAYS}
        return {"result": type(self).__name__, "schema_version": self.schema_version} | plain | arrays

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        fields: dict[str, Any] = {name: values[name] for name in _PLAIN}
        for name in _ARRAYS:
            fields[name] = {metric: np.array(array, dtype=float) for metric, array in values[name].items()}
        fields["axes"] = tuple(fields["axes"])
        for side in ("clean_tokens", "corrupted_tokens"):
            fields[side] = tuple(tuple(row) for row in fields[side])
        return cls(**fields)

    def _repr_html_(self) -> str:
        """Return the cells that change the metric most, as a table."""
        frame = self.to_frame(self.metrics[0])
        top = frame.reindex(frame["change"].abs().sort_values(ascending=False).index).head(10)
        note = "" if self.complete else "<p>Interrupted: unfinished cells are missing.</p>"
        return f"<p>{self.site} patching of {self.model}, {self.direction}</p>{note}{top.to_html(index=False)}"


_ARRAYS = ("values", "clean", "corrupted")
_PLAIN = tuple(field.name for field in fields(PatchingResult) if field.name not in _ARRAYS)


def make_result(
    model: HookedModel,
    grid: Grid,
    metrics: Mapping[str, Metric],
    sweep: Sweep,
    baselines: list[Tensor],
    *,
    direction: str,
    tokens: tuple[Tensor, Tensor],
    site: str,
) -> PatchingResult:
    """Assemble the result; ``baselines`` are ``[clean and corrupted, batch]`` per metric."""
    shown = [tuple(tuple(model.to_str_tokens(row)) for row in side) for side in tokens]
    pairs = dict(zip(metrics, baselines, strict=True))
    return PatchingResult(
        site=site,
        axes=grid.axes,
        direction=direction,
        values={name: v.float().cpu().numpy() for name, v in zip(metrics, sweep.values, strict=True)},
        clean={name: pair[0].float().cpu().numpy() for name, pair in pairs.items()},
        corrupted={name: pair[1].float().cpu().numpy() for name, pair in pairs.items()},
        units={name: metric.unit for name, metric in metrics.items()},
        higher_is_better={name: metric.higher_is_better for name, metric in metrics.items()},
        clean_tokens=shown[0],
        corrupted_tokens=shown[1],
        model=getattr(model, "name", type(model).__name__),
        config=model.cfg.to_dict(),
        versions=current_versions(),
        block_tokens=sweep.block_tokens,
        naive_block_tokens=len(grid.cells()) * tokens[0].numel() * cast(Any, model.cfg).n_layers,
        resumed=sweep.resumed,
        complete=sweep.complete,
    )
