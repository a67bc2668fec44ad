"""Intervals, tests and their correction. The unit of replication is the sequence.

* **Interval**: expanded percentile bootstrap over sequences, see ``interp.statistics``.
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

from interp.statistics import bootstrap_interval, holm

__all__ = ["bootstrap_interval", "fewest_sequences", "holm", "sign_test"]

_ROUNDING = 1e-6  # differences below this are no difference in float32


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
