"""From a result to what a page needs to show it: the kind of view, a title, a sentence, and data."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from interp.interventions.ablation_result import JointAblation
from interp.interventions.attribution_result import AttributionComparison
from interp.interventions.cell_result import CellResult
from interp.interventions.metric_result import MetricResult
from interp.readout.attention import AttentionResult
from interp.readout.lens_increments import IncrementsResult
from interp.readout.logit_attribution import LogitAttribution
from interp.readout.logit_lens import LensResult
from interp.readout.next_token import NextTokenResult
from interp.report.packing import pack_heads
from interp.report.titles import whole
from interp.results import HeadReport, Result
from interp.statistics import least_p_value
from interp.weights.circuit_result import InductionCircuit
from models.errors import InputError

MOST_PROMPTS = 32  # of a sweep that a reader can look at


@dataclass(frozen=True)
class View:
    """One section of a page.

    Attributes:
        kind: the view in ``assets``.
        title, lede: its heading, and the sentence below.
        data: JSON-able.
        packs: packed arrays by element id.
        warnings: what a reader must know.
    """

    kind: str
    title: str
    lede: str
    data: Mapping[str, Any]
    packs: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    @property
    def json(self) -> str:
        """The data as JSON that no HTML parser can mistake for markup; numbers with seven digits."""
        text = json.dumps(_compact(self.data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e")


def _compact(value: Any) -> Any:
    """Return plain values: floats with seven digits (float32's), whole ones short, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): _compact(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_compact(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return _compact(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def view_of(result: Result, prefix: str, answers: Sequence[tuple[str, str]] = ()) -> View:
    """Return the view of a result.

    Args:
        result: any result with a view.
        prefix: of element ids, different for every view of a page.
        answers: per prompt, the token that should follow and the one that should not; a sweep shows them.

    Raises:
        InputError: a result of a type that has no view, naming those that have one.
    """
    for kind, make in _VIEWS.items():
        if isinstance(result, kind):
            view = make(result, prefix)
            return replace(view, data={**view.data, "answers": answers}) if view.kind == "sweep" else view
    raise InputError(
        f"no report shows a {type(result).__name__}; those with a view are "
        f"{', '.join(kind.__name__ for kind in _VIEWS)}"
    )


def _attention(result: AttentionResult, prefix: str) -> View:
    packed = pack_heads(result)
    ids = {str(one.head): f"{prefix}-{one.head}" for one in packed}
    described = {
        str(one.head): {"id": ids[str(one.head)], "kind": one.kind, "levels": one.levels, "error": one.error}
        for one in packed
    }
    return View(
        kind="attention",
        title="Attention",
        lede="Tap a token to make it the query: arcs and bars are the weights it gives to the tokens before it, and "
        "the numbers on the right are the scores before the softmax.",
        data={
            "result": {"result": type(result).__name__, "tokens": list(result.tokens), "model": result.model},
            "tokens": list(result.tokens),
            "layers": list(result.layers),
            "heads": result.n_heads,
            "packs": described,
            "start": list(result.most_telling(1)[0]),
        },
        packs={ids[str(one.head)]: one.text for one in packed},
    )


def _lens(result: LensResult, prefix: str) -> View:
    name = "Tuned lens" if result.lens == "tuned" else "Logit lens"
    real = [
        np.array(words, dtype=object)[kept].tolist() for words, kept in zip(result.tokens, result.real, strict=True)
    ]
    return View(
        kind="lens",
        title=name,
        lede="What the model would say if it stopped after each block: the residual stream of every token, read "
        "through the final norm and the unembedding. Choose a cell, or drag the slider.",
        data={"result": result.to_dict(), "prompts": _listed(real, slice(60))},
        warnings=result.warnings,
    )


def _listed(prompts: Sequence[Sequence[str]], part: slice) -> list[str]:
    """Return a part of every prompt, numbered: beginnings and ends are often the same."""
    return [f"{number}: {whole(words)[part]}" for number, words in enumerate(prompts, start=1)]


def _playground(result: NextTokenResult, prefix: str) -> View:
    return View(
        kind="playground",
        title="Next token",
        lede="The model's logits after the prompt. Temperature divides them; top-k and then top-p cut the tail off.",
        data={"result": result.to_dict()},
    )


def _heads(result: HeadReport, prefix: str) -> View:
    return View(
        kind="heads",
        title="Heads",
        lede="Every head in two steps: the pattern, a score with its interval against a bar that its confounds set, "
        "and whether it is confirmed by what goes without it, beside fair sets of other heads.",
        data={"result": result.to_dict()},
        warnings=result.warnings,
    )


def _cells(result: CellResult, prefix: str) -> View:
    sides = result.prompts()
    names = ("clean", "corrupted") if len(sides) == 2 else ("prompt",)
    return View(
        kind="sweep",
        title=result.title,
        lede="Every cell is one intervention; its colour is how far the metric moves from the run that was changed.",
        data={
            "result": result.to_dict(),
            "axes": list(result.axes),
            "labels": [list(result.labels(axis)) for axis in result.axes],
            "metrics": {name: _metric(result, name) for name in result.metrics},
            "prompts": {name: list(side[:MOST_PROMPTS]) for name, side in zip(names, sides, strict=True)},
            "examples": len(sides[0]) if sides else 0,
        },
        warnings=[
            *([] if result.complete else ["Interrupted: unfinished cells are missing."]),
            *([f"No p-values: {result.untestable}."] if result.untestable else []),
        ],
    )


def _metric(result: CellResult, name: str) -> dict[str, Any]:
    """Return one metric of every cell, with interval and p-value of its change where there are enough examples."""
    into, n = float(result.into(name).mean()), result.values[name].shape[-1]
    values = {"mean": result.mean(name), "change": result.change(name), "unit": result.units[name], "into": into}
    if isinstance(result, MetricResult):
        with suppress(InputError):  # where clean and corrupted run hardly differ
            values["recovered"] = result.recovered(name)
        values["runs"] = {"clean": float(result.clean[name].mean()), "corrupted": float(result.corrupted[name].mean())}
    if isinstance(result, JointAblation):
        values["together"] = {"joint": result.joint_change(name), "sum": result.sum_of_singles(name)}
    try:
        low, high = result.interval(name)
    except InputError:  # one example, or none kept
        return values
    values |= {"low": low, "high": high}
    return values if result.untestable else values | {"p": result.p_values(name), "least_p": least_p_value(n)}


def _attribution(result: LogitAttribution, prefix: str) -> View:
    difference = all(re.search(r"['\"] - ['\"]", one[1:-1]) for one in result.answer)
    what = "the difference of the two answers' logits" if difference else "the answer's logit"
    return View(
        kind="attribution",
        title="Direct logit attribution",
        lede=f"How much each write to the residual stream adds to {what} directly, with the final norm's scale frozen "
        "at this run.",
        data={
            "result": result.to_dict(),
            "prompts": _listed(result.tokens, slice(-60, None)),
            "difference": difference,
        },
    )


def _increments(result: IncrementsResult, prefix: str) -> View:
    return View(
        kind="increments",
        title="What each write says",
        lede="Every write read through the final norm (frozen at this run) and the unembedding: the tokens it raises "
        "and lowers most, in logits over the mean of the vocabulary.",
        data={"result": result.to_dict()},
    )


def _comparison(result: AttributionComparison, prefix: str) -> View:
    return View(
        kind="comparison",
        title="Estimated and exact",
        lede=f"{result.title}: what a gradient says every cell would change, beside what patching it changes.",
        data={"result": result.to_dict(), "summary": str(result).capitalize()},
    )


def _circuit(result: InductionCircuit, prefix: str) -> View:
    values = result.to_dict()
    del values["report"], values["positional"]  # the report is a result of its own, with its own view
    return View(
        kind="circuit",
        title="Induction circuit",
        lede="Which earlier head each induction head builds on: how far its score falls when the earlier head is taken "
        "out of this one input, and what the weights say of the link.",
        data={"result": values},
    )


_VIEWS: dict[type, Callable[[Any, str], View]] = {
    AttentionResult: _attention,
    LensResult: _lens,
    NextTokenResult: _playground,
    HeadReport: _heads,
    CellResult: _cells,
    LogitAttribution: _attribution,
    IncrementsResult: _increments,
    AttributionComparison: _comparison,
    InductionCircuit: _circuit,
}
