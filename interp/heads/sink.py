"""Attention sinks: a head rests on the first token.

    alpha_1(s) = mean over queries t of A[t, 1] on sequence s                       (positions from 1, as in the paper)
    score      = share of sequences with alpha_1(s) > 0.3, on T = 64 tokens (or all, if fewer) in which nothing repeats

Source: Gu et al. (arXiv 2410.10781), with their epsilon and T; they publish the mean share over the heads of a model. A
verdict asks for a share above one half, with the interval of a share (Clopper and Pearson). Heads of the same share are
ranked by alpha_1.

Description, which decides nothing: alpha_1; the norm of the first token's value over the others' (they and Guo et al.,
arXiv 2410.13835, find it drained, so that resting writes little; a head that writes nothing there has 0); and dormancy,
how much of that attention leaves for queries whose token has been seen before.

Uniform causal attention gives alpha_1 = H_T / T with H_T = 1 + 1/2 + ... + 1/T: .074 at T = 64, but .211 at T = 16 and
.314 at T = 9. Below 16 tokens, therefore, no verdict is given.

Causal evidence: the heads' edges to the first token are cut, the rest of each row made to sum to 1 again. What a sink
is for is to let a head write next to nothing; so without it the loss should rise, on text where the model reads it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.head_evidence import SINK_EPSILON

EPSILON = SINK_EPSILON
LEAST_SHARE = 0.5
WINDOW = 64
SHORTEST = 16


def alpha(pattern: Float[Tensor, "batch head query_pos key_pos"]) -> Float[Tensor, "batch head"]:
    """Return alpha_1 of each sequence, over its first 64 tokens."""
    return pattern[..., :WINDOW, 0].mean(-1)


def uniform(n_tokens: int) -> float:
    """Return alpha_1 of uniform causal attention, H_T / T.

    >>> round(uniform(64), 3), round(uniform(9), 3)
    (0.074, 0.314)
    """
    return sum(1 / t for t in range(1, n_tokens + 1)) / n_tokens


def rests(alphas: Float[np.ndarray, "sequence layer head"]) -> Float[np.ndarray, "sequence layer head"]:
    """Return 1 where a head is a sink on a sequence, else 0."""
    return (alphas > EPSILON).astype(float)


def warning(n_tokens: int) -> str | None:
    """Return why ``n_tokens`` are too few for a verdict, or None where they are enough."""
    if n_tokens >= SHORTEST:
        return None
    return (
        f"sink scores on {n_tokens} tokens: uniform attention alone gives {uniform(n_tokens):.2f} there, against a "
        f"threshold of {EPSILON}, so no head is called a sink; use at least {SHORTEST} tokens"
    )
