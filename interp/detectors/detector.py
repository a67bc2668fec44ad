"""A detector: all that is particular to one kind of head.

What it looks for, how a pattern is scored, what else would score too (the null), when nothing can be decided, what
should happen when its heads are taken out, and the words for it. ``find_heads``, tables and pages go over the tuple of
detectors in ``interp.detectors.kinds`` and know none of them by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.detectors.cells import Rows
from interp.detectors.statistics import bars, bootstrap_interval
from interp.prompts import RepeatedTokens
from interp.sites import Head
from models.config import StackConfig
from models.protocol import HookedModel

if TYPE_CHECKING:
    from interp.detectors.experiments import Experiment
    from interp.detectors.measure import Measured

PerHead = Float[np.ndarray, "sequence layer head"]
Pattern = Float[Tensor, "batch head query_pos key_pos"]
Ends = tuple[Float[np.ndarray, "layer head"], Float[np.ndarray, "layer head"]]


@dataclass(frozen=True)
class Reading:
    """What one pass says of one layer's heads.

    Attributes:
        rows: what each query gives to what the kind looks at; None where the pass gives none.
        score: ``[batch, head]``; by default the mean of ``rows``.
        null: what confounds give, ``[batch, head]``; None where the pass bears on none.
        extra: description by name, ``[batch, head]``.
    """

    rows: Rows | None = None
    score: Float[Tensor, "batch head"] | None = None
    null: Float[Tensor, "batch head"] | None = None
    extra: Mapping[str, Float[Tensor, "batch head"]] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What an experiment may use.

    Attributes:
        model: a decoder.
        prompts: sequences with blocks that come twice.
        mean_z: what stands in for a head.
        found: the heads of every kind that have its pattern, best first.
    """

    model: HookedModel
    prompts: RepeatedTokens
    mean_z: Float[Tensor, "layer head d_head"]
    found: Mapping[str, Sequence[Head]]


class Detector(ABC):
    """One kind of head.

    Attributes:
        name: of the kind, such as ``previous_token``.
        looks: what its heads do, to follow "they".
        short: its name where there is little room.
        least_score: what a score must exceed, confounds apart.
        score_name: what the score is.
        bar_of_thirds: what the score of a third of the tokens must reach; None for the head's own bar.
        asides: descriptions worth a table's last column, label by name in ``details``.
    """

    name: ClassVar[str]
    looks: ClassVar[str]
    short: ClassVar[str]
    least_score: ClassVar[float] = 0.3
    score_name: ClassVar[str] = "score"
    bar_of_thirds: ClassVar[float | None] = None
    asides: ClassVar[Mapping[str, str]] = {}

    @property
    def threshold(self) -> str:
        """What is asked of a score, in words."""
        return f"score > {self.least_score}, and twice what its confounds give"

    # -- what is measured ----------------------------------------------------------------------------------------

    @abstractmethod
    def on_repeated(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        """Read a layer's pattern on the sequences in which blocks repeat."""

    def on_control(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        """Read a layer's pattern on the controls, in which nothing repeats."""
        return Reading()

    def on_values(self, values: Float[Tensor, "batch pos head d_head"]) -> Mapping[str, Float[Tensor, "batch head"]]:
        """Read the values that each head attends to, on the repeated sequences: description by name."""
        return {}

    def of_sequences(self, means: PerHead) -> PerHead:
        """Return the score of each sequence from what was read of it."""
        return means

    # -- what is decided -----------------------------------------------------------------------------------------

    def undecidable(self, cfg: StackConfig, n_tokens: int) -> str | None:
        """Return why no verdict can be given, or None."""
        return None

    def bars(self, nulls: PerHead) -> PerHead:
        """Return what the score must exceed, sequence by sequence."""
        return bars(nulls, self.least_score)

    def intervals(self, scores: PerHead, bar: PerHead, seed: int) -> tuple[Ends, Ends]:
        """Return the 95 % intervals of the score, and of its excess over the bar."""
        return bootstrap_interval(scores, seed), bootstrap_interval(scores - bar, seed)

    def rank(self, measured: Measured) -> Float[np.ndarray, "layer head"]:
        """Return what heads are ranked by."""
        return measured.mean(self.name)

    def of_model(self, model: HookedModel, measured: Measured) -> dict[str, float]:
        """Return what is published of a whole model for this kind, by name."""
        return {}

    def details(self, measured: Measured, head: Head) -> dict[str, float]:
        """Return description of a head, which decides nothing."""
        return {}

    # -- what should happen without them -------------------------------------------------------------------------

    @abstractmethod
    def experiment(self, setting: Setting) -> Experiment | str:
        """Return what is measured when heads of this kind are taken out, or why it cannot be."""
