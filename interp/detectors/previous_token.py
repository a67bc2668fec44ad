"""Previous-token heads: each query attends to the token before it.

    score = mean over i of A[i, i-1],   i >= 1; i >= 2 where BOS is prepended, or attention to BOS as a sink leaks in

Source: the IOI paper (arXiv 2211.00593), which finds them on repeated random tokens.

Null: the larger of the stripes beside it, A[i, i] and A[i, i-2]. A plain preference for recent tokens, or a window of a
few tokens, gives the stripe at i-1 too, but then its neighbours get as much or nearly so.

Where a sliding window is so small that uniform attention within it reaches the least score, the pattern is forced, and
no verdict is given.

Causal evidence: an induction head finds "the token that came after this one" through keys that carry the token before
them, written by a previous-token head (Olsson et al., arXiv 2209.11895). So without the previous-token heads, the
induction scores in later layers should fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.detectors import induction
from interp.detectors.cells import Rows, stripe
from interp.detectors.detector import Detector, Pattern, Reading, Setting
from interp.detectors.experiments import Experiment, Outcome, Progress, Sets
from interp.interventions.head_sets import TakenOut
from interp.prompts import RepeatedTokens
from interp.sites import Head
from models.config import StackConfig

LEAST_SCORE = 0.3


def rows(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Rows:
    """Return each query's attention to the token before, of queries i >= 1 + n_prepended."""
    return stripe(pattern, 1, n_prepended)


def score(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Float[Tensor, "batch head"]:
    """Return each head's mean of ``rows``."""
    return rows(pattern, n_prepended).mean()


def null(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Float[Tensor, "batch head"]:
    """Return the larger of the mean A[i, i] and the mean A[i, i-2], over the same queries."""
    return torch.maximum(*(stripe(pattern, offset, n_prepended).mean() for offset in (0, 2)))


def forced(sliding_window: int | None) -> str | None:
    """Return why a window forces the pattern, or None where it does not.

    >>> forced(3) is None, forced(4) is None
    (False, True)
    """
    if sliding_window is None or 1 / sliding_window < LEAST_SCORE:
        return None
    return (
        f"a window of {sliding_window} tokens: attention spread evenly over it gives the token before "
        f"{1 / sliding_window:.2f}, against a least score of {LEAST_SCORE}, so no head is called a previous-token head"
    )


def receivers(heads: Sequence[Head], induction_heads: Sequence[Head]) -> list[Head]:
    """Return the induction heads that can read from some of ``heads``: those in later layers."""
    first = min(head.layer for head in heads)
    return [head for head in induction_heads if head.layer > first]


@dataclass(frozen=True)
class InductionScore(Experiment):
    """The fall of the induction score of ``readers``, those of them that lie above the set's first head."""

    setting: Setting
    readers: Sequence[Head]

    unit: ClassVar[str] = "attention"

    @property
    def what(self) -> str:
        return f"fall of the mean induction score of {', '.join(map(str, self.readers))}"

    def takes(self, head: Head) -> bool:
        return any(reader.layer > head.layer for reader in self.readers)

    def run(self, sets: Sets, progress: Progress | None = None) -> Outcome:
        """Take out every set; each must have a reader in a later layer than its first head."""
        setting = self.setting
        out = TakenOut(setting.model, setting.prompts.repeated, setting.mean_z, progress)
        scores = out.scores([(), *sets], self.readers, induction.score).numpy()
        effects = []
        for heads, without in zip(sets, scores[1:], strict=True):
            first = min(head.layer for head in heads)
            after = [i for i, reader in enumerate(self.readers) if reader.layer > first]
            effects.append((scores[0] - without)[:, after].mean(-1))
        intact = scores[0].mean(-1)
        return Outcome(np.stack(effects), float(intact.mean()), intact)


class PreviousToken(Detector):
    """See the top of this file."""

    name = "previous_token"
    looks = "look one token back"
    short = "previous"
    least_score = LEAST_SCORE

    def on_repeated(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        return Reading(rows(pattern, prompts.n_prepended), null=null(pattern, prompts.n_prepended))

    def undecidable(self, cfg: StackConfig, n_tokens: int) -> str | None:
        return forced(cfg.narrowest_window)

    def experiment(self, setting: Setting) -> Experiment | str:
        readers = receivers(setting.found[self.name], setting.found["induction"])
        if not readers:
            return (
                "previous-token heads, and no induction head in a later layer that could read them: their effect "
                "is not measured"
            )
        return InductionScore(setting, readers)
