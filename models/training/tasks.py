"""Seeded toy data on which a small model learns induction.

A row is BOS, then a block of N distinct tokens, then slices of that block to the end of the context:

    BOS  b_1 b_2 ... b_N  b_p b_{p+1} ...  b_q b_{q+1} ...

A reader's pointer walks the block. At every step it jumps to a random place of the block with the row's jump rate,
and so it does at the block's end; in a periodic row it returns to the end of the prefix instead. Since the offset
between a token and its earlier occurrence is random, attention at a fixed distance does not solve the task: the model
must find the token itself. Every prediction on an earlier occurrence at a held-out offset is left out of the loss.

All randomness comes from the ``torch.Generator`` given; data are made on the CPU, so that they agree on all devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.errors import ConfigError, InputError
from models.training.batch import Batch

N_SYMBOLS = 64
BOS = N_SYMBOLS


@dataclass(frozen=True, kw_only=True)
class RepeatTask:
    """A distribution over rows of repeated random tokens; see the module's docstring.

    The block of a row holds prefix + period tokens, both drawn uniformly.

    Args:
        period: smallest and largest period, in tokens.
        prefix: smallest and largest prefix.
        max_jump_rate: a row's jump rate, per token, is uniform between 0 and this.
        periodic: share of rows that repeat their period to the end, without jumps.
        independent: share of rows of independent uniform tokens, on which nothing can be predicted.
        held_out: offsets that never enter the loss.

    >>> task = RepeatTask(period=(3, 3), prefix=(1, 1), max_jump_rate=0.0, periodic=1.0)
    >>> row = task.sample(torch.Generator().manual_seed(0), batch=1, n_ctx=11).tokens[0].tolist()
    >>> row[0] == BOS, row[2:5] == row[5:8] == row[8:11]
    (True, True)
    """

    period: tuple[int, int]
    prefix: tuple[int, int] = (0, 4)
    max_jump_rate: float
    periodic: float = 0.0
    independent: float = 0.0
    held_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, (low, high), least in (("period", self.period, 1), ("prefix", self.prefix, 0)):
            if not least <= low <= high:
                raise ConfigError(f"{name} is ({low}, {high}); expected {least} <= smallest <= largest")
        if (longest := self.period[1] + self.prefix[1]) > N_SYMBOLS:
            raise ConfigError(f"a block of {longest} distinct tokens needs more than the {N_SYMBOLS} symbols there are")
        if not 0 <= self.max_jump_rate <= 1:
            raise ConfigError(f"max_jump_rate is {self.max_jump_rate}; expected a probability")
        if any(offset < 1 for offset in self.held_out):
            raise ConfigError(f"held_out is {self.held_out}; an offset is a distance back, at least 1")
        if min(self.periodic, self.independent) < 0 or self.periodic + self.independent > 1:
            raise ConfigError(
                f"the shares periodic {self.periodic} and independent {self.independent} must be at least 0 "
                "and sum to at most 1"
            )

    def sample(self, generator: torch.Generator, batch: int, n_ctx: int) -> Batch:
        """Draw ``batch`` rows of ``n_ctx`` tokens, BOS included."""
        prefix = _integers(self.prefix, batch, generator)
        length = prefix + _integers(self.period, batch, generator)
        rate = torch.rand(batch, generator=generator) * self.max_jump_rate
        kind = torch.rand(batch, generator=generator)
        periodic = kind < self.periodic
        independent = kind >= 1 - self.independent
        rate[periodic] = 0.0

        block = distinct_tokens(generator, batch, N_SYMBOLS)
        pointers = _walk(length, prefix, rate, periodic, n_ctx - 1, generator)
        walked = block.gather(1, pointers)
        uniform = torch.randint(N_SYMBOLS, walked.shape, generator=generator)
        tokens = _after_bos(torch.where(independent[:, None], uniform, walked))
        return Batch(tokens, ~repeats_at(tokens, self.held_out)[:, :-1])


@dataclass(frozen=True, kw_only=True)
class RepeatStream:
    """Batches of a task by step: batch k depends on the seed and k alone, so that training can resume anywhere.

    Args:
        task: the distribution.
        seed: of the whole stream.
        batch: rows.
        n_ctx: columns, BOS included.
    """

    task: RepeatTask
    seed: int
    batch: int = 32
    n_ctx: int = 64

    def __call__(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return self.task.sample(generator, self.batch, self.n_ctx)


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
    return _after_bos(torch.cat([half, half], dim=1))


def repeats_at(tokens: Int[Tensor, "batch pos"], offsets: tuple[int, ...]) -> Bool[Tensor, "batch pos"]:
    """Return where the token ``offset`` columns earlier is the same one, for any of ``offsets``.

    >>> repeats_at(torch.tensor([[5, 6, 5, 7, 6]]), (2,)).int().tolist()
    [[0, 0, 1, 0, 0]]
    """
    found = torch.zeros_like(tokens, dtype=torch.bool)
    for offset in offsets:
        found[:, offset:] |= tokens[:, offset:] == tokens[:, :-offset]
    return found


def _integers(bounds: tuple[int, int], batch: int, generator: torch.Generator) -> Int[Tensor, "batch"]:
    return torch.randint(bounds[0], bounds[1] + 1, (batch,), generator=generator)


def _after_bos(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch pos+1"]:
    return torch.cat([torch.full_like(tokens[:, :1], BOS), tokens], dim=1)


def _walk(
    length: Int[Tensor, "batch"],
    prefix: Int[Tensor, "batch"],
    rate: Tensor,
    periodic: Bool[Tensor, "batch"],
    n: int,
    generator: torch.Generator,
) -> Int[Tensor, "batch pos"]:
    """Return which place of its block each row reads at each of ``n`` steps; the first pass is undisturbed."""
    jumps = torch.rand(len(length), n, generator=generator) < rate[:, None]
    landings = (torch.rand(len(length), n, generator=generator) * length[:, None]).long()
    landings = torch.where(periodic[:, None], prefix[:, None], landings)
    pointer = torch.zeros_like(length)
    path = [pointer]
    for step in range(1, n):
        leaves = ((step > length) & jumps[:, step]) | (pointer + 1 == length)
        pointer = torch.where(leaves, landings[:, step], pointer + 1)
        path.append(pointer)
    return torch.stack(path, dim=1)
