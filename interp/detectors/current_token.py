"""Current-token heads: each query attends to its own position.

    score = the smaller of mean A[i, i] over the queries whose token is new, and over those whose token came before

Both, for heads of other kinds often rest on themselves where they find nothing. The first column, which sees itself
alone, does not count (nor does BOS).

Null: the largest of the stripes behind, A[i, i-1] and A[i, i-2], which a taste for recent tokens fills as much, and of
the attention to earlier occurrences of the same token.

Where a sliding window is so small that uniform attention within it reaches the least score, no verdict is given.

Causal evidence: what such a head writes is a function of its own token, as an MLP's is. So without these heads the
loss should rise, on text where the model reads it; and there must be something to lose, a loss below a uniform guess's.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from interp.detectors import duplicate_token
from interp.detectors.cells import stripe
from interp.detectors.detector import Detector, Pattern, Reading, Setting
from interp.detectors.experiments import Experiment, loss_on_text
from interp.prompts import RepeatedTokens
from models.config import StackConfig


class CurrentToken(Detector):
    """See the top of this file."""

    name = "current_token"
    looks = "look at the token they are at"
    short = "current"

    def on_repeated(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        own, *behind = (stripe(pattern, offset, prompts.n_prepended) for offset in (0, 1, 2))
        parts = [replace(own, counted=own.counted & some).mean() for some in (prompts.again, ~prompts.again)]
        confounds = [*(rows.mean() for rows in behind), duplicate_token.score(pattern, prompts.repeated)]
        return Reading(own, score=torch.minimum(*parts), null=torch.stack(confounds).amax(0))

    def undecidable(self, cfg: StackConfig, n_tokens: int) -> str | None:
        window = cfg.narrowest_window
        if window is None or 1 / window < self.least_score:
            return None
        return (
            f"a window of {window} tokens: attention spread evenly over it gives each token its own {1 / window:.2f}, "
            f"against a least score of {self.least_score}, so no head is called a current-token head"
        )

    def experiment(self, setting: Setting) -> Experiment | str:
        return loss_on_text(setting)
