"""The three toy models shipped in ``models/checkpoints``: what they are, how they are trained, what they must hold.

All have 64 symbols and BOS, a context of 64, 2 layers, 4 heads and a residual stream of 64.

=============  ===========================================================================================
``toy``        GPT-2 style: learned positions, LayerNorm, GELU, every bias; 112,512 parameters
``toy-attn``   the same without MLPs; 46,080 parameters
``toy-rope``   modern: rotary positions, RMSNorm, SwiGLU, 2 key/value heads, no biases; 100,800 parameters
=============  ===========================================================================================

Training has two phases. The first teaches induction on blocks with jumps, until the repeat loss is low; the second,
with a falling rate, teaches long copies, periodic repeats, and that fresh tokens cannot be predicted. Predictions at
the offsets ``HELD_OUT`` never enter the loss, so that accuracy there is generalisation.

The blocks of the first phase differ. With learned positions short ones make one previous-token head dominate (longer
ones spread it evenly over all heads of layer 0, where losing one costs nothing). With rotary positions short ones let
another circuit form instead, as good at the task: layer 0 looks 3 and 4 tokens back, and layer 1 attends to the column
that knows both, 4 after the earlier occurrence. No head then looks like an induction head; long blocks avoid it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from pathlib import Path
from statistics import fmean
from typing import Literal

import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.text import SymbolTokenizer
from models.training.evaluate import PERIOD, ToyEvaluation, evaluate_toy, repeat_figures
from models.training.tasks import N_SYMBOLS, RepeatStream, RepeatTask, repeated_tokens
from models.training.train import Figures, History, Optimiser, Phase, Progress, TrainingRecord, train

CHANCE = log(N_SYMBOLS)
HELD_OUT = (13, 19)
PERIODS = (8, 11, 17, 23)

SHORT_BLOCKS = RepeatTask(period=(3, 14), max_jump_rate=0.1, held_out=HELD_OUT)
LONG_BLOCKS = RepeatTask(period=(3, 24), max_jump_rate=0.3, held_out=HELD_OUT)
PHASE_2 = RepeatTask(period=(3, 30), max_jump_rate=0.03, periodic=0.4, independent=0.15, held_out=HELD_OUT)
OPTIMISER = Optimiser(lr=5e-3, betas=(0.9, 0.98), weight_decay=0.05, warmup=50, clip=1.0)
LONGEST_PHASE_1 = 1500
PHASE_2_STEPS = 500

_COMMON = DecoderConfig(
    n_layers=2, d_model=64, n_heads=4, d_vocab=N_SYMBOLS + 1, n_ctx=64, act="gelu_tanh", init="fan_in"
)


@dataclass(frozen=True)
class Check:
    """One row of the table that a trained toy must hold."""

    what: str
    value: float
    relation: Literal["<", ">"]
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the value lies on the right side of the bound."""
        return self.value < self.bound if self.relation == "<" else self.value > self.bound

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.3g}, expected {self.relation} {self.bound:g}"


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What a trained toy must hold; the bounds that differ between them, all others are the same for every toy.

    Args:
        best_previous: least score of the best previous-token head, in layer 0.
        best_induction: least score of the best induction head, in layer 1.
        rise_best_previous, rise_all_previous: least rise in repeat loss, nats, without these heads.
        best_sink: least sink score of some layer-1 head while nothing repeats.
    """

    best_previous: float
    best_induction: float
    rise_best_previous: float
    rise_all_previous: float
    best_sink: float

    def checks(self, got: ToyEvaluation) -> list[Check]:
        """Return every row of the table with the value found."""
        first, second = got.previous_token[0], got.induction[1]
        sink = max(range(len(got.sink[1])), key=lambda head: got.sink[1][head])
        above = sum(score > 0.7 for score in second)
        worst = min(got.accuracy_at, key=lambda period: got.accuracy_at[period])
        return [
            Check("repeat loss, nats", got.repeat_loss, "<", 0.3),
            Check("accuracy on the repeat", got.accuracy, ">", 0.98),
            Check("first-half loss, distance from ln 64", abs(got.first_half_loss - CHANCE), "<", 0.05),
            Check("best layer-0 previous-token score", max(first), ">", self.best_previous),
            Check("best layer-1 induction score", max(second), ">", self.best_induction),
            Check("layer-1 induction heads above .7", above, ">", 2),
            Check("rise without the best previous-token head", got.rise_best_previous, ">", self.rise_best_previous),
            Check("rise without all previous-token heads", got.rise_all_previous, ">", self.rise_all_previous),
            Check("rise without all induction heads", got.rise_all_induction, ">", 3.5),
            Check("accuracy without induction heads", got.accuracy_without_induction, "<", 0.05),
            Check("best layer-1 sink score, first half", got.sink[1][sink], ">", self.best_sink),
            Check("the same head's sink score, repeat", got.sink_on_repeat[1][sink], "<", 0.2),
            Check(f"lowest accuracy, at period {worst}", got.accuracy_at[worst], ">", 0.97),
        ]

    def unmet(self, got: ToyEvaluation) -> list[Check]:
        """Return the checks that fail."""
        return [check for check in self.checks(got) if not check.holds]


@dataclass(frozen=True)
class Toy:
    """One shipped model: its configuration, the data of its first phase, and what it must hold once trained."""

    config: DecoderConfig
    phase_1: RepeatTask
    thresholds: Thresholds


TOYS: dict[str, Toy] = {
    "toy": Toy(
        _COMMON,
        SHORT_BLOCKS,
        Thresholds(
            best_previous=0.45, best_induction=0.8, rise_best_previous=1.0, rise_all_previous=2.0, best_sink=0.25
        ),
    ),
    "toy-attn": Toy(
        _COMMON.replace(attn_only=True, d_mlp=None),
        SHORT_BLOCKS,
        Thresholds(
            best_previous=0.45, best_induction=0.8, rise_best_previous=1.0, rise_all_previous=2.0, best_sink=0.25
        ),
    ),
    "toy-rope": Toy(
        _COMMON.replace(
            positions="rotary",
            norm="rms",
            n_kv_heads=2,
            d_mlp=176,
            act="silu",
            gated=True,
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
        ),
        LONG_BLOCKS,
        Thresholds(
            best_previous=0.7, best_induction=0.75, rise_best_previous=2.0, rise_all_previous=3.0, best_sink=0.4
        ),
    ),
}


def repeat_loss_is_low(history: History, below: float = 0.6, over: int = 5) -> bool:
    """Return whether the mean repeat loss of the last ``over`` evaluations is below ``below`` nats."""
    return len(history) >= over and fmean(row["repeat_loss"] for row in history[-over:]) < below


def phase_change_step(history: History) -> int | None:
    """Return the first evaluated step at which the repeat loss is below half of ln 64, None where it never is."""
    return next((int(row["step"]) for row in history if row["repeat_loss"] < CHANCE / 2), None)


def evaluate_shipped(model: HookedDecoder) -> ToyEvaluation:
    """Return the figures that ``Thresholds`` are about, at the periods trained on and at the held-out ones."""
    return evaluate_toy(model, periods=(*PERIODS, *HELD_OUT))


def train_toy(
    toy: Toy,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[Progress], None] | None = None,
    checkpoint: Path | None = None,
    longest_phase_1: int = LONGEST_PHASE_1,
) -> tuple[HookedDecoder, TrainingRecord]:
    """Train a model of the toy vocabulary by the recipe of the shipped ones.

    Args:
        toy: a shipped one is ``TOYS[name]``.
        seed: of the weights, the data and the test; the same seed gives the same model on the same kind of machine.
        device: where to train.
        progress, checkpoint: see ``train``.
        longest_phase_1: steps after which the first phase ends, induction or not.

    Returns:
        The model and its record, with the figures of ``repeat_figures`` every ten steps.
    """
    model = HookedDecoder(toy.config, seed=seed, tokenizer=SymbolTokenizer()).to(device)
    test = repeated_tokens(torch.Generator().manual_seed(seed), 64, PERIOD).to(device)
    first = RepeatStream(task=toy.phase_1, seed=2 * seed, n_ctx=toy.config.n_ctx)
    second = RepeatStream(task=PHASE_2, seed=2 * seed + 1, n_ctx=toy.config.n_ctx)
    phases = [
        Phase(batches=first, steps=longest_phase_1, until=repeat_loss_is_low),
        Phase(batches=second, steps=PHASE_2_STEPS, schedule="linear"),
    ]

    def figures(model: HookedDecoder) -> Figures:
        return repeat_figures(model, test)

    return train(model, phases, OPTIMISER, seed=seed, evaluate=figures, progress=progress, checkpoint=checkpoint)
