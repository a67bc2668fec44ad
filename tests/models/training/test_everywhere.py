"""Accuracy by place against the slow oracle, and against a rule whose reach is known."""

import random

import pytest
import torch

from models.decoder import HookedDecoder
from models.training.everywhere import Place, accuracy_everywhere, lowest_accuracy, placed_tokens
from models.training.toys import TOYS
from tests.oracles import toys as oracle


@pytest.mark.parametrize(("column", "period"), [(1, 3), (21, 5), (60, 3), (36, 28), (61, 2)])
def test_placed_tokens_repeat_their_block_from_its_column_on(column, period):
    for row in placed_tokens(torch.Generator().manual_seed(0), 20, column, period, 65).tolist():
        assert len(row) == 65
        assert row[0] == 64
        assert len(set(row[: column + period])) == column + period  # all distinct so far
        assert all(row[i] == row[i - period] for i in range(column + period, 65))


def copying(reach):
    """A model that looks up, by rule, what followed the last earlier occurrence, in the first ``reach`` columns."""

    class Rule(HookedDecoder):
        def forward(self, tokens, *args, **options):
            logits = torch.zeros(*tokens.shape, 65)
            for b, row in enumerate(tokens.tolist()):
                for i, token in enumerate(row):
                    earlier = [j for j in range(min(i, reach)) if row[j] == token]
                    logits[b, i, row[earlier[-1] + 1] if earlier else 64] = 1
            return logits

    return Rule(TOYS["toy-attn"].config)


def test_every_place_that_fits_is_measured_and_a_perfect_copier_is_right_at_each():
    found = accuracy_everywhere(copying(64), periods=(3, 4), rows=1)
    blocks = [(column, period) for period in (3, 4) for column in range(1, 64) if column + period <= 63]
    assert {(place.column, place.period) for place in found} == set(blocks)
    assert max(place.repeat for place in found) == 12
    assert set(found.values()) == {1.0}


def test_a_copier_with_a_short_reach_fails_where_it_ends_and_beyond():
    found = accuracy_everywhere(copying(30), periods=(10, 10), rows=1)
    assert found[Place(20, 10, 1)] == 1.0
    assert found[Place(25, 10, 1)] == 0.5  # half of the block lies within its reach
    assert found[Place(30, 10, 1)] == 0.0


def test_accuracies_equal_the_oracles():
    """On a model that is right half of the time: two samples of one share."""
    model = copying(64)
    forward = model.forward

    def half(tokens, *args, **options):
        logits = forward(tokens)
        logits[tokens % 2 == 1] = 0  # wrong (token 0) after odd symbols
        return logits

    model.forward = half
    found = accuracy_everywhere(model, periods=(20, 21), rows=32)
    slow = oracle.copied_right(model, [(5, 20), (30, 21)], 32, seed=3)
    for place, share in slow.items():
        assert found[Place(*place)] == pytest.approx(share, abs=0.1), place
        assert 0.3 < share < 0.7


def test_the_lowest_accuracy_is_measured_again_on_more_rows():
    assert lowest_accuracy(copying(61), rows=8)[1] == 1.0
    assert lowest_accuracy(copying(60), rows=8) == (Place(60, 3, 1), 0.0)


def test_the_oracles_rows_are_what_they_say():
    row = oracle.row_with_a_block_at(10, 7, random.Random(0))
    assert len(set(row[:17])) == 17
    assert row[10:17] == row[17:24] == row[24:31]
