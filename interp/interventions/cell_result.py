"""CellResult: what results of interventions share, the metric of every cell of a grid beside an untouched run's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from interp.results import Result
from interp.statistics import bootstrap_interval, change_p_values
from models.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class CellResult(Result):
    """The metric of every cell of a grid, per example.

    Attributes:
        axes: names of the grid's axes.
        values: per metric, ``[*axes, batch]``; NaN at cells that an interrupt left out. Where examples were not kept,
            the batch axis has the mean alone.
        units: per metric.
        higher_is_better: per metric, whether the answer does better the larger it is.
        model, config, versions: what computed this.
        complete: False after an interrupt.
    """

    axes: tuple[str, ...]
    values: Mapping[str, np.ndarray]
    units: Mapping[str, str]
    higher_is_better: Mapping[str, bool]
    model: str
    config: dict[str, Any]
    versions: dict[str, str]
    complete: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type in _PER_METRIC:
                object.__setattr__(self, field.name, MappingProxyType(dict(getattr(self, field.name))))
        for name in _arrays(type(self)):
            for array in getattr(self, name).values():
                array.setflags(write=False)

    def __reduce__(self) -> Any:
        return type(self).from_dict, (self.to_dict(),)  # read-only mappings cannot be pickled or copied themselves

    @abstractmethod
    def into(self, metric: str | None = None) -> np.ndarray:
        """Return the metric of the run that cells are compared with, ``[batch]``."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What was done, in a few words."""

    @property
    def untestable(self) -> str:
        """Why p-values of these changes would say nothing; empty where they say what they say."""
        return ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics' names."""
        return tuple(self.values)

    def metric(self, name: str | None = None) -> str:
        """Return the name of one metric; None stands for the only one. Raises InputError on any other name."""
        if name is None:
            if len(self.values) > 1:
                raise InputError(f"this result has several metrics; name one of {', '.join(self.values)}")
            return next(iter(self.values))
        if name not in self.values:
            raise InputError(
                f"no metric {name!r}{nearest(str(name), self.values)}; this result has {', '.join(self.values)}"
            )
        return name

    def labels(self, axis: str) -> Sequence[int | str]:
        """Return the names of an axis's entries: by default their numbers."""
        return range(self.values[self.metrics[0]].shape[self.axes.index(axis)])

    def prompts(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """Return the prompts whose tokens stand at the grid's positions: one string per token, per example and side."""
        return ()

    def mean(self, metric: str | None = None) -> np.ndarray:
        """Return the metric of every cell, averaged over examples, ``[*axes]``."""
        return cast(np.ndarray, self.values[self.metric(metric)].mean(-1))

    def change(self, metric: str | None = None) -> np.ndarray:
        """Return how far every cell moves the metric from ``into``, averaged over examples, ``[*axes]``."""
        return cast(np.ndarray, (self.values[self.metric(metric)] - self.into(metric)).mean(-1))

    def interval(
        self, metric: str | None = None, *, level: float = 0.95, seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the bootstrap interval of ``change`` over examples, ``[*axes]`` each.

        Raises:
            InputError: there is nothing to resample: one example, examples that were not kept, or a metric with one
                number for the whole batch.
        """
        values, into = self._examples(metric)
        return bootstrap_interval(np.moveaxis(values - into, -1, 0), seed, level)

    def p_values(self, metric: str | None = None) -> np.ndarray:
        """Return p of each cell's mean ``change`` being 0, ``[*axes]``: sign flips, max-T over the cells of the grid.

        See ``interp.statistics.sign_flip_p_values``.

        Raises:
            InputError: there is nothing to compare, as for ``interval``, or no p is fair: see ``untestable``.
        """
        if self.untestable:
            raise InputError(f"no p-values: {self.untestable}")
        values, into = self._examples(metric)
        return change_p_values(np.moveaxis(values, -1, 0), into)

    def _examples(self, metric: str | None) -> tuple[np.ndarray, np.ndarray]:
        values, into = self.values[self.metric(metric)], self.into(metric)
        if values.shape[-1] < 2:
            raise InputError(
                "intervals and p-values need two examples or more, each with its own value; this result has one "
                "(a batch of one, or per_example=False)"
            )
        if np.isnan(values).all():
            raise InputError("no cell was finished, so there is nothing to resample; run the sweep again")
        if np.array_equal(values, np.broadcast_to(values[..., :1], values.shape), equal_nan=True):
            raise InputError(
                "every example has the same value in every cell, so there is nothing to resample: return one number "
                "per example, [batch], from the metric, and give examples that differ"
            )
        return values, into

    def to_frame(self, metric: str | None = None, *, intervals: bool = False) -> pd.DataFrame:
        """Return one row per cell: its place on each axis, the metric's mean and its change.

        Args:
            metric: may be left out where there is only one.
            intervals: add ``low`` and ``high``, the ends of the change's 95 % interval, and ``p_mean_change``, of
                ``p_values`` where these may be asked for.
        """
        import pandas as pd

        name = self.metric(metric)
        places = np.indices(self.mean(name).shape)
        columns = {
            axis: np.asarray(self.labels(axis))[place.ravel()] for axis, place in zip(self.axes, places, strict=True)
        }
        columns |= {name: self.mean(name).ravel(), "change": self.change(name).ravel()}
        if intervals:
            low, high = self.interval(name)
            columns |= {"low": low.ravel(), "high": high.ravel()}
            if not self.untestable:
                columns |= {"p_mean_change": self.p_values(name).ravel()}
        return pd.DataFrame(columns)

    def headline(self) -> str:
        sizes = self.values[self.metrics[0]].shape
        grid = " × ".join(f"{size} {axis}" for size, axis in zip(sizes, self.axes, strict=False))
        missing = "" if self.complete else "; interrupted"
        return f"{', '.join(self.metrics)} under {self.title}, over {grid}, {sizes[-1]} examples{missing}"

    def plot(self, metric: str | None = None, *, dark: bool = False) -> Figure:
        """Draw the grid; see ``interp.plots.plot_cells``."""
        from interp.plots import plot_cells

        return plot_cells(self, metric, dark=dark)

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {"result": type(self).__name__, "schema_version": self.schema_version}
        arrays = _arrays(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            values[field.name] = {k: _lists(v) for k, v in value.items()} if field.name in arrays else _plain(value)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read: dict[str, Any] = {}
        arrays = _arrays(cls)
        for field in fields(cls):
            value = values[field.name]
            if field.name in arrays:
                value = {name: np.array(array, dtype=float) for name, array in value.items()}
            read[field.name] = _tuples(value)
        return cls(**read)

    def summary_html(self) -> str:
        """Return the cells that change the metric most, as a table."""
        name = self.metrics[0]
        frame = self.to_frame(name)
        top = frame.reindex(frame["change"].abs().sort_values(ascending=False).index).head(10)
        unit = f" in {self.units[name]}" if self.units[name] else ""
        note = "" if self.complete else "<p>Interrupted: unfinished cells are missing.</p>"
        return f"<p>{escape(self.title)}; {escape(name)}{unit}</p>{note}{top.to_html(index=False)}"


_PER_METRIC = ("Mapping[str, np.ndarray]", "Mapping[str, str]", "Mapping[str, bool]")


def _arrays(cls: type[CellResult]) -> tuple[str, ...]:
    """Return the fields that hold an array per metric."""
    return tuple(field.name for field in fields(cls) if field.type == "Mapping[str, np.ndarray]")


def _lists(array: np.ndarray) -> Any:
    """Return nested lists with None for NaN, which JSON does not have."""
    return np.where(np.isnan(array), cast(Any, None), array).tolist()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
