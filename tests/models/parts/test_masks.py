"""Masks against the sentence they implement, cell by cell."""

from __future__ import annotations

import itertools

import pytest
import torch

from models.parts.masks import EVERYTHING, causal_mask, padding_mask
from models.parts.positions import absolute_positions, sinusoids
from tests.oracles.decoder import sinusoid

CPU = torch.device("cpu")


def seen(mask, batch, n_query, n_key):
    scores = mask.apply(torch.zeros(batch, 1, n_query, n_key))
    return scores.isfinite()[:, 0]


@pytest.mark.parametrize("window", [None, 1, 2, 3, 9])
@pytest.mark.parametrize("n_query", [1, 2, 4])
def test_every_mask_of_four_columns(window, n_query):
    rows = torch.tensor(list(itertools.product([True, False], repeat=4)))
    got = seen(causal_mask(n_query, 4, device=CPU, real=rows, window=window), 16, n_query, 4)
    for row in range(16):
        for i, query in enumerate(range(4 - n_query, 4)):
            for key in range(4):
                between = int(rows[row, key + 1 : query + 1].sum())  # real tokens after the key, up to the query
                expected = key <= query and bool(rows[row, key]) and (window is None or between < window)
                if key == query:
                    expected = True  # a padded query sees itself, so that its row is finite
                if rows[row, query] or key == query:
                    assert got[row, i, key] == expected, (row, query, key)
    assert got.any(-1).all()


@pytest.mark.parametrize(("n_query", "n_key"), [(1, 1), (1, 4), (4, 4), (2, 5)])
@pytest.mark.parametrize("window", [None, 2, 4])
def test_unpadded(n_query, n_key, window):
    got = seen(causal_mask(n_query, n_key, device=CPU, window=window), 1, n_query, n_key)[0]
    for i in range(n_query):
        for key in range(n_key):
            distance = n_key - n_query + i - key
            assert got[i, key] == (distance >= 0 and (window is None or distance < window))


def test_the_kernels_own_mask_is_used_where_it_says_it_all():
    assert causal_mask(4, 4, device=CPU).causal
    assert causal_mask(4, 4, device=CPU, window=4).allowed is None
    assert causal_mask(1, 4, device=CPU) == EVERYTHING
    assert padding_mask(None) is EVERYTHING
    assert padding_mask(torch.tensor([[True, False]])).allowed.tolist() == [[[[True, False]]]]


def test_positions_count_real_tokens():
    real = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 0]], dtype=torch.bool)
    got = absolute_positions(real, 5, CPU)
    assert got[real].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert got.min() >= 0
    assert absolute_positions(real, 2, CPU).tolist() == got[:, -2:].tolist()
    assert absolute_positions(None, 3, CPU, offset=4).tolist() == [[4, 5, 6]]


def test_sinusoids():
    expected = torch.stack([sinusoid(pos, 10) for pos in range(20)]).float()
    torch.testing.assert_close(sinusoids(20, 10), expected)
