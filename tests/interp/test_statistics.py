"""Intervals and tests that sweeps share, against scipy and under the null."""

import numpy as np
import pytest
from scipy import stats

from interp.statistics import bootstrap_interval, change_p_values, holm
from models.errors import InputError


def test_each_cell_is_a_paired_t_test_corrected_over_the_cells_that_change() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(size=8)
    values = before[:, None, None] + rng.normal(0.3, 1, size=(8, 2, 3))
    values[:, 1, 2] = before  # not tested
    expected = np.array([[stats.ttest_rel(values[:, i, j], before).pvalue for j in range(3)] for i in range(2)])
    wanted = np.ones(6)
    wanted[:5] = holm(expected.ravel()[:5])
    np.testing.assert_allclose(change_p_values(values, before).ravel(), wanted)


def test_rounding_is_no_change_and_a_change_without_spread_tells_nothing() -> None:
    before = np.array([3.0, -2.0, 1.0])
    spread = before + np.array([1.0, 1.01, 1.02])
    values = np.stack([before + 1e-6, before + 1.0, before + 1.0 + 1e-7 * before, spread], axis=1)
    p = change_p_values(values, before)
    assert p[:3].tolist() == [1.0, 1.0, 1.0]
    assert p[3] == pytest.approx(3 * stats.ttest_rel(spread, before).pvalue), "corrected over all three that change"


def test_metrics_of_few_values_name_no_cell_of_noise_from_three_examples() -> None:
    rng = np.random.default_rng(4)
    cells = rng.choice([-1.0, 0.0, 1.0], size=(300, 3, 30))
    assert np.mean([change_p_values(one, np.zeros(3)).min() < 0.05 for one in cells]) <= 0.05


@pytest.mark.parametrize(("n", "least", "most"), [(3, 0.70, 0.79), (8, 0.93, 0.96), (20, 0.935, 0.965)])
def test_intervals_cover_the_mean_as_often_as_the_module_says(n: int, least: float, most: float) -> None:
    scores = np.random.default_rng(5).normal(size=(n, 3000))
    low, high = bootstrap_interval(scores, seed=0)
    assert least <= np.mean((low <= 0) & (high >= 0)) <= most


def test_the_ends_are_the_quantiles_of_the_expanded_interval() -> None:
    scores = np.random.default_rng(6).normal(size=8)
    tail = stats.norm.cdf(-np.sqrt(8 / 7) * stats.t.ppf(0.95, 7))
    draws = np.random.default_rng(2).multinomial(8, np.full(8, 1 / 8), size=2000)
    means = np.array([np.repeat(scores, draw).mean() for draw in draws])
    ends = bootstrap_interval(scores[:, None], seed=2, level=0.9)
    np.testing.assert_allclose(np.ravel(ends), np.quantile(means, [tail, 1 - tail]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"level": level}, "expected a share between 0 and 1")
            for level in (0, 1, 95, -0.5, float("nan"), "x", True)
        ),
        *(({"seed": seed}, "expected a whole number, at least 0") for seed in (-1, 1.5, None, True)),
    ],
)
def test_levels_and_seeds_are_checked(options, message) -> None:
    with pytest.raises(InputError, match=message):
        bootstrap_interval(np.zeros((3, 2)), **({"seed": 0} | options))


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
