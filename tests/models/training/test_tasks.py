"""The toy data against a slow reading of their definition."""

from itertools import pairwise
from math import log

import pytest
import torch

from models.errors import ConfigError, InputError
from models.training.recipes import HELD_OUT, LEARNED, ROTARY
from models.training.tasks import BOS, N_SYMBOLS, RepeatStream, RepeatTask, distinct_tokens, repeated_tokens, repeats_at

LONG_BLOCKS = ROTARY.stages[0].task
PHASE_2 = LEARNED.stages[1].task
LAST = LEARNED.stages[-1].task
EVERY_TASK = {
    f"{name} {i}": stage.task
    for name, recipe in (("learned", LEARNED), ("rotary", ROTARY))
    for i, stage in enumerate(recipe.stages)
}


def sample(task, batch=64, n_ctx=64, seed=0):
    return task.sample(torch.Generator().manual_seed(seed), batch, n_ctx)


def block_length(row):
    """How many distinct tokens follow BOS before the first one that was there already."""
    seen = []
    for token in row[1:]:
        if token in seen:
            return len(seen)
        seen.append(token)
    return len(seen)


@pytest.mark.parametrize("task", EVERY_TASK.values(), ids=EVERY_TASK)
def test_rows_begin_with_bos_and_hold_symbols(task):
    tokens = sample(task).tokens
    assert tokens.shape == (64, 64)
    assert (tokens[:, 0] == BOS).all()
    assert ((tokens[:, 1:] >= 0) & (tokens[:, 1:] < N_SYMBOLS)).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_row_is_a_prefix_and_a_block_and_then_tokens_of_that_block(seed):
    task = RepeatTask(period=(8, 20), prefix=(3, 3), max_jump_rate=0.3)
    lengths = set()
    for row in sample(task, seed=seed).tokens.tolist():
        length = block_length(row)
        assert 8 <= length - 3 <= 20
        assert set(row[1 + length :]) <= set(row[4 : 1 + length])  # the prefix never comes again
        lengths.add(length)
    assert len(lengths) > 9


def jumps(row):
    """Over the repeated part: how many tokens do not follow what they followed in the block."""
    length = block_length(row)
    block = row[1 : 1 + length]
    follows = dict(pairwise(block))
    rest = row[1 + length :]
    pairs = [(a, b) for a, b in pairwise(rest) if a in follows]  # the block's end is no jump
    return sum(follows[a] != b for a, b in pairs), len(pairs)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_jump_rate(rate):
    task = RepeatTask(period=(10, 24), prefix=(0, 0), max_jump_rate=rate)
    counted = [jumps(row) for row in sample(task, batch=400).tokens.tolist()]
    share = sum(jumped for jumped, _ in counted) / sum(pairs for _, pairs in counted)
    # uniform in [0, rate], so half of it on average; a jump lands on the right token 1 time in N
    assert share == pytest.approx(rate / 2 * (1 - 1 / 17), abs=0.012)


def test_periodic_rows_repeat_their_period_after_a_prefix():
    task = RepeatTask(period=(5, 9), prefix=(2, 2), max_jump_rate=0.3, periodic=1.0)
    for row in sample(task).tokens.tolist():
        period = block_length(row) - 2
        assert 5 <= period <= 9
        assert all(row[i] == row[i - period] for i in range(3 + period, 64))
        assert not set(row[1:3]) & set(row[3:])  # the prefix never comes again


def first_columns(task, batch=600, n_ctx=64):
    """Where the block of each periodic row begins."""
    columns = []
    for row in sample(task, batch=batch, n_ctx=n_ctx).tokens.tolist():
        repeating = next(i for i in range(1, n_ctx) if row[i] in row[1:i])
        columns.append(row.index(row[repeating]))
    return columns


PERIODIC = {"max_jump_rate": 0.0, "periodic": 1.0}


