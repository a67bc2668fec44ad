"""What speaks for a head being of a kind: the pattern it shows, and what goes without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from interp.sites import Head

Outcome = Literal["yes", "borderline", "no"]
Confirmed = Literal["alone", "jointly", "no", "no fair comparison", "not measured"]


@dataclass(frozen=True)
class HeadEvidence:
    """What speaks for one head being of one kind, in two steps: what it looks at, and what goes without it.

    Attributes:
        kind: the kind of head, see ``interp.detectors.kinds``.
        layer, head: which head.
        score: its definition is in ``interp.detectors.<kind>``; a share in [0, 1].
        interval: 95 % interval of the score over sequences.
        null: what confounds would give, see ``interp.detectors.<kind>``.
        bar: what the score must exceed: the least score, or twice the null where that is more.
        p_value: of "score > bar", one-sided, corrected over all heads of the model.
        pattern: the first step: is the score above its bar, see ``interp.detectors.statistics``.
        by_third: the score of the queries in each third of the tokens; None where there are none.
        confounds: the same head's scores of the other kinds.
        details: description by name, which decides nothing.
        effect: the head's own causal effect, in the unit of the kind's ``CausalEvidence``; None where not measured.
        effect_interval: its 95 % interval over sequences.
        confirmed: the second step, see ``interp.detectors.confirm``; only heads with the pattern are measured.
        bar_of_thirds: what the score of a third must reach; None where it is ``bar``.
    """

    kind: str
    layer: int
    head: int
    score: float
    interval: tuple[float, float]
    null: float
    bar: float
    p_value: float
    pattern: Outcome
    by_third: tuple[float | None, float | None, float | None]
    confounds: dict[str, float]
    details: dict[str, float]
    effect: float | None = None
    effect_interval: tuple[float, float] | None = None
    confirmed: Confirmed = "not measured"
    bar_of_thirds: float | None = None

    @property
    def name(self) -> Head:
        """The head; ``str`` of it is ``L5H1``."""
        return Head(self.layer, self.head)

    @property
    def found(self) -> bool:
        """Whether the pattern is there."""
        return self.pattern == "yes"

    @property
    def in_part(self) -> bool:
        """Whether what is looked at is looked at in some thirds of the tokens alone: there it is over the bar."""
        bar = self.bar if self.bar_of_thirds is None else self.bar_of_thirds
        over = [third >= bar for third in self.by_third if third is not None]
        return any(over) and not all(over)

    @property
    def is_confirmed(self) -> bool:
        """Whether its effect is confirmed, of the head alone or as a part of its set."""
        return self.confirmed in ("alone", "jointly")

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values."""
        return _plain(asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``to_dict`` describes."""
        ends = values["effect_interval"]
        tuples = {name: tuple(values[name]) for name in ("interval", "by_third")}
        return cls(**{**values, **tuples, "effect_interval": None if ends is None else tuple(ends)})


@dataclass(frozen=True)
class CausalEvidence:
    """What happens when a set of heads is taken out, against fair sets: as many other heads of the same layers.

    Attributes:
        kind: the kind of the heads.
        heads: the set.
        description: what was done and measured, in one sentence.
        effect: of the set, in ``unit``, mean over sequences; a positive number is what the kind's definition predicts.
        interval: its 95 % interval over sequences.
        unit: of effect and null effects.
        share: of what there is to lose; None where nothing is, or where there is no such bound.
        null_effects: the effects of the fair sets; empty where there are none.
        comparison: what the fair sets are, or why there are none.
        p_value: share of null effects that reach the effect, (1 + count) / (1 + n), which is 1 where there are none.
        least_p: 1 / (1 + n): what this number of sets allows.
        confirmed: see ``interp.detectors.confirm``.
        details: further measurements by name.
    """

    kind: str
    heads: tuple[Head, ...]
    description: str
    effect: float
    interval: tuple[float, float]
    unit: str
    share: float | None
    null_effects: tuple[float, ...]
    comparison: str
    p_value: float
    least_p: float
    confirmed: Literal["yes", "no", "no fair comparison"]
    details: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values."""
        return _plain(asdict(self) | {"heads": [str(head) for head in self.heads]})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``to_dict`` describes."""
        names = [name.removeprefix("L").split("H") for name in values["heads"]]
        heads = tuple(Head(int(layer), int(head)) for layer, head in names)
        tuples = {name: tuple(values[name]) for name in ("interval", "null_effects")}
        return cls(**{**values, **tuples, "heads": heads})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
