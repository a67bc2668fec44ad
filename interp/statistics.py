"""Statistics that results share: intervals, tests of a change, and their correction.

* **Interval**: percentile bootstrap of the mean over examples (or sequences), expanded for few of them (Hesterberg,
  arXiv 1411.5279, section 4.3.2): resamples spread too little by sqrt((n - 1) / n), and too normally, so that its ends
  are the quantiles a and 1 - a with

      a = Phi(-sqrt(n / (n - 1)) t),        t the upper (1 - level) / 2 quantile of Student's t with n - 1 degrees

  The 95 % interval covers the mean of n normal (exponential) examples with

      n                     2           3           4           6           8           20
      this            50 (47) %   74 (70) %   87 (83) %   94 (89) %   94 (90) %   95 (92) %
      not expanded    50 (47) %   74 (70) %   79 (75) %   86 (81) %   89 (85) %   93 (90) %

  It never reaches beyond the examples' own range, which holds the mean of n normal examples with probability
  1 - 2^(1 - n): below 6 examples nothing of its kind covers 95 %.
* **Test of a change**: Student's paired t, two-sided, of "the mean change over examples is 0". It has no least p-value,
  which with the usual 8 to 50 examples and hundreds of cells a test by signs or permutations would have (2 / 2^n); it
  takes the mean of the changes for normal. Where all examples change by the same amount, as those of a metric of few
  values often do, nothing can be learnt of their spread, and p is 1.
* **Correction**: Holm, over all cells that were tested. It bounds the chance of naming even one cell wrongly, under any
  dependence between cells.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from interp.checks import whole_number
from models.errors import InputError

_AT_ONCE = 1024  # means resampled together: bounds the memory of large grids
_ROUNDING = 1e-5  # a change below this share of the metric is the rounding of float32


def bootstrap_interval(
    scores: Float[np.ndarray, "example ..."], seed: int, level: float = 0.95, n_resamples: int = 2000
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Return the ends of the expanded percentile bootstrap interval of the mean over examples.

    Raises:
        InputError: a level outside of 0 to 1, or a seed that is no whole number.
    """
    seed = whole_number(seed, "seed")
    n, tail = len(scores), _tail(len(scores), level)
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_resamples) / n
    flat = scores.reshape(n, -1)
    ends = [
        np.quantile(weights @ flat[:, i : i + _AT_ONCE], [tail, 1 - tail], axis=0)
        for i in range(0, flat.shape[1], _AT_ONCE)
    ]
    low, high = np.concatenate(ends, axis=1).reshape(2, *scores.shape[1:])
    return low, high


def _tail(n: int, level: float) -> float:
    """Return the share of resamples beyond each end of the interval."""
    from scipy.special import ndtr, stdtrit

    if not isinstance(level, (int, float, np.number)) or isinstance(level, bool) or not 0 < level < 1:
        raise InputError(f"level is {level!r}; expected a share between 0 and 1, such as 0.95")
    tail = (1 - level) / 2
    return float(ndtr(np.sqrt(n / (n - 1)) * stdtrit(n - 1, tail))) if n > 1 else tail


def change_p_values(
    values: Float[np.ndarray, "example ..."], before: Float[np.ndarray, "example"]
) -> Float[np.ndarray, "..."]:
    """Return the p-value of each mean change from ``before``, by the paired t-test, Holm-corrected over the cells.

    A cell that changes no example (but for rounding) is not tested and gets 1, one that changes every example by the
    same amount gets 1 too, one that is NaN stays NaN.

    >>> change_p_values(np.array([[1.0, 0.1], [2.0, 0.2]]), np.array([0.1, 0.2])).round(3).tolist()
    [0.205, 1.0]
    """
    from scipy.special import stdtr

    n = len(values)
    change = (values.reshape(n, -1) - before[:, None]).astype(float)
    change[np.abs(change) <= _ROUNDING * np.abs(before).max()] = 0.0
    mean, spread = change.mean(0), change.std(0, ddof=1)
    knows_spread = spread > _ROUNDING * np.maximum(np.abs(before).max(), np.abs(mean))
    t = np.divide(mean * np.sqrt(n), spread, out=np.zeros_like(mean), where=knows_spread)
    p = np.where(np.isnan(mean), np.nan, 2 * stdtr(n - 1, -np.abs(t)))
    tested = (change != 0).any(0) & ~np.isnan(mean)
    p[tested] = holm(p[tested])
    return p.reshape(values.shape[1:])


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
