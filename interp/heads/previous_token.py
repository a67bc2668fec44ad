"""Previous-token heads: each query attends to the token before it.

    score = mean over i of A[i, i-1],   i >= 1; i >= 2 where BOS is prepended, or attention to BOS as a sink leaks in

Source: the IOI paper (arXiv 2211.00593), which finds them on repeated random tokens.

Null: the larger of the stripes beside it, A[i, i] and A[i, i-2]. A plain preference for recent tokens falls steadily
with the distance and would give the stripe at i-1 too, but then i gets more; uniform attention gives all three the
same. A head must prefer the token before to both of its neighbours.

Causal evidence: an induction head finds "the token that came after this one" through keys that carry the token before
them, written by a previous-token head (Olsson et al., arXiv 2209.11895). So without the previous-token heads, the
induction scores in later layers should fall.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.heads import induction
from interp.heads.knockout import Knockout, RandomSets, evidence_against_random
from interp.results import CausalEvidence
from interp.sites import Head
from models.hooks.point import HookPoint

LEAST_SCORE = 0.3
N_RECEIVERS = 3


def score(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Float[Tensor, "batch head"]:
    """Return each head's mean attention to the token before, over queries i >= 1 + n_prepended."""
    return _stripe(pattern, 1, n_prepended)


def null(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Float[Tensor, "batch head"]:
    """Return the larger of the mean A[i, i] and the mean A[i, i-2], over the same queries."""
    return torch.maximum(_stripe(pattern, 0, n_prepended), _stripe(pattern, 2, n_prepended))


def _stripe(pattern: Tensor, offset: int, n_prepended: int) -> Float[Tensor, "batch head"]:
    """Return the mean over queries i > n_prepended of A[i, i - offset]; a prepended key counts as no attention."""
    n_queries = pattern.shape[-1] - n_prepended - 1
    by_key = pattern.diagonal(-offset, dim1=-2, dim2=-1)
    return by_key[..., max(n_prepended + 1 - offset, n_prepended) :].sum(-1) / n_queries


def receivers(
    heads: Sequence[Head], induction_scores: Float[np.ndarray, "layer head"], found: Sequence[Head]
) -> list[Head]:
    """Return the induction heads that can read from ``heads``: those found in later layers.

    Where none was found there, the three best induction scores of later layers stand in.
    """
    first = min(head.layer for head in heads)
    later = [Head(*index) for index in np.ndindex(induction_scores.shape) if index[0] > first]
    best = sorted(later, key=lambda head: -induction_scores[head])
    return [head for head in best if head in found] or best[:N_RECEIVERS]


def causal(
    knockout: Knockout, heads: Sequence[Head], readers: Sequence[Head], random_sets: RandomSets, singly: Sequence[Head]
) -> tuple[CausalEvidence, dict[Head, float]]:
    """Return the fall of the mean induction score of ``readers`` without ``heads``, and without each of ``singly``.

    A single head's effect is on those readers that lie in later layers than itself; each of ``singly`` must have some.
    """

    def induction_scores(ablated: Sequence[Head]) -> dict[Head, float]:
        tokens = knockout.prompts.repeated
        scores: dict[Head, float] = {}

        def read(pattern: Tensor, hook: HookPoint) -> None:
            by_head = induction.score(pattern.float(), tokens).mean(0)
            scores.update({head: float(by_head[head.head]) for head in readers if head.layer == hook.layer})

        layers = sorted({head.layer for head in readers})
        hooks = [(f"blocks.{layer}.attn.hook_pattern", read) for layer in layers]
        knockout.read(ablated, hooks, stop_at_layer=layers[-1] + 1)
        return scores

    intact = induction_scores(())

    def fall(ablated: Sequence[Head], among: Sequence[Head]) -> float:
        without = induction_scores(ablated)
        return sum(intact[head] - without[head] for head in among) / len(among)

    effects = {head: fall([head], [reader for reader in readers if reader.layer > head.layer]) for head in singly}
    evidence = evidence_against_random(
        "previous_token",
        heads,
        lambda ablated: fall(ablated, readers),
        random_sets,
        description=(
            f"fall of the mean induction score of {', '.join(str(head) for head in readers)} when all "
            f"previous-token heads found ({len(heads)}) are mean-ablated"
        ),
        unit="attention",
        details={"intact": sum(intact.values()) / len(intact), "n_readers": float(len(readers))},
    )
    return evidence, effects
