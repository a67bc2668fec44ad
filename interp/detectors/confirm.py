"""The second step of a verdict: does taking the heads out do what their kind predicts?

The heads of a kind that have the pattern are taken out together, for heads of one kind stand in for each other and
single effects do not add up. The set is *confirmed* where

* the 95 % interval of its effect over sequences lies above 0, and so does that of what there is to lose, and
* its effect is beyond that of every fair set (``interp.detectors.fair_sets``); the share of fair sets that reach it is
  p, beside the least p that their number allows.

Where no fair set exists there is no fair comparison, and nothing is confirmed. Of a set that is confirmed, a head is
confirmed

* ``alone`` where its own effect has an interval above 0 and is beyond that of every fair set, though these take out as
  many heads as the whole set has;
* ``jointly`` where it is one of the others, and what these add together once the heads above are out passes the same
  two tests; else it rode along, and is not confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from interp.detectors.detector import Setting
from interp.detectors.experiments import N_SEQUENCES, Experiment, Outcome
from interp.detectors.fair_sets import FairSets, fair_sets
from interp.detectors.kinds import DETECTORS
from interp.detectors.measure import Measured
from interp.detectors.statistics import bootstrap_interval
from interp.head_evidence import CausalEvidence, Confirmed, HeadEvidence
from interp.prompts.random_tokens import mixed_repeats
from interp.sites import Head
from models.protocol import HookedModel

LONGEST = 16
N_SINGLE = 8

Found = Mapping[str, Sequence[Head]]
Interval = tuple[float, float]


@dataclass
class Confirmations:
    """What the experiments gave.

    Attributes:
        evidence: one entry per kind with heads found.
        effects: per kind, effect and interval of its best heads, singly.
        words: per kind, what is confirmed of each head of the set.
        warnings: experiments that could not be made.
    """

    evidence: list[CausalEvidence] = field(default_factory=list)
    effects: dict[str, dict[Head, tuple[float, Interval]]] = field(default_factory=dict)
    words: dict[str, dict[Head, Confirmed]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def of(self, one: HeadEvidence) -> HeadEvidence:
        """Return a head's evidence with what was measured of it."""
        head = one.name
        word = self.words.get(one.kind, {}).get(head)
        if word is None:
            return one
        effect, interval = self.effects[one.kind].get(head, (None, None))
        return replace(one, confirmed=word, effect=effect, effect_interval=interval)


def confirm(
    model: HookedModel,
    measured: Measured,
    found: Found,
    kinds: Sequence[str],
    seed: int,
    ticker: Callable[[str], Callable[[int, int], None]],
) -> Confirmations:
    """Run the experiment of every kind in ``kinds`` of which heads were found.

    Args:
        model: a decoder.
        measured: gives the mean activations that stand in for heads.
        found: the heads of every kind that have its pattern, best first.
        kinds: the kinds to give evidence for.
        seed: of sequences, bootstrap and fair sets.
        ticker: given a stage, returns what is told the sets done and all.
    """
    result = Confirmations()
    if not any(found[kind] for kind in kinds):
        return result
    prompts = mixed_repeats(model, N_SEQUENCES, LONGEST, at_end=True, seed=seed + 1)
    setting = Setting(model, prompts, measured.mean_z, found)
    for kind in kinds:
        heads = found[kind]
        if not heads:
            continue
        singly = heads[:N_SINGLE]
        experiment = DETECTORS[kind].experiment(setting)
        if isinstance(experiment, str):
            result.warnings.append(experiment)
            continue
        singly = [head for head in singly if experiment.takes(head)]
        fair = fair_sets(heads, model.cfg.n_heads, seed)
        outcome = experiment.run([heads, *fair.sets, *([head] for head in singly)], ticker(_stage(kind)))
        evidence, effects = _judged(kind, heads, singly, fair, experiment, outcome, seed)
        result.evidence.append(evidence)
        result.effects[kind] = effects
        result.words[kind] = _words(evidence, effects, experiment, outcome, seed)
    return result


def _words(
    causal: CausalEvidence,
    effects: Mapping[Head, tuple[float, Interval]],
    experiment: Experiment,
    outcome: Outcome,
    seed: int,
) -> dict[Head, Confirmed]:
    """Return what is confirmed of each head of a set."""
    if causal.confirmed != "yes":
        return dict.fromkeys(causal.heads, causal.confirmed)
    beyond = max(causal.null_effects)
    alone = [head for head, (effect, (low, _)) in effects.items() if low > 0 and effect > beyond]
    others = [head for head in causal.heads if head not in alone]
    together: Confirmed = "jointly"
    if alone and others:
        added = outcome.effects[0] - experiment.run([alone]).effects[0]
        together = "jointly" if _interval(added, seed)[0] > 0 and added.mean() > beyond else "no"
    words: dict[Head, Confirmed] = dict.fromkeys(alone, "alone")
    return words | dict.fromkeys(others, together)


def _stage(kind: str) -> str:
    return f"{kind.replace('_', ' ')}: without the heads"


def _judged(
    kind: str,
    heads: Sequence[Head],
    singly: Sequence[Head],
    fair: FairSets,
    experiment: Experiment,
    outcome: Outcome,
    seed: int,
) -> tuple[CausalEvidence, dict[Head, tuple[float, Interval]]]:
    of_set, of_singles = outcome.effects[0], outcome.effects[1 + len(fair.sets) :]
    nulls = outcome.effects[1 : 1 + len(fair.sets)].mean(-1)
    effect, interval = float(of_set.mean()), _interval(of_set, seed)
    share = None
    something_to_lose = True
    if outcome.to_lose is not None:
        something_to_lose = _interval(outcome.to_lose, seed)[0] > 0
        share = effect / float(outcome.to_lose.mean()) if something_to_lose else None
    confirmed: Literal["yes", "no", "no fair comparison"] = "no fair comparison"
    if fair.sets:
        confirmed = "yes" if interval[0] > 0 and something_to_lose and bool((nulls < effect).all()) else "no"
    evidence = CausalEvidence(
        kind=kind,
        heads=tuple(heads),
        description=f"{experiment.what} when {_all_of(kind, len(heads))} {experiment.how}",
        effect=effect,
        interval=interval,
        unit=experiment.unit,
        share=share,
        null_effects=tuple(nulls.tolist()),
        comparison=fair.note,
        p_value=(1 + int((nulls >= effect).sum())) / (1 + len(nulls)),
        least_p=fair.least_p,
        confirmed=confirmed,
        details={"intact": outcome.intact},
    )
    singles = {head: (float(one.mean()), _interval(one, seed)) for head, one in zip(singly, of_singles, strict=True)}
    return evidence, singles


def _all_of(kind: str, n: int) -> str:
    name = kind.replace("_", "-")
    return f"the one {name} head found is" if n == 1 else f"all {n} {name} heads found are"


def _interval(effects: np.ndarray, seed: int) -> Interval:
    low, high = bootstrap_interval(effects, seed)
    return float(low), float(high)
