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
* **Test of changes**: sign flips with the step-down max-T of Westfall and Young (1993), see ``sign_flip_p_values``.
* **Correction** of p-values from other tests: Holm. It bounds the chance of naming even one cell wrongly, under any
  dependence between cells, and knows nothing of that dependence.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from interp.checks import whole_number
from models.errors import InputError

_AT_ONCE = 1024  # means resampled together: bounds the memory of large grids
_ROUNDING = 1e-5  # a change below this share of the metric is the rounding of float32
_TIE = 1e-6  # sums of the same float32 changes, in another order, are the same sum
_N_FLIPS = 2048  # all sign flips of 12 examples
_AT_A_FLIP = 2**21  # sums of flipped changes at once: 16 MB


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


def sign_flip_p_values(changes: Float[np.ndarray, "example ..."], *, seed: int = 0) -> Float[np.ndarray, "..."]:
    """Return the p-value of each cell's mean change, two-sided and corrected over all cells, by flipping signs.

    Null hypothesis: each example's changes, of all cells together, are as likely as their negatives. Flipping
    the signs of whole examples then changes nothing, and keeps what cells have to do with each other:

        T_c(s) = |sum_i s_i change_ic|        p_c = share of flips s with  max over c' of T_c'(s) >= T_c(1)

    where c' runs over c and the cells of smaller T (step-down: what has been found no longer stands in the way), and p
    never falls as T does. It bounds the chance of naming even one cell wrongly, exactly, under any dependence of cells.
    Up to 12 examples all flips are taken (s and -s count once); beyond, 2047 random ones and none: (1 + count) / 2048.

    With n examples the least p is 2^(1 - n), so that below 6 nothing reaches .05: see ``least_p_value``.

    A mean of 0 is a weaker hypothesis than symmetry, and no test of it holds for every skewed change. Chance, in
    percent, of naming one of 270 cells at .05 whose changes have mean 0 and are normal / exponential / lognormal:

        n                                    4            6               8               12              20
        independent cells                0 / 0 / 0   2.7/2.2/0.6     4.6/4.3/1.2     5.4/6.1/1.6     5.5/6.9/2.7
        half the variance shared         0 / 0 / 0   2.8/4.0/2.5     5.1/6.1/3.8     5.7/7.1/4.3     5.5/7.1/4.9
        spreads differ (log sd 1.5)      0 / 0 / 0   3.1/4.3/5.6     4.2/6.0/7.6     4.3/5.7/7.3     4.5/6.4/7.7
        t-tests with Holm, independent   5 / 49 / 66  4 / 77 / 96    4 / 83 / 99     6 / 87 / 100    5 / 78 / 99

    T is not divided by each cell's spread: a studentised T with the same flips names noise in half of the independent
    exponential grids at n = 8, since few small values of one sign look certain. The price: all cells share one
    yardstick, so that a small steady change is not told from the noise of cells that change more and are not found.

    Args:
        changes: per example and cell. NaN cells stay NaN and count for nothing, as do those without any change.
        seed: of the random flips.

    >>> sign_flip_p_values(np.array([[3.0, 0.1], [2.0, -0.1], [2.0, 0.1]])).tolist()
    [0.25, 1.0]
    """
    seed = whole_number(seed, "seed")
    n = len(changes)
    flat = changes.reshape(n, -1).astype(float)
    unknown = np.isnan(flat).any(0)
    p = np.where(unknown, np.nan, 1.0)
    total = np.abs(flat.sum(0))
    tested = np.flatnonzero((flat != 0).any(0) & ~unknown)
    if tested.size:
        tested = tested[np.argsort(total[tested], kind="stable")]
        p[tested] = _stepped_down(flat[:, tested], total[tested], _flips(n, seed))
    return p.reshape(changes.shape[1:])


def least_p_value(n: int) -> float:
    """Return the least p-value that ``sign_flip_p_values`` can give with n examples.

    >>> least_p_value(5), least_p_value(8)
    (0.0625, 0.0078125)
    """
    return 1 / min(2 ** (n - 1), _N_FLIPS)


def change_p_values(
    values: Float[np.ndarray, "example ..."], before: Float[np.ndarray, "example"], *, seed: int = 0
) -> Float[np.ndarray, "..."]:
    """Return ``sign_flip_p_values`` of the changes from ``before``, those by rounding taken for none."""
    before = before.reshape(-1, *[1] * (values.ndim - 1))
    change = (values - before).astype(float)
    return sign_flip_p_values(np.where(np.abs(change) <= _ROUNDING * np.abs(before).max(), 0.0, change), seed=seed)


def _flips(n: int, seed: int) -> Float[np.ndarray, "flip example"]:
    """Return signs to flip examples by, the first none: all that differ beyond a common sign, or random ones."""
    if 2 ** (n - 1) <= _N_FLIPS:
        bits = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1
    else:
        bits = np.random.default_rng(seed).integers(2, size=(_N_FLIPS, n))
        bits[0] = 0
    return 1.0 - 2.0 * bits


def _stepped_down(
    changes: Float[np.ndarray, "example cell"],
    total: Float[np.ndarray, "cell"],
    flips: Float[np.ndarray, "flip example"],
) -> Float[np.ndarray, "cell"]:
    """Return p of cells in the order of their ``total``, the smallest first."""
    reached = np.zeros(len(total))
    at_once = max(1, _AT_A_FLIP // len(total))
    for i in range(0, len(flips), at_once):
        largest = np.abs(flips[i : i + at_once] @ changes)
        np.maximum.accumulate(largest, axis=1, out=largest)
        reached += (largest >= total * (1 - _TIE)).sum(0)
    return np.maximum.accumulate((reached / len(flips))[::-1])[::-1]


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
