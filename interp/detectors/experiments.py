"""What is measured when heads are taken out: experiments that several kinds of head share.

A positive effect is what the kind's definition predicts. There must be something to lose: a model that predicts the
second copy no better than fresh tokens in its place loses nothing that induction gave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from interp.interventions.head_sets import TakenOut
from interp.prompts.corpus import text_sequences
from interp.sites import Head
from models.errors import InputError

if TYPE_CHECKING:
    from interp.detectors.detector import Setting

N_SEQUENCES = 8
TEXT_TOKENS = 48

Progress = Callable[[int, int], None]
Sets = Sequence[Sequence[Head]]


@dataclass(frozen=True)
class Outcome:
    """What an experiment gives.

    Attributes:
        effects: of each set, on each sequence.
        intact: the quantity in the intact run, mean over sequences.
        to_lose: how much of it is there to lose, per sequence; None where the quantity has no such bound.
    """

    effects: Float[np.ndarray, "set sequence"]
    intact: float
    to_lose: Float[np.ndarray, "sequence"] | None


class Experiment(ABC):
    """Sets of heads taken out, one after the other; effects are in ``unit``."""

    unit: ClassVar[str] = "nats"

    @property
    def how(self) -> str:
        """What is done to heads, to follow "when all heads are"."""
        return "mean-ablated"

    @property
    @abstractmethod
    def what(self) -> str:
        """What is measured, in words."""

    def takes(self, head: Head) -> bool:
        """Return whether taking out this head alone can have an effect."""
        return True

    @abstractmethod
    def run(self, sets: Sets, progress: Progress | None = None) -> Outcome:
        """Take out every set."""


@dataclass(frozen=True)
class RepeatLoss(Experiment):
    """The rise of the loss on the second copy; its first token has nothing to be copied from."""

    setting: Setting

    @property
    def what(self) -> str:
        return "rise in the loss on the second copy"

    def run(self, sets: Sets, progress: Progress | None = None) -> Outcome:
        prompts = self.setting.prompts
        repeated = self._losses(prompts.repeated, [(), *sets], progress)
        control = self._losses(prompts.control, [()], None)[0]
        return Outcome(repeated[1:] - repeated[0], float(repeated[0].mean()), control - repeated[0])

    def _losses(self, tokens: Tensor, sets: Sets, progress: Progress | None) -> Float[np.ndarray, "set sequence"]:
        prompts = self.setting.prompts
        ends = [start + n for start, n in zip(prompts.starts, prompts.lengths, strict=True)]
        first, last = min(prompts.starts), max(ends) - 1
        out = TakenOut(self.setting.model, tokens, self.setting.mean_z, progress)
        losses = out.losses(sets, slice(first, last)).numpy()
        spans = [slice(start - first, end - 1 - first) for start, end in zip(prompts.starts, ends, strict=True)]
        return np.stack([losses[:, row, span].mean(-1) for row, span in enumerate(spans)], axis=-1)


@dataclass(frozen=True)
class LossOnText(Experiment):
    """The rise of the loss on text.

    Attributes:
        setting: gives the model, and what stands in for heads.
        tokens: what is read.
        about: it, in words.
        cut: heads are cut off from the first token, instead of replaced by their mean.
    """

    setting: Setting
    tokens: Int[Tensor, "sequence pos"]
    about: str
    cut: bool

    @property
    def what(self) -> str:
        return f"rise in the loss on {self.about}"

    @property
    def how(self) -> str:
        return "cut off from the first token" if self.cut else "mean-ablated"

    def run(self, sets: Sets, progress: Progress | None = None) -> Outcome:
        model, mean_z = self.setting.model, None if self.cut else self.setting.mean_z
        losses = TakenOut(model, self.tokens, mean_z, progress).losses([(), *sets], slice(None)).mean(-1).numpy()
        to_lose = None if self.cut else log(model.cfg.d_vocab) - losses[0]
        return Outcome(losses[1:] - losses[0], float(losses[0].mean()), to_lose)


def loss_on_text(setting: Setting, *, cut: bool = False) -> LossOnText:
    """Return the experiment on text; on repeated random tokens where the model reads none."""
    try:
        text = text_sequences(setting.model, N_SEQUENCES, TEXT_TOKENS)
    except InputError:
        about = "repeated random tokens (the model reads no text)"
        return LossOnText(setting, setting.prompts.repeated, about, cut)
    return LossOnText(setting, text, "text", cut)
