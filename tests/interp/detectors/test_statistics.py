"""Statistics against scipy, against closed forms, and under the null."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from interp.detectors.statistics import bootstrap_interval, fewest_sequences, holm, sign_test


@given(n=st.integers(1, 30), seed=st.integers(0, 1000))
def test_sign_test_equals_the_exact_binomial_test(n: int, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(0.3, 1, size=n)
    expected = stats.binomtest(int((scores > 0).sum()), n, alternative="greater").pvalue
    assert sign_test(scores, np.zeros(n)) == pytest.approx(expected)


def test_ties_and_rounding_count_against_the_score() -> None:
    assert sign_test(np.full(10, 0.5 + 1e-8), np.full(10, 0.5)) == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_equals_its_definition(p_values: list[float]) -> None:
    m = len(p_values)
    expected = [0.0] * m
    largest = 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (m - rank) * p_values[i]))
        expected[i] = largest
    np.testing.assert_allclose(holm(np.array(p_values)), expected)


def test_holm_keeps_the_shape() -> None:
    grid = np.array([[0.001, 0.5], [0.01, 0.02]])
    np.testing.assert_allclose(holm(grid), [[0.004, 0.5], [0.03, 0.04]])


def test_under_the_null_fewer_than_alpha_of_the_families_name_a_head() -> None:
    rng = np.random.default_rng(0)
    scores, nulls = rng.random((2, 16, 400, 30))  # 400 models of 30 heads
    named = [holm(family).min() < 0.05 for family in sign_test(scores, nulls)]
    assert np.mean(named) <= 0.05


def test_bootstrap_interval_agrees_with_scipy() -> None:
    scores = np.random.default_rng(1).random((40, 2))
    low, high = bootstrap_interval(scores, seed=0)
    expected = stats.bootstrap((scores,), np.mean, method="percentile", rng=np.random.default_rng(0))
    np.testing.assert_allclose(low, expected.confidence_interval.low, atol=0.01)
    np.testing.assert_allclose(high, expected.confidence_interval.high, atol=0.01)
    assert (low < scores.mean(0)).all()
    assert (scores.mean(0) < high).all()


def test_bootstrap_is_seeded() -> None:
    scores = np.random.default_rng(1).random((10, 3))
    np.testing.assert_array_equal(bootstrap_interval(scores, 5), bootstrap_interval(scores, 5))
    assert not np.array_equal(bootstrap_interval(scores, 5), bootstrap_interval(scores, 6))


@pytest.mark.parametrize(("n_tests", "alpha"), [(1, 0.05), (8, 0.05), (270, 0.05), (1200, 0.01)])
def test_fewest_sequences_is_the_border_of_what_can_be_significant(n_tests: int, alpha: float) -> None:
    n = fewest_sequences(n_tests, alpha)

    def best_p(n: int) -> float:
        one_head_always_wins = np.zeros((n, n_tests))
        one_head_always_wins[:, 0] = 1
        return float(holm(sign_test(one_head_always_wins, np.full((n, n_tests), 0.5))).min())

    assert best_p(n) <= alpha < best_p(n - 1)
