"""Results: frozen values that can be saved, loaded, shown and put into a table.

``Result`` is what every result shares. A ``HeadReport`` is what ``find_heads`` returns: per head and kind a
``HeadEvidence``, per kind some ``CausalEvidence``, and the arrays that figures need.
"""

from __future__ import annotations

import json
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from interp.files import written_whole
from interp.head_evidence import CausalEvidence, HeadEvidence
from models.errors import InputError
from models.protocol import HookedModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class HeadReport(Result):
    """The heads of one model: evidence for every head and kind, and what figures are drawn from.

    A head is *found* where the pattern is there, and *confirmed* where taking it out does what the kind predicts.

    Attributes:
        model: its name.
        kinds: the kinds looked for.
        seed: of the sequences, the bootstrap and the fair sets.
        evidence: one entry per kind, layer and head, in this order.
        causal: per kind with heads found, what happens without them.
        config: of the model.
        versions: of what computed this.
        settings: how it was measured: ``n_sequences``, ``length`` (of the longest block that comes twice), ``lengths``
            (of each sequence's), ``n_tokens``, ``prepended_bos``, ``sink_token``, ``sink_length``, ``alpha``,
            ``thresholds`` per kind, ``causal`` (the sequences of the causal step).
        sink_share: on ``random`` tokens and on ``text``, the share of heads that are sinks, mean over sequences, as Gu
            et al. publish it; without ``text`` where the model cannot read it. Empty where sinks were not looked for.
        tokens_shown: the sequence that ``patterns`` belong to, one string per position.
        patterns: ``"L5H1"`` -> attention ``[query_pos, key_pos]`` on that sequence, for the best heads of each kind.
        token_loss: mean next-token loss in nats on BOS + N tokens and the same N; entry i is the prediction of token
            i + 1. Mixed blocks are laid on each other from their first tokens on, N is what a third of them reach.
        token_loss_ablated: the same without the induction heads; None where none were found.
        warnings: what a reader must know.
    """

    schema_version: ClassVar[int] = 2

    model: str
    kinds: tuple[str, ...]
    seed: int
    evidence: tuple[HeadEvidence, ...]
    causal: tuple[CausalEvidence, ...]
    config: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    sink_share: dict[str, float]
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
        mine = (e for e in self.evidence if e.kind == kind)
        return tuple(sorted(mine, key=lambda e: (-e.score, -e.details.get("alpha_1", 0.0))))

    def found(self, kind: str) -> tuple[HeadEvidence, ...]:
        """Return the heads that have the pattern, best score first."""
        return tuple(evidence for evidence in self.of_kind(kind) if evidence.found)

    def confirmed(self, kind: str) -> tuple[HeadEvidence, ...]:
        """Return the heads that have the pattern and whose effect is confirmed, best score first."""
        return tuple(evidence for evidence in self.of_kind(kind) if evidence.is_confirmed)

    @property
    def repeat_column(self) -> int:
        """Where the repeat begins in ``tokens_shown``."""
        return int(self.settings["prepended_bos"]) + int(self.settings["length"])

    @property
    def loss_repeat_column(self) -> int:
        """Where the repeat begins in ``token_loss``, counted in tokens."""
        bos = int(self.settings["prepended_bos"])
        return bos + (len(self.token_loss) + 1 - bos) // 2

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
                "bar": e.bar,
                "p_value": e.p_value,
                "pattern": e.pattern,
                "effect": e.effect,
                "effect_low": None if e.effect_interval is None else e.effect_interval[0],
                "effect_high": None if e.effect_interval is None else e.effect_interval[1],
                "confirmed": e.confirmed,
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
            "heads": [e.to_dict() for e in self.evidence],
            "causal": [c.to_dict() for c in self.causal],
            "config": self.config,
            "versions": self.versions,
            "settings": self.settings,
            "sink_share": self.sink_share,
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
            evidence=tuple(HeadEvidence.from_dict(e) for e in values["heads"]),
            causal=tuple(CausalEvidence.from_dict(c) for c in values["causal"]),
            config=dict(values["config"]),
            versions=dict(values["versions"]),
            settings=dict(values["settings"]),
            sink_share=dict(values["sink_share"]),
            tokens_shown=tuple(values["tokens_shown"]),
            patterns={name: np.array(pattern) for name, pattern in values["patterns"].items()},
            token_loss=np.array(values["token_loss"]),
            token_loss_ablated=None if ablated is None else np.array(ablated),
            warnings=tuple(values["warnings"]),
        )

    def headline(self) -> str:
        counts = (
            f"{len(self.found(k))} {k.replace('_', '-')} ({len(self.confirmed(k))} confirmed)" for k in self.kinds
        )
        return f"heads of {self.model} with the pattern: {', '.join(counts)}"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw every head's scores; see ``interp.plots.plot_head_scores``."""
        from interp.plots import plot_head_scores

        return plot_head_scores(self, dark=dark)

    def summary_html(self) -> str:
        """Return the found heads as a table."""
        names = ("kind", "head", "score", "95 %", "bar", "p (score > bar)", "effect", "95 %", "confirmed")
        rows = [
            f"<tr><td>{e.kind}</td><td>{e.name}</td><td>{e.score:.3f}</td>"
            f"<td>{e.interval[0]:.3f} to {e.interval[1]:.3f}</td><td>{e.bar:.3f}</td><td>{e.p_value:.2g}</td>"
            f"<td>{'' if e.effect is None else f'{e.effect:.3f}'}</td>"
            f"<td>{'' if e.effect_interval is None else '{:.3f} to {:.3f}'.format(*e.effect_interval)}</td>"
            f"<td>{e.confirmed}</td></tr>"
            for kind in self.kinds
            for e in self.found(kind)
        ]
        header = "".join(f"<th>{name}</th>" for name in names)
        notes = "".join(f"<p>{escape(warning)}</p>" for warning in self.warnings)
        body = "".join(rows) or f'<tr><td colspan="{len(names)}">no head found</td></tr>'
        return f"<p>Heads of {escape(self.model)}</p><table><tr>{header}</tr>{body}</table>{notes}"
