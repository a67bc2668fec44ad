"""Intervals, tests and their correction. The unit of replication is the sequence.

* **Interval**: percentile bootstrap over sequences.
* **Test**: the paired sign test. Score and null are measured on the same sequence; if the head were not of this kind,
  either would be as likely to be the larger, so the count of sequences in which the score wins is Binomial(n, 1/2):

      p = P(Binomial(n, 1/2) >= #{s : score_s > null_s})

  It is exact for any n and assumes no distribution. Its least value 2^-n bounds how many heads can be told apart.
* **Correction**: Holm, over all heads of the model, kind by kind. It bounds the chance of naming even one head wrongly,
  under any dependence between heads. (Benjamini-Hochberg bounds the wrong share of the named heads instead; one wrong
  name is what a reader would act on, and real heads are far from the border.)

A difference may be significant and tiny; a verdict therefore needs a least score as well, see each kind.
"""

from __future__ import annotations

from math import ceil, comb, log2

import numpy as np
from jaxtyping import Float

_ROUNDING = 1e-6  # differences below this are no difference in float32


def bootstrap_interval(
    scores: Float[np.ndarray, "sequence ..."], seed: int, level: float = 0.95, n_resamples: int = 2000
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Return the ends of the percentile bootstrap interval of the mean over sequences."""
    n = len(scores)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_resamples) / n
    means = np.tensordot(weights, scores, axes=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def sign_test(
    scores: Float[np.ndarray, "sequence ..."], nulls: Float[np.ndarray, "sequence ..."]
) -> Float[np.ndarray, "..."]:
    """Return the one-sided p-values of score > null; a tie counts against it.

    >>> float(sign_test(np.ones(4), np.zeros(4)))
    0.0625
    """
    n = len(scores)
    wins = (scores - nulls > _ROUNDING).sum(0)
    at_least = np.cumsum([comb(n, k) for k in range(n, -1, -1)])[::-1] / 2**n
    return at_least[wins]


def holm(p_values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return Holm's step-down adjusted p-values: the running maximum of (m - rank) p, rank from 0, capped at 1.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    flat = p_values.ravel()
    order = np.argsort(flat, kind="stable")
    stepped = np.maximum.accumulate(flat[order] * np.arange(flat.size, 0, -1)).clip(max=1.0)
    adjusted = np.empty_like(stepped)
    adjusted[order] = stepped
    return adjusted.reshape(p_values.shape)


def fewest_sequences(n_tests: int, alpha: float) -> int:
    """Return the least number of sequences with which one of ``n_tests`` tests can be significant.

    >>> fewest_sequences(270, 0.05)
    13
    """
    return ceil(log2(n_tests / alpha))
