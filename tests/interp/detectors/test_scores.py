"""Each score against its definition in loops, and the traps that have caught others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.detectors import duplicate_token, induction, previous_token, sink
from models.errors import InputError
from tests.oracles import heads as oracle


def random_pattern(n: int, seed: int = 0, batch: int = 2, heads: int = 3) -> torch.Tensor:
    scores = torch.randn(batch, heads, n, n, generator=torch.Generator().manual_seed(seed))
    future = torch.ones(n, n).triu(1).bool()
    return (3 * scores).masked_fill(future, -torch.inf).softmax(-1)


def uniform_pattern(n: int) -> torch.Tensor:
    return (torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None])[None, None]


@settings(max_examples=20, deadline=None)
@given(n=st.integers(6, 12), n_tokens=st.integers(2, 5), seed=st.integers(0, 10**6))
def test_scores_equal_their_definitions_in_loops(n: int, n_tokens: int, seed: int) -> None:
    pattern = random_pattern(n, seed)
    tokens = torch.randint(n_tokens, (2, n), generator=torch.Generator().manual_seed(seed))
    tokens[:, 3] = tokens[:, 0]  # something repeats, and not at once
    torch.testing.assert_close(induction.score(pattern, tokens), oracle.induction(pattern, tokens))
    torch.testing.assert_close(duplicate_token.score(pattern, tokens), oracle.duplicate_token(pattern, tokens))
    torch.testing.assert_close(sink.alpha(pattern), oracle.sink(pattern, 64))
    for n_prepended in (0, 1):
        score, null = previous_token.score(pattern, n_prepended), previous_token.null(pattern, n_prepended)
        torch.testing.assert_close(score, oracle.previous_token(pattern, n_prepended))
        torch.testing.assert_close(null, oracle.neighbouring_stripes(pattern, n_prepended))


def test_attention_divided_between_two_earlier_occurrences_counts_in_full() -> None:
    tokens = torch.tensor([[5, 1, 5, 2, 5, 3]])
    pattern = torch.zeros(1, 1, 6, 6)
    pattern[0, 0, 2, 1] = 1  # the second 5 has one earlier occurrence, the third has two
    pattern[0, 0, 4, [1, 3]] = 0.5
    assert induction.score(pattern, tokens).item() == 1


def test_only_n_of_the_n_plus_2_cells_on_the_stripe_are_induction_cells() -> None:
    n = 10
    half = torch.arange(1, n + 1)
    tokens = torch.cat([torch.tensor([0]), half, half])[None]
    cells = induction.cells(tokens)[0]
    assert cells.sum() == n
    assert cells.diagonal(1 - n).sum() == n
    assert cells.diagonal(1 - n).numel() == n + 2


def test_a_token_repeated_at_once_does_not_make_the_query_its_own_target() -> None:
    cells = induction.cells(torch.tensor([[4, 4, 4]]))[0]
    assert cells.int().tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_without_repeats_there_is_no_induction_score() -> None:
    pattern, tokens = uniform_pattern(4), torch.arange(4)[None]
    with pytest.raises(InputError, match="no token repeats"):
        induction.score(pattern, tokens)
    with pytest.raises(InputError, match="no token repeats"):
        duplicate_token.score(pattern, tokens)


def test_attention_to_bos_is_not_attention_to_the_token_before() -> None:
    sink_pattern = torch.zeros(1, 1, 8, 8)
    sink_pattern[..., 0] = 1
    assert previous_token.score(sink_pattern, n_prepended=1).item() == 0
    assert previous_token.score(sink_pattern, n_prepended=0).item() == pytest.approx(1 / 7)


@pytest.mark.parametrize("n_prepended", [0, 1])
def test_a_preference_for_recent_tokens_does_not_beat_the_previous_token_null(n_prepended: int) -> None:
    distance = torch.arange(20)[:, None] - torch.arange(20)
    recent = (-0.5 * distance.float()).masked_fill(distance < 0, -torch.inf).softmax(-1)[None, None]
    assert previous_token.score(recent, n_prepended) < previous_token.null(recent, n_prepended)
    uniform = uniform_pattern(20)
    torch.testing.assert_close(previous_token.score(uniform, n_prepended), previous_token.null(uniform, n_prepended))


@pytest.mark.parametrize(("n", "expected"), [(64, 0.074), (9, 0.314), (16, 0.211)])
def test_uniform_attention_has_the_closed_form_sink_score(n: int, expected: float) -> None:
    assert sink.uniform(n) == pytest.approx(expected, abs=5e-4)
    assert sink.alpha(uniform_pattern(n)).item() == pytest.approx(sink.uniform(n))


def test_the_verdict_on_a_sink_reads_the_first_64_tokens_only() -> None:
    pattern = random_pattern(70, batch=1, heads=2)
    torch.testing.assert_close(sink.alpha(pattern), oracle.sink(pattern, 64))


def test_a_sink_is_thresholded_per_sequence_before_averaging() -> None:
    scores = torch.tensor([0.29, 0.31, 0.9, 0.1])[:, None, None].numpy()
    assert sink.rests(scores).mean() == 0.5


def test_short_sequences_are_too_short_for_a_sink_verdict() -> None:
    assert sink.warning(16) is None
    message = sink.warning(9)
    assert message is not None
    assert "9 tokens" in message
    assert "0.31" in message
    assert "at least 16" in message
