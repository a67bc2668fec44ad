"""Intervals and tests that sweeps share, against scipy and under the null."""

import numpy as np
import pytest
from scipy import stats

from interp.statistics import bootstrap_interval, change_p_values, holm


def test_each_cell_is_a_paired_t_test_corrected_over_the_cells_that_change() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(size=8)
    values = before[:, None, None] + rng.normal(0.3, 1, size=(8, 2, 3))
    values[:, 1, 2] = before  # not tested
    expected = np.array([[stats.ttest_rel(values[:, i, j], before).pvalue for j in range(3)] for i in range(2)])
    wanted = np.ones(6)
    wanted[:5] = holm(expected.ravel()[:5])
    np.testing.assert_allclose(change_p_values(values, before).ravel(), wanted)


def test_rounding_is_no_change_and_a_change_without_spread_is_certain() -> None:
    before = np.array([3.0, -2.0])
    values = np.stack([before + 1e-6, before + 1.0], axis=1)
    assert change_p_values(values, before).tolist() == [1.0, 0.0]


def test_unfinished_cells_stay_unfinished_and_count_for_nothing() -> None:
    rng = np.random.default_rng(1)
    before = np.zeros(6)
    values = rng.normal(1, 1, size=(6, 2))
    alone = change_p_values(values[:, :1], before)
    with_nan = change_p_values(np.stack([values[:, 0], np.full(6, np.nan)], axis=1), before)
    assert with_nan[0] == alone[0]
    assert np.isnan(with_nan[1])


def test_under_the_null_fewer_than_alpha_of_the_families_name_a_cell() -> None:
    rng = np.random.default_rng(2)
    named = [change_p_values(rng.normal(size=(8, 20)), np.zeros(8)).min() < 0.05 for _ in range(400)]
    assert np.mean(named) <= 0.07


@pytest.mark.parametrize("shape", [(2,), (3, 4), (1500,)])
def test_intervals_do_not_depend_on_how_many_cells_there_are(shape: tuple[int, ...]) -> None:
    scores = np.random.default_rng(3).normal(size=(10, *shape))
    low, high = bootstrap_interval(scores, seed=0, n_resamples=200)
    assert low.shape == high.shape == shape
    last = (-1,) * len(shape)
    alone = bootstrap_interval(scores.reshape(10, -1)[:, -1:], seed=0, n_resamples=200)
    assert (low[last], high[last]) == pytest.approx((alone[0][0], alone[1][0]))
