"""Causal evidence for the heads that were found: which experiments to run, on which sets, on which sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from interp.heads import duplicate_token, induction, previous_token, sink
from interp.heads.knockout import Knockout, random_sets
from interp.heads.scores import Measured
from interp.prompts import RepeatedTokens
from interp.results import CausalEvidence, HeadKind
from interp.sites import Head
from models.protocol import HookedModel

N_SEQUENCES = 2
N_RANDOM_SETS = 19  # the fewest with which p can reach .05
N_SINGLE = 8

Found = Mapping[HeadKind, Sequence[Head]]


@dataclass
class Causes:
    """What the experiments gave.

    Attributes:
        evidence: one entry per kind with heads found.
        effects: per kind, the single effects of its best heads.
        token_loss_ablated: loss without the induction heads, on all sequences.
        warnings: experiments that could not be made.
    """

    evidence: list[CausalEvidence] = field(default_factory=list)
    effects: dict[HeadKind, dict[Head, float]] = field(default_factory=dict)
    token_loss_ablated: np.ndarray | None = None
    warnings: list[str] = field(default_factory=list)


def causes(
    model: HookedModel,
    prompts: RepeatedTokens,
    measured: Measured,
    found: Found,
    kinds: Sequence[HeadKind],
    seed: int,
    ticker: Callable[[str, int], Callable[[], None]],
) -> Causes:
    """Run the experiments of every kind in ``kinds`` of which heads were found.

    Args:
        model: the model.
        prompts: all sequences; effects are measured on the first two.
        measured: gives the mean activations that stand in for heads.
        found: the heads of every kind, best first.
        kinds: the kinds to give evidence for.
        seed: of the random sets.
        ticker: given a stage and its number of runs, returns what is called after each run.
    """
    few = replace(prompts, repeated=prompts.repeated[:N_SEQUENCES], control=prompts.control[:N_SEQUENCES])
    _, n_layers, n_heads = measured.active.shape
    # Most heads of a large model are sinks, so that being one does not make a head unfit for comparison.
    detected = [head for kind, heads in found.items() if kind != "sink" for head in heads]
    result = Causes()
    for kind in kinds:
        heads = found[kind]
        if not heads:
            continue
        if kind == "sink":
            evidence, result.effects[kind] = sink.evidence(
                heads, measured.dormant, measured.active, measured.value_ratio
            )
            result.evidence.append(evidence)
            continue
        singly, readers = heads[:N_SINGLE], []
        if kind == "previous_token":
            readers = previous_token.receivers(heads, measured.mean("induction"), found["induction"])
            if not readers:
                result.warnings.append(
                    "previous-token heads in the last layer only: no later layer can read them, so they have no "
                    "causal evidence"
                )
                continue
            singly = [head for head in singly if any(reader.layer > head.layer for reader in readers)]
        sets = random_sets(heads, detected, n_layers, n_heads, N_RANDOM_SETS, seed)
        stage = f"{kind.replace('_', ' ')}: without the heads"
        knockout = Knockout(model, few, measured.mean_z, ticker(stage, 2 + len(sets.sets) + len(singly)))
        if kind == "previous_token":
            evidence, effects = previous_token.causal(knockout, heads, readers, sets, singly)
        elif kind == "induction":
            evidence, effects = induction.causal(knockout, heads, sets, singly)
            everything = replace(knockout, prompts=prompts, tick=lambda: None)
            result.token_loss_ablated = everything.loss(heads)
        else:
            evidence, effects = duplicate_token.causal(knockout, heads, sets, singly)
        result.evidence.append(evidence)
        result.effects[kind] = effects
    return result
