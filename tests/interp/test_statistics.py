"""Intervals and tests that sweeps share, against oracles, scipy and under the null."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from interp.statistics import bootstrap_interval, change_p_values, holm, least_p_value, sign_flip_p_values
from models.errors import InputError
from tests.oracles.sign_flips import step_down_p_values


@pytest.mark.parametrize(("n", "n_cells"), [(1, 3), (2, 2), (3, 4), (4, 5), (5, 3), (7, 2)])
@pytest.mark.parametrize("largest", [1, 3, 50])
def test_b10_sign_flips_equal_their_definition(n: int, n_cells: int, largest: int) -> None:
    changes = np.random.default_rng(n + largest).integers(-largest, largest + 1, size=(n, n_cells))
    naive = step_down_p_values([[Fraction(int(x)) for x in row] for row in changes])
    np.testing.assert_allclose(sign_flip_p_values(changes / 7.0), [float(p) for p in naive], rtol=1e-12)


def test_b10_known_answers_of_three_examples() -> None:
    constant, split, one_sided = [1.0, 1.0, 1.0], [1.0, -1.0, 0.0], [1.0, 2.0, 0.5]
    assert sign_flip_p_values(np.array([constant]).T) == 1 / 4, "the most certain change there is"
    assert sign_flip_p_values(np.array([split]).T) == 1
    together = sign_flip_p_values(np.array([constant, split, one_sided]).T)
    assert together.tolist() == [0.25, 1.0, 0.25], "the last is first found, and then no longer reaches the first's 3"


def test_b10_no_p_lies_below_the_least_that_the_examples_allow() -> None:
    for n in (2, 5, 8, 12, 40):
        steady = np.ones((n, 2)) * np.array([1.0, -3.0])
        assert sign_flip_p_values(steady).tolist() == [least_p_value(n)] * 2
    assert least_p_value(5) > 0.05 > least_p_value(6)


def test_b10_beyond_twelve_examples_random_flips_come_near_all_of_them() -> None:
    changes = np.random.default_rng(0).normal(0.35, 1, size=(13, 3))
    signs = np.array(list(product((1, -1), repeat=13)))
    exact = [float((np.abs(signs @ cell) >= abs(cell.sum()) - 1e-9).mean()) for cell in changes.T]
    for cell, p in zip(changes.T, exact, strict=True):
        error = 4 * np.sqrt(p * (1 - p) / 2048)
        assert sign_flip_p_values(cell[:, None]).item() == pytest.approx(p, abs=error)
    assert (sign_flip_p_values(changes, seed=1) != sign_flip_p_values(changes, seed=2)).any()
    np.testing.assert_array_equal(sign_flip_p_values(changes, seed=1), sign_flip_p_values(changes, seed=1))


def test_b10_grids_need_not_fit_into_memory_at_once() -> None:
    changes = np.random.default_rng(0).normal(0.2, 1, size=(10, 9000))  # 512 flips of 9000 cells: more than one chunk
    whole = np.abs(np.array([[1, *rest] for rest in product((1, -1), repeat=9)]) @ changes).max(1)
    assert sign_flip_p_values(changes).min() == (whole >= whole[0] - 1e-9).mean()


def test_b10_rounding_is_no_change_and_a_constant_change_is_the_most_certain() -> None:
    before = np.array([3.0, -2.0, 1.0, 2.0, 1.0, 1.0])
    values = np.stack([before + 1e-6, before + 1.0, before - 1.0 + 1e-7 * before], axis=1)
    assert change_p_values(values, before).tolist() == [1.0, 2**-5, 2**-5]


def test_b10_a_cell_without_a_mean_still_stands_in_the_way() -> None:
    steady, balanced = np.ones(6), 10 * np.array([1.0, 1, 1, -1, -1, -1])
    naive = step_down_p_values([[Fraction(int(x)) for x in row] for row in np.stack([steady, balanced], 1)])
    assert sign_flip_p_values(np.stack([steady, balanced], 1)).tolist() == [float(p) for p in naive]
    assert naive[0] > Fraction(1, 2)


def centred(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return changes of mean 0 and standard deviation 1."""
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "exponential":
        return rng.exponential(size=shape) - 1
    return (rng.lognormal(size=shape) - np.e**0.5) / (np.e * (np.e - 1)) ** 0.5


