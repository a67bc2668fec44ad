"""The pattern step: is a head's score above its bar? Intervals, tests and their correction.

The unit of replication is the sequence. On each,

    excess = score - bar,     bar = max(least score, 2 * null)

where the null is what attention of another kind would put there too: its confounds, see each kind. A head that passes
scores at least the least score, and twice as much as any of its confounds explains.

* **Interval** of score and of excess: expanded percentile bootstrap over sequences, see ``interp.statistics``; of a
  share of sequences, Clopper and Pearson's.
* **Test**: the sign test of excess > 0. If it were as often below as above, the count of sequences above would be
  Binomial(n, 1/2):

      p = P(Binomial(n, 1/2) >= #{s : excess_s > 0})

  It is exact for any n and assumes no distribution. Its least value 2^-n bounds how many heads can be told apart.
* **Correction**: Holm, over all heads of the model, kind by kind. It bounds the chance of naming even one head wrongly,
  under any dependence between heads. (Benjamini-Hochberg bounds the wrong share of the named heads instead; one wrong
  name is what a reader would act on, and real heads are far from the border.)
* **Outcome**: ``yes`` where the corrected p is below alpha and the excess's interval above 0; ``no`` where that
  interval lies below 0; between them ``borderline``.
"""

from __future__ import annotations

from math import ceil, comb, log2

import numpy as np
from jaxtyping import Float

from interp.statistics import bootstrap_interval, holm

__all__ = ["bars", "bootstrap_interval", "fewest_sequences", "holm", "outcomes", "share_interval", "sign_test"]

MARGIN = 2.0
_ROUNDING = 1e-6  # differences below this are no difference in float32

PerHead = Float[np.ndarray, "sequence layer head"]


def bars(nulls: PerHead, least_score: float) -> PerHead:
    """Return what a score must exceed, sequence by sequence: the least score, and twice what confounds explain.

    >>> bars(np.array([0.0, 0.1, 0.36]), 0.3).tolist()
    [0.3, 0.3, 0.72]
    """
    return np.maximum(least_score, MARGIN * nulls)


def outcomes(
    low: Float[np.ndarray, "layer head"],
    high: Float[np.ndarray, "layer head"],
    p_values: Float[np.ndarray, "layer head"],
    alpha: float,
) -> np.ndarray:
    """Return the pattern step's ``Outcome`` of every head.

    Args:
        low, high: interval of the excess.
        p_values: of the excess, corrected.
        alpha: the level of the corrected test.
    """
    found = np.full(p_values.shape, "borderline", dtype=object)
    found[(p_values < alpha) & (low > 0)] = "yes"
    found[high <= 0] = "no"
    return found


def share_interval(successes: Float[np.ndarray, "..."], n: int, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return Clopper and Pearson's interval of a share: ``successes`` of ``n``.

    >>> [end.round(3).tolist() for end in share_interval(np.array([16.0, 8.0]), 16)]
    [[0.794, 0.247], [1.0, 0.753]]
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = np.where(successes > 0, betaincinv(np.maximum(successes, 1), n - successes + 1, tail), 0.0)
    high = np.where(successes < n, betaincinv(successes + 1, np.maximum(n - successes, 1), 1 - tail), 1.0)
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


def fewest_sequences(n_tests: int, alpha: float) -> int:
    """Return the least number of sequences with which one of ``n_tests`` tests can be significant.

    >>> fewest_sequences(270, 0.05)
    13
    """
    return ceil(log2(n_tests / alpha))