def test_prefixes_are_uniform_up_to_what_fits():
    columns = first_columns(RepeatTask(period=(5, 5), prefix=(0, 60), **PERIODIC))
    assert min(columns) == 1
    assert max(columns) == 58  # column 63 holds the first token of the second pass
    counts, n = [sum(10 * k < column <= 10 * (k + 1) for column in columns) for k in range(5)], len(columns)
    assert all(count / n == pytest.approx(10 / 58, abs=0.06) for count in counts)


def test_prefixes_are_limited_by_the_alphabet_too():
    columns = first_columns(RepeatTask(period=(28, 28), prefix=(0, 60), **PERIODIC), n_ctx=129)
    assert max(columns) == 37  # 36 + 28 are all the symbols there are


def test_shares_of_rows_without_and_with_a_far_prefix():
    task = RepeatTask(period=(5, 5), prefix=(0, 60), no_prefix=0.3, far_prefix=0.4, **PERIODIC)
    columns = first_columns(task, batch=1000)
    between = 0.3 / 58
    assert columns.count(1) / 1000 == pytest.approx(0.3 + between, abs=0.05)
    assert sum(column >= 50 for column in columns) / 1000 == pytest.approx(0.4 + 9 * between, abs=0.05)


def test_log_uniform_periods():
    rows = sample(RepeatTask(period=(3, 28), log_periods=True, prefix=(0, 0), **PERIODIC), batch=2000).tokens.tolist()
    lengths = [block_length(row) for row in rows]
    assert (min(lengths), max(lengths)) == (3, 28)
    for least, most in ((3, 5), (6, 11), (12, 23)):  # a factor of two each
        share = sum(least <= length <= most for length in lengths) / 2000
        assert share == pytest.approx(log(2) / log(29 / 3), abs=0.04)


def test_fresh_rows_read_each_block_at_least_twice_and_then_another_of_new_symbols():
    task = RepeatTask(period=(3, 7), prefix=(2, 2), max_jump_rate=0.3, fresh=1.0)
    blocks_of_rows = []
    for row in sample(task, batch=100, n_ctx=64).tokens.tolist():
        start, seen, blocks = 3, set(row[1:3]), 0
        while start < 64:
            period = next((p for p in range(3, 8) if row[start + p : start + p + 3] == row[start : start + 3]), None)
            if period is None:
                assert 64 - start < 7 + 3  # cut off by the end of the context
                break
            assert not seen & set(row[start : start + period])
            seen |= set(row[start : start + period])
            passes = 1
            while row[start + passes * period :][:period] == row[start : start + period]:
                passes += 1
            left = row[start + passes * period :]
            if len(left) < period and left == row[start : start + len(left)]:
                break
            assert passes >= 2
            start, blocks = start + passes * period, blocks + 1
            if len(seen) > 64 - 7:
                break  # then symbols come again
        blocks_of_rows.append(blocks)
    assert max(blocks_of_rows) >= 3


def test_the_reach_of_a_stream_grows():
    task = RepeatTask(period=(3, 3), prefix=(0, 50), far_prefix=1.0, **PERIODIC)
    stream = RepeatStream(task=task, seed=0, batch=200, reach=(4, 100))

    def furthest(step):
        return max(row.index(row[-1]) for row in stream(step).tokens.tolist())

    assert furthest(0) <= 1 + 4 + 2
    assert 1 + 4 + 20 < furthest(50) <= 1 + 27 + 2
    assert 1 + 42 < furthest(100) <= 1 + 50 + 2
    assert torch.equal(stream(100).tokens[:, 0], stream(500).tokens[:, 0])
    assert furthest(500) <= 1 + 50 + 2


def test_independent_rows_are_uniform():
    tokens = sample(RepeatTask(period=(3, 3), max_jump_rate=0.0, independent=1.0), batch=500).tokens[:, 1:]
    counts = torch.bincount(tokens.flatten(), minlength=N_SYMBOLS)
    assert counts.min() > 350
    assert counts.max() < 650  # 492 expected, standard deviation 22
    assert (tokens[:, 1:] == tokens[:, :-1]).float().mean().item() == pytest.approx(1 / 64, abs=0.004)


