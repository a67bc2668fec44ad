"""Results: frozen values that can be saved, loaded, shown and put into a table.

``Result`` is what every result shares. A ``HeadReport`` is what ``find_heads`` returns: per head and kind a
``HeadEvidence``, per kind some ``CausalEvidence``, and the arrays that figures need.
"""

from __future__ import annotations

import json
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np

from interp.files import written_whole
from interp.sites import Head
from models.errors import InputError
from models.protocol import HookedModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

HeadKind = Literal["previous_token", "sink", "induction", "duplicate_token"]
KINDS: tuple[HeadKind, ...] = get_args(HeadKind)


def current_versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    names = ("residscope", "torch", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def described(model: HookedModel) -> dict[str, Any]:
    """Return what every result says of the model it is about: ``model`` (its name), ``config`` and ``versions``."""
    return {"model": model.name or type(model).__name__, "config": model.cfg.to_dict(), "versions": current_versions()}


def plain_fields(result: Result) -> dict[str, Any]:
    """Return a result's class, schema version and fields: arrays and tensors as lists, all else as it is."""
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    header = {"result": type(result).__name__, "schema_version": result.schema_version}
    return header | {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}


@dataclass(frozen=True, eq=False, repr=False)
class Result(ABC):
    """A value with a JSON form, ``load(save(x)) == x``, that draws itself and shows itself in a notebook."""

    schema_version: ClassVar[int] = 1

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values, with ``result`` (the class) and ``schema_version``."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the result that ``to_dict`` describes."""

    @abstractmethod
    def headline(self) -> str:
        """Return what this is, in one line."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    @abstractmethod
    def plot(self, *, dark: bool = False) -> Figure:
        """Draw the result; the functions in ``interp.plots`` have more options. ``dark`` is for a dark page."""

    @abstractmethod
    def summary_html(self) -> str:
        """Return the main figures as an HTML table: what a notebook viewer shows that runs no scripts."""

    def _repr_html_(self) -> str:
        """Return the result's page in a frame; see ``interp.report.show``."""
        from interp.report import show

        return show(self)._repr_html_()

    def save(self, path: str | Path) -> Path:
        """Write JSON to ``path``, whole or not at all, and return the path."""
        with written_whole(path) as partial:
            partial.write_text(json.dumps(self.to_dict(), allow_nan=False), encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote. Raises InputError where the file holds something else, or a field is bad."""
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not a readable JSON file: {error}") from None
        expected = (cls.__name__, cls.schema_version)
        got = (values.get("result"), values.get("schema_version")) if isinstance(values, dict) else (None, None)
        if got != expected:
            raise InputError(
                f"{path} holds {got[0]!r} of schema version {got[1]}; expected {expected[0]!r} of version "
                f"{expected[1]}: load it as what it is, or make it anew with this version"
            )
        try:
            return cls.from_dict(values)
        except KeyError as error:
            raise InputError(f"{path} holds a {cls.__name__} without {error}; save it anew") from None
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise InputError(f"{path} holds a {cls.__name__} with a field that cannot be read: {error}") from None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.to_dict() == other.to_dict()


@dataclass(frozen=True)
class HeadEvidence:
    """What speaks for one head being of one kind.

    Attributes:
        kind: the kind of head.
        layer, head: which head.
        score: its definition is in ``interp.heads.<kind>``; a probability in [0, 1].
        interval: 95 % bootstrap interval of the score over sequences.
        null: the score to expect of a head that is not of this kind.
        p_value: one-sided, corrected over all heads of the model.
        confounds: the same head's scores of the other kinds.
        effect: the head's own causal effect, in the unit of the kind's ``CausalEvidence``; None where not measured.
        verdict: significant, and above the kind's least score.
    """

    kind: HeadKind
    layer: int
    head: int
    score: float
    interval: tuple[float, float]
    null: float
    p_value: float
    confounds: dict[str, float]
    effect: float | None
    verdict: bool

    @property
    def name(self) -> Head:
        """The head; ``str`` of it is ``L5H1``."""
        return Head(self.layer, self.head)


@dataclass(frozen=True)
class CausalEvidence:
    """What happens when a set of heads is taken out, against random sets of the same size.

    Attributes:
        kind: the kind of the heads.
        heads: the set.
        description: what was done and measured, in one sentence.
        effect: of the set, in ``unit``; a positive number is what the kind's definition predicts.
        unit: of effect and null effects.
        null_effects: the effects of the random sets; empty where there is nothing to compare with.
        p_value: share of null effects that reach the effect, (1 + count) / (1 + n), which is 1 where there are none.
            For sinks, whose effect is observed on pairs of sequences, the p-value of the sign test.
        details: further measurements by name.
    """

    kind: HeadKind
    heads: tuple[Head, ...]
    description: str
    effect: float
    unit: str
    null_effects: tuple[float, ...]
    p_value: float
    details: dict[str, float]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadReport(Result):
    """The heads of one model: evidence for every head and kind, and what figures are drawn from.

    Attributes:
        model: its name.
        kinds: the kinds looked for.
        seed: of the sequences, the bootstrap and the random sets.
        evidence: one entry per kind, layer and head, in this order.
        causal: per kind with heads found, what happens without them.
        config: of the model.
        versions: of what computed this.
        settings: how it was measured: ``n_sequences``, ``length`` (distinct tokens N in BOS + 2N), ``prepended_bos``,
            ``sink_token``, ``sink_length``, ``alpha``, ``thresholds`` per kind.
        tokens_shown: the sequence that ``patterns`` belong to, one string per position.
        patterns: ``"L5H1"`` -> attention ``[query_pos, key_pos]`` on that sequence, for the best heads of each kind.
        token_loss: ``[pos - 1]``, mean next-token loss in nats on BOS + 2N tokens; entry i is the prediction of
            token i + 1.
        token_loss_ablated: the same without the induction heads; None where none were found.
        warnings: what a reader must know.
    """

    model: str
    kinds: tuple[HeadKind, ...]
    seed: int
    evidence: tuple[HeadEvidence, ...]
    causal: tuple[CausalEvidence, ...]
    config: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    tokens_shown: tuple[str, ...]
    patterns: dict[str, np.ndarray]
    token_loss: np.ndarray
    token_loss_ablated: np.ndarray | None = None
    warnings: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for array in (*self.patterns.values(), self.token_loss, self.token_loss_ablated):
            if array is not None:
                array.setflags(write=False)

    def of_kind(self, kind: str) -> tuple[HeadEvidence, ...]:
        """Return the evidence on every head for one kind, best score first. Raises InputError on another kind."""
        if kind not in self.kinds:
            raise InputError(f"kind {kind!r} is not in this report; it has {', '.join(self.kinds)}")
        return tuple(sorted((e for e in self.evidence if e.kind == kind), key=lambda e: -e.score))

    def found(self, kind: str) -> tuple[HeadEvidence, ...]:
        """Return the heads with a positive verdict, best score first."""
        return tuple(evidence for evidence in self.of_kind(kind) if evidence.verdict)

    def scores(self, kind: str) -> np.ndarray:
        """Return the scores of one kind, ``[layer, head]``."""
        evidence = self.of_kind(kind)
        grid = np.zeros((1 + max(e.layer for e in evidence), 1 + max(e.head for e in evidence)))
        for e in evidence:
            grid[e.layer, e.head] = e.score
        return grid

    def to_frame(self) -> pd.DataFrame:
        """Return one row per kind and head; the confounding scores are the rows of the other kinds."""
        import pandas as pd

        rows = [
            {
                "kind": e.kind,
                "name": str(e.name),
                "layer": e.layer,
                "head": e.head,
                "score": e.score,
                "low": e.interval[0],
                "high": e.interval[1],
                "null": e.null,
                "p_value": e.p_value,
                "effect": e.effect,
                "verdict": e.verdict,
            }
            for e in self.evidence
        ]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "result": type(self).__name__,
            "schema_version": self.schema_version,
            "model": self.model,
            "kinds": list(self.kinds),
            "seed": self.seed,
            "heads": [asdict(e) | {"interval": list(e.interval)} for e in self.evidence],
            "causal": [
                asdict(c) | {"heads": [str(head) for head in c.heads], "null_effects": list(c.null_effects)}
                for c in self.causal
            ],
            "config": self.config,
            "versions": self.versions,
            "settings": self.settings,
            "tokens_shown": list(self.tokens_shown),
            "patterns": {name: pattern.tolist() for name, pattern in self.patterns.items()},
            "token_loss": self.token_loss.tolist(),
            "token_loss_ablated": None if self.token_loss_ablated is None else self.token_loss_ablated.tolist(),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        ablated = values["token_loss_ablated"]
        return cls(
            model=values["model"],
            kinds=tuple(values["kinds"]),
            seed=values["seed"],
            evidence=tuple(HeadEvidence(**{**e, "interval": tuple(e["interval"])}) for e in values["heads"]),
            causal=tuple(_causal_from_dict(c) for c in values["causal"]),
            config=dict(values["config"]),
            versions=dict(values["versions"]),
            settings=dict(values["settings"]),
            tokens_shown=tuple(values["tokens_shown"]),
            patterns={name: np.array(pattern) for name, pattern in values["patterns"].items()},
            token_loss=np.array(values["token_loss"]),
            token_loss_ablated=None if ablated is None else np.array(ablated),
            warnings=tuple(values["warnings"]),
        )

    def headline(self) -> str:
        kinds = ", ".join(f"{len(self.found(kind))} {kind.replace('_', '-')}" for kind in self.kinds)
        return f"heads of {self.model}, found: {kinds}"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw every head's scores; see ``interp.plots.plot_head_scores``."""
        from interp.plots import plot_head_scores

        return plot_head_scores(self, dark=dark)

    def summary_html(self) -> str:
        """Return the found heads as a table."""
        rows = [
            f"<tr><td>{e.kind}</td><td>{e.name}</td><td>{e.score:.3f}</td>"
            f"<td>{e.interval[0]:.3f} to {e.interval[1]:.3f}</td><td>{e.null:.3f}</td><td>{e.p_value:.2g}</td>"
            f"<td>{'' if e.effect is None else f'{e.effect:.3f}'}</td></tr>"
            for kind in self.kinds
            for e in self.found(kind)
        ]
        header = "".join(f"<th>{name}</th>" for name in ("kind", "head", "score", "95 %", "null", "p", "effect"))
        notes = "".join(f"<p>{escape(warning)}</p>" for warning in self.warnings)
        body = "".join(rows) or '<tr><td colspan="7">no head found</td></tr>'
        return f"<p>Heads of {escape(self.model)}</p><table><tr>{header}</tr>{body}</table>{notes}"


def _causal_from_dict(values: Mapping[str, Any]) -> CausalEvidence:
    heads = [name.removeprefix("L").split("H") for name in values["heads"]]
    return CausalEvidence(
        **{
            **values,
            "heads": tuple(Head(int(layer), int(head)) for layer, head in heads),
            "null_effects": tuple(values["null_effects"]),
        }
    )
