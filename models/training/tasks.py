"""Seeded toy data on which a small model learns induction.

A row is BOS, then a prefix of R tokens, then a block of N tokens that is read again and again to the end:

    BOS  r_1 ... r_R  b_1 b_2 ... b_N  b_p b_{p+1} ...  b_q b_{q+1} ...

All are distinct symbols, and the prefix never comes again. A reader's pointer walks the block. After the first pass it
jumps, at every step with the row's jump rate and always at the block's end, to a random place of the block. In a
periodic row it returns to the block's beginning only. In a fresh row it does the same, but from the second pass on it
may go over to a new block at the block's end.

Since the offset between a token and its earlier occurrence is random, attention at a fixed distance does not solve the
task: the model must find the token itself. The prefix decides where in the context a first occurrence lies: a model
that never meets one late learns to look one back in the early columns only. Every prediction on an earlier occurrence
at a held-out offset is left out of the loss.

All randomness comes from the ``torch.Generator`` given; data are made on the CPU, so that they agree on all devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.errors import ConfigError, InputError
from models.training.batch import Batch

N_SYMBOLS = 64
BOS = N_SYMBOLS
NEAR = 8


@dataclass(frozen=True, kw_only=True)
class RepeatTask:
    """A distribution over rows of repeated random tokens; see the module's docstring.

    Args:
        period: smallest and largest length of a block, in tokens.
        log_periods: draw lengths log-uniformly, so that short ones are as common as long ones.
        prefix: smallest and largest prefix, drawn uniformly. A row's largest is less where its block would not fit
            the context or the alphabet.
        no_prefix: share of rows without a prefix instead.
        far_prefix: share of rows whose prefix is within ``NEAR`` of the row's largest instead.
        max_jump_rate: a row's jump rate, per token, is uniform between 0 and this.
        periodic: share of rows that repeat their block to the end, without jumps.
        fresh: share of rows that go over to new blocks, without jumps.
        independent: share of rows of independent uniform tokens, on which nothing can be predicted.
        held_out: offsets that never enter the loss.

    >>> task = RepeatTask(period=(3, 3), prefix=(1, 1), max_jump_rate=0.0, periodic=1.0)
    >>> row = task.sample(torch.Generator().manual_seed(0), batch=1, n_ctx=11).tokens[0].tolist()
    >>> row[0] == BOS, row[2:5] == row[5:8] == row[8:11]
    (True, True)
    """

    period: tuple[int, int]
    log_periods: bool = False
    prefix: tuple[int, int] = (0, 4)
    no_prefix: float = 0.0
    far_prefix: float = 0.0
    max_jump_rate: float
    periodic: float = 0.0
    fresh: float = 0.0
    independent: float = 0.0
    held_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high), least in (("period", self.period, 1), ("prefix", self.prefix, 0)):
            if not least <= low <= high:
                raise ConfigError(f"{name} is ({low}, {high}); expected {least} <= smallest <= largest")
        if (longest := self.period[1] + self.prefix[0]) > N_SYMBOLS:
            raise ConfigError(f"a row of {longest} distinct tokens needs more than the {N_SYMBOLS} symbols there are")
        if not 0 <= self.max_jump_rate <= 1:
            raise ConfigError(f"max_jump_rate is {self.max_jump_rate}; expected a probability")
        if any(offset < 1 for offset in self.held_out):
            raise ConfigError(f"held_out is {self.held_out}; an offset is a distance back, at least 1")
        for names in (("periodic", "fresh", "independent"), ("no_prefix", "far_prefix")):
            shares = [getattr(self, name) for name in names]
            if min(shares) < 0 or sum(shares) > 1:
                told = ", ".join(f"{name} {share}" for name, share in zip(names, shares, strict=True))
                raise ConfigError(f"the shares {told} must be at least 0 and sum to at most 1")

    def sample(self, generator: torch.Generator, batch: int, n_ctx: int) -> Batch:
        """Draw ``batch`` rows of ``n_ctx`` tokens, BOS included."""
        n = n_ctx - 1
        lengths = self._periods((n, batch), generator)
        prefix = self._prefixes(lengths[0], n, generator)
        rate = torch.rand(batch, generator=generator) * self.max_jump_rate
        kind = torch.rand(batch, generator=generator)
        returns = kind < self.periodic + self.fresh
        rate[returns] = 0.0

        places = _walk(prefix, lengths, rate, returns, (kind >= self.periodic) & returns, generator)
        tokens = distinct_tokens(generator, batch, N_SYMBOLS).gather(1, places % N_SYMBOLS)
        uniform = torch.randint(N_SYMBOLS, tokens.shape, generator=generator)
        tokens = after_bos(torch.where((kind >= 1 - self.independent)[:, None], uniform, tokens))
        return Batch(tokens, ~repeats_at(tokens, self.held_out)[:, :-1])

    def _periods(self, shape: tuple[int, int], generator: torch.Generator) -> Int[Tensor, "step batch"]:
        low, high = self.period
        uniform = torch.rand(*shape, generator=generator)
        if self.log_periods:
            uniform = ((uniform * log((high + 1) / low)).exp() * low - low) / (high + 1 - low)
        return (low + (uniform * (high + 1 - low)).long()).clamp(max=high)

    def _prefixes(self, period: Int[Tensor, "batch"], n: int, generator: torch.Generator) -> Int[Tensor, "batch"]:
        low, high = self.prefix
        largest = (min(n - 1, N_SYMBOLS) - period).clamp(max=high).clamp(min=low)
        kind = torch.rand(len(period), generator=generator)
        far = (largest - NEAR).clamp(min=low)
        least = torch.where(kind >= 1 - self.far_prefix, far, torch.full_like(far, low))
        drawn = least + (torch.rand(len(period), generator=generator) * (largest + 1 - least)).long()
        return torch.where(kind < self.no_prefix, 0, drawn)


@dataclass(frozen=True, kw_only=True)
class RepeatStream:
    """Batches of a task by step: batch k depends on the seed and k alone, so that training can resume anywhere.

    Args:
        task: the distribution.
        seed: of the whole stream.
        batch: rows.
        n_ctx: columns, BOS included.
        reach: the largest prefix at step 0, and the steps over which it grows to the task's; None for the task's own.
    """

    task: RepeatTask
    seed: int
    batch: int = 32
    n_ctx: int = 64
    reach: tuple[int, int] | None = None

    def __call__(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return self._at(step).sample(generator, self.batch, self.n_ctx)

    def _at(self, step: int) -> RepeatTask:
        if self.reach is None:
            return self.task
        (begin, steps), (low, high) = self.reach, self.task.prefix
        return replace(self.task, prefix=(low, round(begin + (high - begin) * min(1.0, step / steps))))


def distinct_tokens(generator: torch.Generator, batch: int, n: int) -> Int[Tensor, "batch n"]:
    """Draw rows of ``n`` distinct symbols. Raises InputError where there are not that many."""
    if not 1 <= n <= N_SYMBOLS:
        raise InputError(f"{n} distinct tokens were asked for; expected 1 to {N_SYMBOLS}, the size of the alphabet")
    return torch.rand(batch, N_SYMBOLS, generator=generator).argsort(-1)[:, :n]


def repeated_tokens(generator: torch.Generator, batch: int, period: int) -> Int[Tensor, "batch pos"]:
    """Draw rows of BOS, ``period`` distinct tokens, and the same tokens again: ``1 + 2 * period`` columns.

    >>> repeated_tokens(torch.Generator().manual_seed(0), batch=2, period=20).shape
    torch.Size([2, 41])
    """
    half = distinct_tokens(generator, batch, period)
    return after_bos(torch.cat([half, half], dim=1))


def repeats_at(tokens: Int[Tensor, "batch pos"], offsets: tuple[int, ...]) -> Bool[Tensor, "batch pos"]:
    """Return where the token ``offset`` columns earlier is the same one, for any of ``offsets``.

    >>> repeats_at(torch.tensor([[5, 6, 5, 7, 6]]), (2,)).int().tolist()
    [[0, 0, 1, 0, 0]]
    """
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for offset in offsets:
        found[:, offset:] |= tokens[:, offset:] == tokens[:, :-offset]
    return found


def after_bos(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos+1"]:
    """Return ``tokens`` with BOS before each row."""
    return torch.cat([torch.full_like(tokens[:, :1], BOS), tokens], dim=1)


def _walk(
    prefix: Int[Tensor, "batch"],
    lengths: Int[Tensor, "step batch"],
    rate: Tensor,
    returns: Bool[Tensor, "batch"],
    fresh: Bool[Tensor, "batch"],
    generator: torch.Generator,
) -> Int[Tensor, "batch pos"]:
    """Return which place of its symbols each row reads at each step: the prefix, the block, what comes after."""
    n, batch = lengths.shape
    jumps = torch.rand(n, batch, generator=generator) < rate
    landings = torch.rand(n, batch, generator=generator) * ~returns
    renews = (torch.rand(n, batch, generator=generator) < 0.5) & fresh

    start, end = prefix, prefix + lengths[0]
    place = torch.zeros_like(prefix)
    repeats = torch.zeros_like(fresh)  # whether the block has been read once
    path = [place]
    for step in range(1, n):
        at_end = place + 1 == end
        renewed = at_end & repeats & renews[step]
        start = torch.where(renewed, end, start)
        end = torch.where(renewed, end + lengths[step], end)
        jumped = (at_end | (jumps[step] & repeats)) & ~renewed
        repeats = (repeats | at_end) & ~renewed
        place = torch.where(jumped, start + (landings[step] * (end - start)).long(), place + 1)
        path.append(place)
    return torch.stack(path, dim=1)
