"""The three toy models shipped in ``models/checkpoints``: what they are, how they are trained, what they must hold.

All have 64 symbols and BOS, a context of 64, 2 layers, 10 heads of width 16 and a residual stream of 64.

=============  ===========================================================================================
``toy``        GPT-2 style: learned positions, LayerNorm, GELU, every bias; 129,216 parameters
``toy-attn``   the same without MLPs; 95,808 parameters
``toy-rope``   modern: rotary positions, RMSNorm, SwiGLU, 5 key/value heads, no biases; 141,760 parameters
=============  ===========================================================================================

Their circuit holds at every column of the context, wherever a block first lies. Few heads do the work, so that there
are many fair sets (other heads, as many, of the same layers) to hold against them: 10 heads give 28 sets for two
induction heads and 35 for three, the least p being 1 / (1 + sets). Heads of layer 1 rest on BOS while nothing repeats.

How they are trained: ``models.training.recipes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Literal

import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.text import SymbolTokenizer
from models.training.evaluate import PERIOD, ToyEvaluation, evaluate_toy, repeat_figures
from models.training.recipes import HELD_OUT, LEARNED, OPTIMISER, ROTARY, Recipe
from models.training.tasks import N_SYMBOLS, repeated_tokens
from models.training.train import Figures, History, Progress, TrainingRecord, train

CHANCE = log(N_SYMBOLS)
PERIODS = (8, 11, 17, 23)

_COMMON = DecoderConfig(
    n_layers=2,
    d_model=64,
    n_heads=10,
    d_head=16,
    d_mlp=128,
    d_vocab=N_SYMBOLS + 1,
    n_ctx=64,
    act="gelu_tanh",
    init="fan_in",
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
        repeat_loss: most repeat loss, nats.
        best_induction: least score of the best induction head, in layer 1.
        rise_all_induction: least rise in repeat loss, nats, without the induction heads.
    """

    repeat_loss: float
    best_induction: float
    rise_all_induction: float

    def checks(self, got: ToyEvaluation) -> list[Check]:
        """Return every row of the table with the value found."""
        column, period, repeat = got.lowest_at
        worst = f"lowest accuracy, at column {column}, period {period}, repeat {repeat}"
        return [
            Check("repeat loss, nats", got.repeat_loss, "<", self.repeat_loss),
            Check("accuracy on the repeat", got.accuracy, ">", 0.98),
            Check("first-half loss, distance from ln 64", abs(got.first_half_loss - CHANCE), "<", 0.05),
            Check(worst, got.lowest_accuracy, ">", 0.95),
            Check("best layer-0 previous-token score", max(got.previous_token[0]), ">", 0.7),
            Check("the same head, in its worst third of the context", min(got.previous_by_third), ">", 0.7),
            Check("best layer-1 induction score", max(got.induction[1]), ">", self.best_induction),
            Check("rise without the best previous-token head", got.rise_best_previous, ">", 1.5),
            Check("rise without all induction heads", got.rise_all_induction, ">", self.rise_all_induction),
            Check("accuracy without induction heads", got.accuracy_without_induction, "<", 0.3),
            Check(f"fair sets against them (least p {1 / (1 + got.fair_sets):.3f})", got.fair_sets, ">", 8),
            Check("rise beyond any fair set, lower end", got.rise_beyond_fair_sets, ">", 1.0),
            Check("rows on which a layer-1 head rests on BOS", max(got.rests_on_bos[1]), ">", 0.5),
        ]

    def unmet(self, got: ToyEvaluation) -> list[Check]:
        """Return the checks that fail."""
        return [check for check in self.checks(got) if not check.holds]


@dataclass(frozen=True)
class Toy:
    """One shipped model: its configuration, how it is trained, and what it must hold once trained."""

    config: DecoderConfig
    recipe: Recipe
    thresholds: Thresholds


TOYS: dict[str, Toy] = {
    "toy": Toy(_COMMON, LEARNED, Thresholds(repeat_loss=0.6, best_induction=0.6, rise_all_induction=3.0)),
    "toy-attn": Toy(
        _COMMON.replace(attn_only=True, d_mlp=None),
        LEARNED,
        Thresholds(repeat_loss=0.6, best_induction=0.6, rise_all_induction=3.0),
    ),
    "toy-rope": Toy(
        _COMMON.replace(
            positions="rotary",
            rotary_dim=8,
            norm="rms",
            n_kv_heads=5,
            d_mlp=176,
            act="silu",
            gated=True,
            qkv_bias=False,
            out_bias=False,
            mlp_bias=False,
        ),
        ROTARY,
        Thresholds(repeat_loss=0.4, best_induction=0.6, rise_all_induction=3.0),
    ),
}


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
    longest_phase_1: int | None = None,
) -> tuple[HookedDecoder, TrainingRecord]:
    """Train a model of the toy vocabulary by the recipe of the shipped ones.

    Args:
        toy: a shipped one is ``TOYS[name]``.
        seed: of the weights, the data and the test; the same seed gives the same model on the same kind of machine.
        device: where to train.
        progress, checkpoint: see ``train``.
        longest_phase_1: steps after which the first phase ends, induction or not; None for the recipe's own.

    Returns:
        The model and its record, with the figures of ``repeat_figures`` every ten steps.
    """
    recipe = toy.recipe
    model = HookedDecoder(toy.config.replace(n_ctx=recipe.n_ctx), seed=seed, tokenizer=SymbolTokenizer())
    if recipe.begin_positions is not None:
        with torch.no_grad():
            model.W_pos.copy_(recipe.begin_positions(recipe.n_ctx, toy.config.d_model))
    test = repeated_tokens(torch.Generator().manual_seed(seed), 64, PERIOD).to(device)
    phases = recipe.phases(seed)
    if longest_phase_1 is not None:
        phases[0] = replace(phases[0], steps=longest_phase_1)

    def figures(model: HookedDecoder) -> Figures:
        return repeat_figures(model, test)

    model, record = train(
        model.to(device),
        phases,
        OPTIMISER,
        seed=seed,
        evaluate=figures,
        progress=progress,
        checkpoint=checkpoint,
    )
    return _cropped(model, toy.config), replace(record, config=toy.config.to_dict())


def _cropped(model: HookedDecoder, config: DecoderConfig) -> HookedDecoder:
    """Return the model with the first columns of its context."""
    if model.cfg.n_ctx == config.n_ctx:
        return model
    weights = model.state_dict()
    weights["pos_embed.W_pos"] = weights["pos_embed.W_pos"][: config.n_ctx]
    shorter = HookedDecoder(config, tokenizer=model.tokenizer).to(model.device)
    shorter.load_state_dict(weights)
    return shorter
