"""How the shipped toys are trained: what each phase shows them, and for how long.

Both recipes begin with short prefixes, since induction forms slowly where first occurrences lie anywhere. The next
phase moves them out to the end of the context, so that the previous-token head learns every column and not the early
ones only. The last, with a falling rate, adds what a context also holds (fresh blocks, tokens that never repeat), and a
price on what heads write leaves one previous-token head and a few induction heads at work. Never showing a row without
a prefix would lose column 1.

``LEARNED``, for learned positions: blocks of the first phase are short, which makes one previous-token head dominate;
longer ones spread it over all heads of layer 0. Positions begin as waves, since a table of noise learns each column by
itself; and training sees more columns than the toy keeps, since the last ones are met too seldom to close.

``ROTARY``: blocks of the first phase are long, 8 tokens at least. Short ones let another circuit form, as good at the
task: layer 0 looks 3 and 4 tokens back, and layer 1 attends to the column that knows both, 4 after the earlier
occurrence. No head then looks like an induction head.

The last phase's price on writing is concave (``HeadPenalty.power``): a price per unit of norm leaves four to six heads
of ten with a share of the induction, the root of the norm one to three.

Predictions at the offsets ``HELD_OUT`` never enter the loss, so that accuracy there is generalisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import pi
from statistics import fmean
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from models.training.penalty import HeadPenalty
from models.training.tasks import RepeatStream, RepeatTask
from models.training.train import History, Optimiser, Phase

HELD_OUT = (13, 19)
OPTIMISER = Optimiser(lr=5e-3, betas=(0.9, 0.98), weight_decay=0.05, warmup=50, clip=1.0)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One phase of a recipe; ``below`` ends it when the repeat loss is below, in nats. The rest is as in ``Phase``."""

    task: RepeatTask
    steps: int
    reach: tuple[int, int] | None = None
    schedule: Literal["constant", "linear"] = "constant"
    below: float | None = None
    penalty: HeadPenalty | None = None
    anew: bool = False

    def phase(self, seed: int, n_ctx: int) -> Phase:
        """Return the phase for one seed of its data."""
        until = None if self.below is None else partial(repeat_loss_is_low, below=self.below)
        stream = RepeatStream(task=self.task, seed=seed, n_ctx=n_ctx, reach=self.reach)
        return Phase(
            batches=stream,
            steps=self.steps,
            schedule=self.schedule,
            until=until,
            penalty=self.penalty,
            anew=self.anew,
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Stages, one after another.

    Args:
        stages: each with its data and length.
        n_ctx: columns that training sees; a toy with fewer keeps the first ones.
        begin_positions: what learned positions begin as, None for the configuration's own.
    """

    stages: tuple[Stage, ...]
    n_ctx: int
    begin_positions: Callable[[int, int], Float[Tensor, "n_ctx d_model"]] | None = None

    def phases(self, seed: int) -> list[Phase]:
        """Return the phases for one seed; no two of them, of any seed, share data."""
        return [stage.phase(len(self.stages) * seed + i, self.n_ctx) for i, stage in enumerate(self.stages)]


def repeat_loss_is_low(history: History, below: float = 0.6, over: int = 5) -> bool:
    """Return whether the mean repeat loss of the last ``over`` evaluations is below ``below`` nats."""
    return len(history) >= over and fmean(row["repeat_loss"] for row in history[-over:]) < below


def waves(n_ctx: int, d_model: int) -> Float[Tensor, "n_ctx d_model"]:
    """Return sines and cosines of the column, mean square 1/4, with periods of 3 to 32 columns, evenly in the log.

    >>> waves(4, 2).tolist()[0]
    [0.0, 0.7071067690849304]
    """
    periods = 3.0 * (32 / 3) ** torch.linspace(0, 1, d_model // 2)
    angle = 2 * pi * torch.arange(n_ctx)[:, None] / periods
    return 0.5 * 2**0.5 * torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


def _last(price: tuple[float, float], begin: float, no_prefix: float) -> Stage:
    """Return the last stage, the mix of everything."""
    task = RepeatTask(
        period=(3, 28),
        log_periods=True,
        prefix=(0, 60),
        no_prefix=no_prefix,
        far_prefix=0.3,
        max_jump_rate=0.05,
        periodic=0.45,
        fresh=0.2,
        independent=0.15,
        held_out=HELD_OUT,
    )
    return Stage(
        task=task, steps=650, schedule="linear", penalty=HeadPenalty(by_layer=price, begin=begin, ramp=100, power=0.5)
    )


LEARNED = Recipe(
    n_ctx=80,
    begin_positions=waves,
    stages=(
        Stage(task=RepeatTask(period=(3, 14), max_jump_rate=0.1, held_out=HELD_OUT), steps=1500, below=1.2),
        Stage(
            task=RepeatTask(
                period=(3, 14),
                log_periods=True,
                prefix=(0, 60),
                no_prefix=0.1,
                far_prefix=0.2,
                max_jump_rate=0.1,
                periodic=0.3,
                held_out=HELD_OUT,
            ),
            steps=550,
            reach=(4, 400),
            penalty=HeadPenalty(by_layer=(0.005, 0.005)),
        ),
        _last((0.04, 0.04), begin=0.125, no_prefix=0.2),
    ),
)

ROTARY = Recipe(
    n_ctx=64,
    stages=(
        Stage(task=RepeatTask(period=(8, 30), max_jump_rate=0.3, held_out=HELD_OUT), steps=1500, below=0.6),
        Stage(
            task=RepeatTask(
                period=(3, 28),
                log_periods=True,
                prefix=(0, 60),
                no_prefix=0.2,
                far_prefix=0.2,
                max_jump_rate=0.1,
                periodic=0.5,
                held_out=HELD_OUT,
            ),
            steps=400,
            reach=(4, 250),
            anew=True,
        ),
        _last((0.03, 0.03), begin=0.0, no_prefix=0.25),
    ),
)
