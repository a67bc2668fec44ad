"""Whether a model copies wherever a block first lies: accuracy by column, period and repeat.

A row is BOS, c - 1 distinct tokens, then a block of P other tokens that begins at column c and repeats to the end of
the context. From column c + P on every next token is known: it stands P - 1 columns back. Repeat k covers the columns
c + kP to c + (k + 1)P - 1, so that repeat 1 is the block's second occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.decoder import HookedDecoder
from models.training.tasks import after_bos, distinct_tokens

PERIODS = (3, 28)
MOST_REPEATS = 12
AGAIN = 16  # places measured again
ROWS_AT_ONCE = 512


class Place(NamedTuple):
    """Where a block first lies, how long it is, and which repeat of it is predicted."""

    column: int
    period: int
    repeat: int


def placed_tokens(
    generator: torch.Generator, batch: int, column: int, period: int, n_ctx: int
) -> Int[Tensor, "batch pos"]:
    """Draw rows of ``n_ctx`` columns whose block of ``period`` tokens begins at ``column`` and repeats to the end.

    >>> placed_tokens(torch.Generator().manual_seed(0), batch=1, column=3, period=2, n_ctx=8)[0, 3:].unique().numel()
    2
    """
    symbols = distinct_tokens(generator, batch, column - 1 + period)
    blocks = -(-(n_ctx - column) // period)
    return after_bos(torch.cat([symbols, symbols[:, column - 1 :].repeat(1, blocks - 1)], dim=1))[:, :n_ctx]


@torch.no_grad()
def accuracy_everywhere(
    model: HookedDecoder, *, periods: tuple[int, int] = PERIODS, rows: int = 4, seed: int = 0
) -> dict[Place, float]:
    """Return the accuracy at every place that fits the context.

    Args:
        model: of the toy vocabulary.
        periods: smallest and largest length of a block.
        rows: sequences per column and period.
        seed: of the tokens.
    """
    n_ctx = model.cfg.n_ctx
    blocks = [(column, period) for period in range(periods[0], periods[1] + 1) for column in range(1, n_ctx - period)]
    return _accuracy(model, blocks, rows, torch.Generator().manual_seed(seed))


def lowest_accuracy(model: HookedDecoder, *, seed: int = 0, rows: int = 256) -> tuple[Place, float]:
    """Return the place at which a model copies worst, and its accuracy there.

    The least of thousands of rough values is lower than the truth, so the worst places are measured again, on new
    ``rows``, and the least of these values counts.
    """
    rough = accuracy_everywhere(model, rows=max(1, rows // 64), seed=seed)
    worst = sorted(rough, key=rough.__getitem__)[:AGAIN]
    blocks = list(dict.fromkeys((place.column, place.period) for place in worst))
    again = _accuracy(model, blocks, rows, torch.Generator().manual_seed(seed + 1))
    return min(again.items(), key=lambda item: item[1])


def _accuracy(
    model: HookedDecoder, blocks: Sequence[tuple[int, int]], rows: int, generator: torch.Generator
) -> dict[Place, float]:
    n_ctx, found = model.cfg.n_ctx, {}
    size = max(1, ROWS_AT_ONCE // rows)
    for some in (blocks[i : i + size] for i in range(0, len(blocks), size)):
        tokens = torch.cat([placed_tokens(generator, rows, *block, n_ctx + 1) for block in some]).to(model.device)
        right: Bool[Tensor, "batch pos"] = model(tokens[:, :-1]).argmax(-1) == tokens[:, 1:]
        for (column, period), ours in zip(some, right.double().unflatten(0, (-1, rows)).mean(1).cpu(), strict=True):
            for repeat, begin in enumerate(range(column + period, n_ctx, period)[:MOST_REPEATS], 1):
                found[Place(column, period, repeat)] = ours[begin : begin + period].mean().item()
    return found