def test_shares_of_the_kinds_of_rows():
    task = RepeatTask(period=(5, 5), prefix=(1, 1), max_jump_rate=0.0, periodic=0.4, independent=0.15)
    rows = sample(task, batch=1000).tokens.tolist()
    periodic = sum(all(row[i] == row[i - 5] for i in range(7, 64)) for row in rows)
    independent = sum(len(set(row[1:])) > 6 for row in rows)
    assert periodic / 1000 == pytest.approx(0.4, abs=0.05)
    assert independent / 1000 == pytest.approx(0.15, abs=0.04)


@pytest.mark.parametrize("task", EVERY_TASK.values(), ids=EVERY_TASK)
def test_nothing_at_a_held_out_offset_counts(task):
    batch = sample(task)
    left_out = 0
    assert batch.counts is not None
    for row, counts in zip(batch.tokens.tolist(), batch.counts.tolist(), strict=True):
        for i, counted in enumerate(counts):  # the prediction of row[i + 1] from row[i]
            at_held_out = any(i >= offset and row[i - offset] == row[i] for offset in HELD_OUT)
            assert counted == (not at_held_out)
            left_out += at_held_out
    assert left_out > 0


def test_without_held_out_offsets_everything_counts():
    assert sample(RepeatTask(period=(3, 9), max_jump_rate=0.1)).counts.all()


def test_repeated_tokens():
    tokens = repeated_tokens(torch.Generator().manual_seed(0), 50, 20)
    assert tokens.shape == (50, 41)
    assert (tokens[:, 0] == BOS).all()
    assert torch.equal(tokens[:, 1:21], tokens[:, 21:])
    assert all(len(set(row)) == 20 for row in tokens[:, 1:21].tolist())
    assert len(set(tokens[:, 1:21].flatten().tolist())) == N_SYMBOLS


def test_repeats_at_each_offset():
    tokens = torch.tensor([[1, 2, 1, 2, 3]])
    assert repeats_at(tokens, (1,)).sum() == 0
    assert repeats_at(tokens, (2,)).int().tolist() == [[0, 0, 1, 1, 0]]
    assert repeats_at(tokens, ()).sum() == 0


def test_a_stream_depends_on_seed_and_step_only():
    stream = RepeatStream(task=LONG_BLOCKS, seed=3)
    first, again = stream(7), RepeatStream(task=LONG_BLOCKS, seed=3)(7)
    assert first.tokens.shape == (32, 64)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, stream(8).tokens)
    assert not torch.equal(first.tokens, RepeatStream(task=LONG_BLOCKS, seed=4)(7).tokens)


def test_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    sample(PHASE_2)
    repeated_tokens(torch.Generator().manual_seed(0), 4, 8)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": (9, 3)}, "period is \\(9, 3\\)"),
        ({"period": (0, 3)}, "expected 1 <= smallest"),
        ({"prefix": (-1, 3)}, "prefix is \\(-1, 3\\)"),
        ({"period": (3, 64), "prefix": (4, 4)}, "68 distinct tokens needs more than the 64 symbols"),
        ({"max_jump_rate": 1.5}, "max_jump_rate is 1.5"),
        ({"periodic": 0.8, "independent": 0.3}, "periodic 0.8, fresh 0.0, independent 0.3 must be .* sum to at most 1"),
        ({"no_prefix": 0.8, "far_prefix": 0.3}, "no_prefix 0.8, far_prefix 0.3 must be"),
        ({"fresh": -0.1}, "fresh -0.1"),
        ({"held_out": (0,)}, "held_out is \\(0,\\)"),
    ],
)
def test_impossible_tasks_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        RepeatTask(**{"period": (3, 9), "max_jump_rate": 0.1, **options})


@pytest.mark.parametrize("n", [0, 65])
def test_more_distinct_tokens_than_symbols_are_refused(n):
    with pytest.raises(InputError, match=f"{n} distinct tokens were asked for; expected 1 to 64"):
        distinct_tokens(torch.Generator(), 1, n)
