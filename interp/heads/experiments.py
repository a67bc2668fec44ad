"""What is measured when heads are taken out: one experiment per kind of head.

=================  ===============================  ==================================================================
kind               the heads are                    effect, per sequence
=================  ===============================  ==================================================================
induction,         replaced by their mean z         rise of the loss on the second copy, from its second token on
duplicate token
previous token     replaced by their mean z         fall of the induction score of the induction heads in later layers
sink               cut off from the first token,    rise of the loss, on text where the model reads it
                   the rest renormalised
=================  ===============================  ==================================================================

A positive effect is what the kind's definition predicts. There must be something to lose: a model that predicts the
second copy no better than fresh tokens in its place loses nothing that these heads gave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.heads import induction
from interp.interventions.head_sets import TakenOut
from interp.prompts import RepeatedTokens
from interp.sites import Head
from models.protocol import HookedModel

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


@dataclass(frozen=True)
class RepeatLoss:
    """The rise of the loss on the second copy; its first token has nothing to be copied from."""

    model: HookedModel
    prompts: RepeatedTokens
    mean_z: Float[Tensor, "layer head d_head"]

    what = "rise in the loss on the second copy"
    how = "mean-ablated"
    unit = "nats"

    def run(self, sets: Sets, progress: Progress | None = None) -> Outcome:
        """Take out every set."""
        repeated = self._losses(self.prompts.repeated, [(), *sets], progress)
        control = self._losses(self.prompts.control, [()], None)[0]
        return Outcome(repeated[1:] - repeated[0], float(repeated[0].mean()), control - repeated[0])

    def _losses(self, tokens: Tensor, sets: Sets, progress: Progress | None) -> Float[np.ndarray, "set sequence"]:
        ends = [start + n for start, n in zip(self.prompts.starts, self.prompts.lengths, strict=True)]
        first, last = min(self.prompts.starts), max(ends) - 1
        out = TakenOut(self.model, tokens, self.mean_z, progress)
        losses = out.losses(sets, slice(first, last)).numpy()
        spans = [slice(start - first, end - 1 - first) for start, end in zip(self.prompts.starts, ends, strict=True)]
        return np.stack([losses[:, row, span].mean(-1) for row, span in enumerate(spans)], axis=-1)


@dataclass(frozen=True)
class InductionScore:
    """The fall of the induction score of ``readers``, those of them that lie above the set's first head."""

    model: HookedModel
    prompts: RepeatedTokens
    mean_z: Float[Tensor, "layer head d_head"]
    readers: Sequence[Head]

    how = "mean-ablated"
    unit = "attention"

    @property
    def what(self) -> str:
        """What is measured, in words."""
        return f"fall of the mean induction score of {', '.join(map(str, self.readers))}"

    def run(self, sets: Sets, progress: Progress | None = None) -> Outcome:
        """Take out every set; each must have a reader in a later layer than its first head."""
        out = TakenOut(self.model, self.prompts.repeated, self.mean_z, progress)
        scores = out.scores([(), *sets], self.readers, induction.score).numpy()
        effects = []
        for heads, without in zip(sets, scores[1:], strict=True):
            first = min(head.layer for head in heads)
            after = [i for i, reader in enumerate(self.readers) if reader.layer > first]
            effects.append((scores[0] - without)[:, after].mean(-1))
        intact = scores[0].mean(-1)
        return Outcome(np.stack(effects), float(intact.mean()), intact)


@dataclass(frozen=True)
class LossWithoutRest:
    """The rise of the loss when heads are cut off from the first token."""

    model: HookedModel
    tokens: Float[Tensor, "sequence pos"]
    about: str

    how = "cut off from the first token"
    unit = "nats"

    @property
    def what(self) -> str:
        """What is measured, in words."""
        return f"rise in the loss on {self.about}"

    def run(self, sets: Sets, progress: Progress | None = None) -> Outcome:
        """Cut off every set."""
        losses = TakenOut(self.model, self.tokens, None, progress).losses([(), *sets], slice(None)).mean(-1).numpy()
        return Outcome(losses[1:] - losses[0], float(losses[0].mean()), None)


Experiment = RepeatLoss | InductionScore | LossWithoutRest
