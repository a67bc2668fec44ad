"""InductionCircuit: what was found about the parts of an induction circuit and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from interp.results import HeadReport, Result
from interp.sites import Head
from interp.weights.links import Route

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Link:
    """One earlier head, as it is read by one input of one induction head.

    Attributes:
        earlier, later: the heads.
        route: the input: ``K`` (keys; from previous-token heads) or ``Q`` (queries; from duplicate-token heads).
        composition: the composition score of this kind, from the weights.
        null_mean, null_sd: of its rotation null.
        effect: fall of the later head's induction score when the earlier one is mean-ablated in this input alone;
            attention, mean over sequences.
        interval: its 95 % bootstrap interval over sequences.
        share: of the intact score.
        null: the largest such fall among ``null_heads``, taken sequence by sequence, mean over sequences.
        null_heads: other heads of the earlier head's layer.
        p_above_null: sign test of effect > null over sequences, corrected over all links (Holm).
        whole: the fall when the earlier head is mean-ablated for everything, by all paths.
        whole_null: the same for one random head of ``null_heads``; None where there are none.
        verdict: ablation confirms the link: p below alpha, and at least a tenth of the intact score.
    """

    earlier: Head
    later: Head
    route: Route
    composition: float
    null_mean: float
    null_sd: float
    effect: float
    interval: tuple[float, float]
    share: float
    null: float
    null_heads: tuple[Head, ...]
    p_above_null: float
    whole: float
    whole_null: float | None
    verdict: bool

    @property
    def z(self) -> float:
        """How many standard deviations of the rotation null the composition score lies above its mean."""
        return (self.composition - self.null_mean) / self.null_sd


@dataclass(frozen=True)
class HeadWeights:
    """What the weights of one head of the circuit say.

    Attributes:
        head: which.
        kind: ``previous_token`` or ``induction``.
        copying, copying_output: copying scores, by eigenvalues (Elhage) and by outputs (Olsson), in [-1, 1].
    """

    head: Head
    kind: str
    copying: float
    copying_output: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class InductionCircuit(Result):
    """The induction circuit of one model: its heads, its links, and what the weights say of both.

    Attributes:
        report: of ``find_heads``: previous-token and induction heads with their causal evidence.
        links: every candidate link, the confirmed first, the largest effect first.
        weights: one entry per previous-token and induction head found.
        copying_others: (mean, standard deviation) of ``copying``, and of ``copying_output``, over all other heads.
        composition: ``"L17H3"`` -> K-composition of every head with that induction head, ``[layer, head]``; NaN where
            it does not come earlier.
        positional: ``"L16H0"`` -> pattern by position alone of a previous-token head, ``[query_pos, key_pos]``.
        dimension_null: of composition scores, 1/sqrt(d_model) or 1/sqrt(d_model - 1).
        settings: how links and weights were measured: ``alpha``, ``least_share``, ``n_sequences`` of the links and
            ``n_sequences_whole``, ``n_rotations``, ``n_tokens_copied``, ``relative`` (offset of rotary QK circuits).
    """

    schema_version: ClassVar[int] = 2

    report: HeadReport
    links: tuple[Link, ...]
    weights: tuple[HeadWeights, ...]
    copying_others: tuple[tuple[float, float], tuple[float, float]]
    composition: dict[str, np.ndarray]
    positional: dict[str, np.ndarray]
    dimension_null: float
    settings: dict[str, Any]

    @property
    def confirmed(self) -> tuple[Link, ...]:
        """The links that ablation confirms, the largest effect first."""
        return tuple(link for link in self.links if link.verdict)

    def positional_score(self, head: Head) -> float | None:
        """Return how much a previous-token head would look back by position alone, None where that is not known."""
        pattern = self.positional.get(str(head))
        return None if pattern is None else float(pattern.diagonal(-1).mean())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per link."""
        import pandas as pd

        columns = [
            "route",
            "earlier",
            "later",
            "composition",
            "null",
            "z",
            "effect",
            "share",
            "effect_null",
            "p_above_null",
        ]
        rows = [
            (
                k.route,
                str(k.earlier),
                str(k.later),
                k.composition,
                k.null_mean,
                k.z,
                k.effect,
                k.share,
                k.null,
                k.p_above_null,
            )
            for k in self.links
        ]
        frame = pd.DataFrame(rows, columns=columns)
        return frame.assign(whole=[k.whole for k in self.links], verdict=[k.verdict for k in self.links])

    def to_dict(self) -> dict[str, Any]:
        return {
            "result": type(self).__name__,
            "schema_version": self.schema_version,
            "links": [
                asdict(link)
                | {"earlier": str(link.earlier), "later": str(link.later), "interval": list(link.interval)}
                | {"null_heads": [str(head) for head in link.null_heads]}
                for link in self.links
            ],
            "weights": [asdict(one) | {"head": str(one.head)} for one in self.weights],
            "copying_others": [list(pair) for pair in self.copying_others],
            "dimension_null": self.dimension_null,
            "settings": self.settings,
            "composition": {name: _with_nulls(grid) for name, grid in self.composition.items()},
            "positional": {name: pattern.tolist() for name, pattern in self.positional.items()},
            "report": self.report.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        links = [
            Link(
                **{
                    **link,
                    "earlier": _head(link["earlier"]),
                    "later": _head(link["later"]),
                    "interval": tuple(link["interval"]),
                    "null_heads": tuple(_head(name) for name in link["null_heads"]),
                }
            )
            for link in values["links"]
        ]
        copying, output = (tuple(pair) for pair in values["copying_others"])
        return cls(
            report=HeadReport.from_dict(values["report"]),
            links=tuple(links),
            weights=tuple(HeadWeights(**{**one, "head": _head(one["head"])}) for one in values["weights"]),
            copying_others=(copying, output),
            composition={name: np.array(grid, dtype=float) for name, grid in values["composition"].items()},
            positional={name: np.array(pattern) for name, pattern in values["positional"].items()},
            dimension_null=values["dimension_null"],
            settings=dict(values["settings"]),
        )

    def headline(self) -> str:
        return (
            f"{len(self.confirmed)} of {len(self.links)} candidate links of {self.report.model} confirmed by ablation"
        )

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw the links; see ``interp.plots.plot_links``."""
        from interp.plots import plot_links

        return plot_links(self, dark=dark)

    def summary_html(self) -> str:
        """Return the links as a table."""
        return f"<p>Induction circuit: {escape(self.headline())}</p>{self.to_frame().round(3).to_html(index=False)}"


def _head(name: str) -> Head:
    layer, head = name.removeprefix("L").split("H")
    return Head(int(layer), int(head))


def _with_nulls(grid: np.ndarray) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in grid]
