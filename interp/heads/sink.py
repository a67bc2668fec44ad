"""Attention sinks: a head rests on the first token while it finds nothing to attend to.

    alpha_1(s) = mean over queries t of A[t, 1] on sequence s                       (positions from 1, as in the paper)
    score      = mean over s of alpha_1(s), on the repeated sequences like every other kind's
    share      = share of sequences with alpha_1(s) > 0.3, on T = 64 tokens (or all, if fewer) in which nothing repeats

Source: Gu et al. (arXiv 2410.10781), with their epsilon and T. The score ranks the heads; the verdict asks for a share
of at least one half, and that the head rests there rather than reads:

* the first token's value vector is shorter than the others' (norm ratio below 1), so that resting writes little; they
  and Guo et al. (arXiv 2410.13835) find it drained; or
* the head is dormant, not fixed: at least half of that attention leaves for queries that have something to attend to.

The first token of a deep untrained model without norms draws attention by its length, and fails both.

Null: uniform causal attention, alpha_1 = H_T / T with H_T = 1 + 1/2 + ... + 1/T: .074 at T = 64, but .211 at T = 16
and .314 at T = 9. Below 16 tokens, therefore, no verdict is given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from interp.heads.statistics import sign_test
from interp.results import CausalEvidence
from interp.sites import Head

EPSILON = 0.3
LEAST_SHARE = 0.5
WINDOW = 64
SHORTEST = 16


def score(pattern: Float[Tensor, "batch head query_pos key_pos"]) -> Float[Tensor, "batch head"]:
    """Return alpha_1 of each sequence."""
    return pattern[..., 0].mean(-1)


def windowed(pattern: Float[Tensor, "batch head query_pos key_pos"]) -> Float[Tensor, "batch head"]:
    """Return alpha_1 over the first 64 tokens."""
    return score(pattern[..., :WINDOW, :])


def uniform(n_tokens: int) -> float:
    """Return alpha_1 of uniform causal attention, H_T / T.

    >>> round(uniform(64), 3), round(uniform(9), 3)
    (0.074, 0.314)
    """
    return sum(1 / t for t in range(1, n_tokens + 1)) / n_tokens


def share(alphas: Float[np.ndarray, "sequence layer head"]) -> Float[np.ndarray, "layer head"]:
    """Return the share of sequences on which a head is a sink."""
    return (alphas > EPSILON).mean(0)


def rests(
    dormant: Float[np.ndarray, "layer head"],
    active: Float[np.ndarray, "layer head"],
    value_ratio: Float[np.ndarray, "layer head"],
) -> Bool[np.ndarray, "layer head"]:
    """Return whether attention to the first token writes little, or leaves when there is something to attend to.

    Arguments as for ``evidence``, mean over sequences.
    """
    return (value_ratio < 1) | (active <= dormant / 2)


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


def evidence(
    heads: Sequence[Head],
    dormant: Float[np.ndarray, "sequence layer head"],
    active: Float[np.ndarray, "sequence layer head"],
    value_ratio: Float[np.ndarray, "layer head"],
) -> tuple[CausalEvidence, dict[Head, float]]:
    """Return how much attention leaves the sink for a repeat, together and head by head, and the sink's value norm.

    Observed, not an intervention: the same queries are compared where their token has and has not been seen before,
    so that p is that of the sign test over sequences, and there are no random sets.

    Args:
        heads: the sinks.
        dormant: attention to the first token of the second half's queries, where nothing repeats.
        active: the same queries where the second half repeats the first.
        value_ratio: norm of the first token's value over the mean norm of the others' values.
    """
    layers, numbers = np.array(heads).T
    dormant, active = dormant[:, layers, numbers], active[:, layers, numbers]
    leaves = dormant - active
    together = CausalEvidence(
        kind="sink",
        heads=tuple(heads),
        description=(
            f"attention that leaves the first token, mean over the sinks found ({len(heads)}), when the second half "
            "repeats the first and there is something to attend to; observed, sign test over sequences"
        ),
        effect=float(leaves.mean()),
        unit="attention",
        null_effects=(),
        p_value=float(sign_test(leaves.mean(1), np.zeros(len(leaves)))),
        details={
            "dormant": float(dormant.mean()),
            "active": float(active.mean()),
            "value_norm_ratio": float(value_ratio[layers, numbers].mean()),
        },
    )
    return together, dict(zip(heads, leaves.mean(0).tolist(), strict=True))