def errors(kind: str, n: int, n_families: int, *, shared: bool, n_cells: int = 270) -> float:
    """Return how many families of cells that all change by 0 on average have a cell named at .05."""
    rng = np.random.default_rng(n)
    named = 0
    for _ in range(n_families):
        changes = centred(rng, kind, (n, n_cells))
        if shared:  # half of the variance is the example's, by which some cells rise and others fall
            changes = (changes + centred(rng, kind, (n, 1)) * rng.choice([-1.0, 1.0], n_cells)) / 2**0.5
        named += sign_flip_p_values(changes).min() < 0.05
    return named / n_families


KINDS = ("normal", "exponential", "lognormal")


@pytest.mark.parametrize("kind", KINDS)
def test_b10_one_grid_in_twenty_of_skewed_noise_has_a_cell_named(kind: str) -> None:
    assert errors(kind, 8, 300, shared=False) <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5  # the t-test: .88 of exponential


# (n, shared): percent of families named, as the docstring of sign_flip_p_values says
MEASURED = {
    (4, False): (0.0, 0.0, 0.0), (6, False): (2.7, 2.2, 0.6), (8, False): (4.6, 4.3, 1.2), (12, False): (5.4, 6.1, 1.6),
    (4, True): (0.0, 0.0, 0.0), (6, True): (2.8, 4.0, 2.5), (8, True): (5.1, 6.1, 3.8), (12, True): (5.7, 7.1, 4.3),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("n", "shared"), MEASURED)
@pytest.mark.parametrize("kind", KINDS)
def test_b10_the_family_wise_error_stays_at_its_level(kind: str, n: int, shared: bool) -> None:
    families, stated = 2000, MEASURED[n, shared][KINDS.index(kind)] / 100
    named = errors(kind, n, families, shared=shared)
    assert named == pytest.approx(stated, abs=4 * (2 * stated * (1 - stated) / families) ** 0.5)  # both are estimates
    if kind != "exponential" or (n <= 8 and not shared):  # where skewness costs, the docstring says how much
        assert named <= 0.05 + 3 * (0.05 * 0.95 / families) ** 0.5


def test_b15_large_changes_that_vary_are_found_where_holm_is_blind() -> None:
    """The changes of SmolLM2's L17H4 and L20H0 over 8 pairs, among cells as noisy as a grid's others."""
    rng = np.random.default_rng(0)
    L17H4 = [4.66, 0.98, 3.75, 2.12, 4.88, -0.07, 4.47, 1.36]
    changes = rng.normal(0, 0.1, size=(8, 270))
    changes[:, 0] = L17H4
    t_tests = holm(stats.ttest_1samp(changes, 0).pvalue)
    assert t_tests[0] > 0.2
    assert sign_flip_p_values(changes)[0] == 2 / 128, "but for its second smallest, only flipping -0.07 raises the sum"


def test_b15_what_is_found_no_longer_stands_in_the_way() -> None:
    rng = np.random.default_rng(0)
    second = np.array([4.0, 2, 3, 2, 4, 1, 3, 2])
    changes = rng.normal(0, 0.1, size=(8, 100))
    changes[:, 0], changes[:, 1] = 8 + rng.normal(0, 0.1, 8), second
    in_one_step = np.abs(np.array([[1, *rest] for rest in product((1, -1), repeat=7)]) @ changes).max(1)
    assert (in_one_step >= second.sum()).mean() > 0.05
    assert sign_flip_p_values(changes)[1] == 1 / 128


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


@pytest.mark.parametrize("shape", [(2,), (3, 4), (1500,)])
def test_intervals_do_not_depend_on_how_many_cells_there_are(shape: tuple[int, ...]) -> None:
    scores = np.random.default_rng(3).normal(size=(10, *shape))
    low, high = bootstrap_interval(scores, seed=0, n_resamples=200)
    assert low.shape == high.shape == shape
    last = (-1,) * len(shape)
    alone = bootstrap_interval(scores.reshape(10, -1)[:, -1:], seed=0, n_resamples=200)
    assert (low[last], high[last]) == pytest.approx((alone[0][0], alone[1][0]))
