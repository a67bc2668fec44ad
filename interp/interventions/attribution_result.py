"""AttributionResult: estimated effects of patching; AttributionComparison: how good the estimates are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from interp.checks import whole_number
from interp.interventions.metric_result import MetricResult
from interp.interventions.patching_result import PatchingResult
from interp.results import Result, plain_fields
from interp.sites import Head
from models.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_SIDES = ("clean", "corrupted")
_SAME = 0.05  # baselines of one run differ by the rounding of half precision, those of other metrics or masks by more


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttributionResult(MetricResult):
    """The metric that every cell would have if it were linear, ``values [*axes, batch]``.

    Attributes:
        site: the activation.
        ig_steps: runs over which the gradient was averaged.
        qk_fix: whether the softmax was computed anew.
        grad_drop: whether layers were left out in turn; changes are then magnitudes.
    """

    site: str
    ig_steps: int
    qk_fix: bool
    grad_drop: bool

    @property
    def title(self) -> str:
        notes = [self.direction]
        notes += [f"{self.ig_steps} gradient steps"] if self.ig_steps > 1 else []
        notes += ["QK fix"] if self.qk_fix else []
        notes += ["GradDrop, magnitudes"] if self.grad_drop else []
        return f"{self.site} attribution of {self.model}, {', '.join(notes)}"

    def recovered(self, metric: str | None = None) -> np.ndarray:
        if self.grad_drop:
            raise InputError(
                "with grad_drop changes are magnitudes without a sign, so nothing is recovered; see change()"
            )
        return super().recovered(metric)

    @property
    def untestable(self) -> str:
        return "with grad_drop changes are magnitudes, which are never 0 on average" if self.grad_drop else ""

    def compare(
        self, exact: PatchingResult, metric: str | None = None, *, k: int | None = None
    ) -> AttributionComparison:
        """Set the estimates beside exact patching, cell by cell.

        Args:
            exact: of ``activation_patching`` with the same prompts, metric, site, axes and direction.
            metric: may be left out where there is only one.
            k: how many of the largest cells to look for in both: by default 10, or half of fewer than 20.

        Raises:
            InputError: results of different sweeps, or cells that are all alike.
        """
        name = self.metric(metric)
        self._check_same(exact, name)
        estimated, found = self.change(name), exact.change(name)
        if self.grad_drop:  # an average of magnitudes is compared with an average of magnitudes
            found = np.abs(exact.values[name] - exact.into(name)).mean(-1)
        return compared(
            estimated,
            found,
            metric=name,
            unit=self.units[name],
            cells=_cell_names(self),
            title=self.title,
            k=max(1, min(10, found.size // 2)) if k is None else k,
        )

    def _check_same(self, exact: PatchingResult, name: str) -> None:
        if not isinstance(exact, PatchingResult):
            raise InputError(f"got a {type(exact).__name__}; compare with the PatchingResult of activation_patching")
        for what in ("site", "axes", "direction", "model", "config", "clean_tokens", "corrupted_tokens"):
            ours, theirs = getattr(self, what), getattr(exact, what)
            if ours != theirs:
                shown = f": {ours!r} here, {theirs!r} there" if what in ("site", "axes", "direction", "model") else ""
                raise InputError(f"the two results differ in {what}{shown}; compare the same sweep")
        exact.metric(name)
        if not exact.complete:
            raise InputError("the exact sweep was interrupted; finish it before comparing")
        if self.grad_drop and exact.values[name].shape[-1] != self.values[name].shape[-1]:
            raise InputError("with grad_drop magnitudes are averaged over examples; patch with per_example=True")
        shapes = [result.values[name].shape[:-1] for result in (self, exact)]
        if shapes[0] != shapes[1]:
            raise InputError(f"the grids are {shapes[0]} here and {shapes[1]} there; compare the same sweep")
        runs = {side: [float(getattr(one, side)[name].mean()) for one in (self, exact)] for side in _SIDES}
        largest = max(abs(value) for values in runs.values() for value in values)
        for side, (ours, theirs) in runs.items():
            if abs(ours - theirs) > _SAME * largest:
                raise InputError(
                    f"{name} on the {side} run is {ours:.4g} here and {theirs:.4g} there, so that it is not the same "
                    "metric or mask; compare the same sweep"
                )
        if any(np.isnan(result.values[name]).any() for result in (self, exact)):
            raise InputError(f"{name} is NaN in some cells; there is no order to compare")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttributionComparison(Result):
    """Estimated and exact effect of every cell.

    Attributes:
        metric, unit: what the effects are changes of.
        title: what was estimated, in a few words.
        cells: the cells' names.
        estimated, exact: ``[cell]``, means over examples.
        spearman: rank correlation, of the signed effects.
        spearman_magnitude: rank correlation of the magnitudes, which most cells near zero make lower.
        pearson: linear correlation.
        k, overlap: share of the k exactly largest cells, by magnitude, that are among the k of largest estimate.
    """

    metric: str
    unit: str
    title: str
    cells: tuple[str, ...]
    estimated: np.ndarray
    exact: np.ndarray
    spearman: float
    spearman_magnitude: float
    pearson: float
    k: int
    overlap: float

    def __str__(self) -> str:
        return (
            f"rank correlation {self.spearman:.2f} (of magnitudes {self.spearman_magnitude:.2f}), linear correlation "
            f"{self.pearson:.2f}, {round(self.overlap * self.k)} of the {self.k} largest cells found"
        )

    def headline(self) -> str:
        return f"{self.title}, beside exact patching: {self}"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw estimate over exact effect; see ``interp.plots.plot_attribution_scatter``."""
        from interp.plots import plot_attribution_scatter

        return plot_attribution_scatter(self, dark=dark)

    def to_dict(self) -> dict[str, Any]:
        return plain_fields(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read = {field.name: values[field.name] for field in fields(cls)}
        arrays = {name: np.array(values[name]) for name in ("estimated", "exact")}
        return cls(**(read | arrays | {"cells": tuple(values["cells"])}))

    def summary_html(self) -> str:
        """Return the correlations as a sentence."""
        return f"<p>{escape(self.headline())}</p>"


def compared(
    estimated: np.ndarray,
    exact: np.ndarray,
    *,
    metric: str,
    unit: str,
    cells: tuple[str, ...],
    title: str,
    k: int,
) -> AttributionComparison:
    """Return the comparison of two grids. Raises InputError where one is constant, or k is no number of cells."""
    from scipy import stats

    estimated, exact = estimated.ravel(), exact.ravel()
    k = whole_number(k, "k", 1, len(cells), "the number of cells")
    for what, values in (("estimate", estimated), ("exact effect", exact)):
        if np.ptp(values) == 0:
            raise InputError(f"every cell has the same {what}, {values[0]:.3g}; there is no order to compare")
    largest = [set(np.argsort(-np.abs(values), kind="stable")[:k].tolist()) for values in (estimated, exact)]
    return AttributionComparison(
        metric=metric,
        unit=unit,
        title=title,
        cells=cells,
        estimated=estimated,
        exact=exact,
        spearman=float(stats.spearmanr(estimated, exact).statistic),
        spearman_magnitude=float(stats.spearmanr(np.abs(estimated), np.abs(exact)).statistic),
        pearson=float(stats.pearsonr(estimated, exact).statistic),
        k=k,
        overlap=len(largest[0] & largest[1]) / k,
    )


def _cell_names(result: MetricResult) -> tuple[str, ...]:
    """Return ``L5H1`` for heads, ``layer 5, pos 3`` for the rest."""
    shape = result.mean(result.metrics[0]).shape
    if set(result.axes) == {"layer", "head"}:
        layer, head = result.axes.index("layer"), result.axes.index("head")
        return tuple(str(Head(place[layer], place[head])) for place in np.ndindex(shape))
    return tuple(
        ", ".join(f"{axis} {i}" for axis, i in zip(result.axes, place, strict=True)) for place in np.ndindex(shape)
    )
