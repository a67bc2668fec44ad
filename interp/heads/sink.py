"""Attention sinks: a head rests on the first token while it finds nothing to attend to.

    alpha_1(s) = mean over queries t of A[t, 1] on the first T tokens of sequence s        (positions from 1, as in
    score      = mean over s of alpha_1(s)                                                  the paper)
    share      = share of sequences with alpha_1(s) > 0.3

Source: Gu et al. (arXiv 2410.10781), with their epsilon = 0.3 and T = 64 (or the whole sequence, where shorter). The
verdict rests on the share, at least one half; the score ranks the heads. Measured where nothing repeats.

Null: uniform causal attention, alpha_1 = H_T / T with H_T = 1 + 1/2 + ... + 1/T: .074 at T = 64, but .211 at T = 16
and .314 at T = 9. Below 16 tokens, therefore, no verdict is given.

Evidence beside the attention: the value vector of the sink token is small, so that resting there writes little; and
the head is dormant, not fixed: it leaves the sink for queries that have something to attend to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.heads.knockout import RandomSets, evidence_against_random
from interp.results import CausalEvidence
from interp.sites import Head

EPSILON = 0.3
LEAST_SHARE = 0.5
WINDOW = 64
SHORTEST = 16


def score(pattern: Float[Tensor, "batch head query_pos key_pos"]) -> Float[Tensor, "batch head"]:
    """Return alpha_1 of each sequence, over its first 64 tokens."""
    return pattern[..., :WINDOW, 0].mean(-1)


def uniform(n_tokens: int) -> float:
    """Return alpha_1 of uniform causal attention, H_T / T.

    >>> round(uniform(64), 3), round(uniform(9), 3)
    (0.074, 0.314)
    """
    return sum(1 / t for t in range(1, n_tokens + 1)) / n_tokens


def share(scores: Float[np.ndarray, "sequence layer head"]) -> Float[np.ndarray, "layer head"]:
    """Return the share of sequences on which a head is a sink."""
    return (scores > EPSILON).mean(0)


def warning(n_tokens: int) -> str | None:
    """Return why ``n_tokens`` are too few for a verdict, or None where they are enough."""
    if n_tokens >= SHORTEST:
        return None
    return (
        f"sink scores on {n_tokens} tokens: uniform attention alone gives {uniform(n_tokens):.2f} there, against a "
        f"threshold of {EPSILON}, so no head is called a sink; use at least {SHORTEST} tokens"
    )


def resting(pattern: Float[Tensor, "batch head query_pos key_pos"], queries: slice) -> Float[Tensor, "batch head"]:
    """Return the mean attention of ``queries`` to the first token."""
    return pattern[:, :, queries, 0].mean(-1)


def causal(
    heads: Sequence[Head],
    dormant: Float[np.ndarray, "layer head"],
    active: Float[np.ndarray, "layer head"],
    value_ratio: Float[np.ndarray, "layer head"],
    random_sets: RandomSets,
    singly: Sequence[Head],
) -> tuple[CausalEvidence, dict[Head, float]]:
    """Return how much attention leaves the sink for a repeat, and the norm of the sink's value.

    Args:
        heads: the sinks.
        dormant: attention to the first token of the second half's queries, where nothing repeats.
        active: the same queries where the second half repeats the first.
        value_ratio: norm of the first token's value over the mean norm of the others' values.
        random_sets: sets of other heads.
        singly: heads to give the effect of one by one.
    """
    leaves = dormant - active

    def mean(of: Float[np.ndarray, "layer head"], over: Sequence[Head]) -> float:
        return float(np.mean([of[head] for head in over]))

    evidence = evidence_against_random(
        "sink",
        heads,
        lambda chosen: mean(leaves, chosen),
        random_sets,
        description=(
            f"attention that leaves the first token, mean over {len(heads)} sinks, when the second half repeats "
            "the first and there is something to attend to (observed, not an intervention)"
        ),
        unit="attention",
        details={
            "dormant": mean(dormant, heads),
            "active": mean(active, heads),
            "value_norm_ratio": mean(value_ratio, heads),
        },
    )
    return evidence, {head: float(leaves[head]) for head in singly}
