"""Attention sinks: a head rests on the first token.

    alpha_1(s) = mean over queries t of A[t, 1] on sequence s                       (positions from 1, as in the paper)
    score      = share of sequences with alpha_1(s) > 0.3, on T = 64 tokens (or all, if fewer) in which nothing repeats

Source: Gu et al. (arXiv 2410.10781), with their epsilon and T; they publish the mean share over the heads of a model. A
verdict asks for a share above one half, with the interval of a share (Clopper and Pearson). Heads of the same share are
ranked by alpha_1.

Description, which decides nothing: alpha_1; the norm of the first token's value over the others' (they and Guo et al.,
arXiv 2410.13835, find it drained, so that resting writes little; a head that writes nothing there has 0); and dormancy,
how much of that attention leaves for queries whose token has been seen before.

Uniform causal attention gives alpha_1 = H_T / T with H_T = 1 + 1/2 + ... + 1/T: .074 at T = 64, but .211 at T = 16 and
.314 at T = 9. Below 16 tokens, therefore, no verdict is given.

Causal evidence: the heads' edges to the first token are cut, the rest of each row made to sum to 1 again. What a sink
is for is to let a head write next to nothing; so without it the loss should rise, on text where the model reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.detectors.cells import Rows
from interp.detectors.detector import Detector, Ends, Pattern, PerHead, Reading, Setting
from interp.detectors.experiments import Experiment, loss_on_text
from interp.detectors.measure import BATCH, Measured, each_pattern
from interp.detectors.statistics import share_interval
from interp.prompts import RepeatedTokens
from interp.prompts.corpus import text_sequences
from interp.sites import Head
from models.config import StackConfig
from models.errors import InputError
from models.protocol import HookedModel

EPSILON = 0.3  # of attention
LEAST_SHARE = 0.5
WINDOW = 64
SHORTEST = 16


def alpha(pattern: Float[Tensor, "batch head query_pos key_pos"]) -> Float[Tensor, "batch head"]:
    """Return alpha_1 of each sequence, over its first 64 tokens."""
    return pattern[..., :WINDOW, 0].mean(-1)


def uniform(n_tokens: int) -> float:
    """Return alpha_1 of uniform causal attention, H_T / T.

    >>> round(uniform(64), 3), round(uniform(9), 3)
    (0.074, 0.314)
    """
    return sum(1 / t for t in range(1, n_tokens + 1)) / n_tokens


def rests(alphas: Float[np.ndarray, "sequence layer head"]) -> Float[np.ndarray, "sequence layer head"]:
    """Return 1 where a head is a sink on a sequence, else 0."""
    return (alphas > EPSILON).astype(float)


def warning(n_tokens: int) -> str | None:
    """Return why ``n_tokens`` are too few for a verdict, or None where they are enough."""
    if n_tokens >= SHORTEST:
        return None
    return (
        f"sink scores on {n_tokens} tokens: uniform attention alone gives {uniform(n_tokens):.2f} there, against a "
        f"threshold of {EPSILON}, so no head is called a sink; use at least {SHORTEST} tokens"
    )


class Sink(Detector):
    """See the top of this file."""

    name = "sink"
    looks = "rest on the first token while nothing matches"
    short = "sink"
    least_score = LEAST_SHARE
    score_name = "share"
    bar_of_thirds = EPSILON
    asides: ClassVar[Mapping[str, str]] = {"alpha_1": "alpha", "value_norm_ratio": "value"}

    @property
    def threshold(self) -> str:
        return f"alpha_1 > {EPSILON} on more than {LEAST_SHARE:.0%} of sequences"

    def on_repeated(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        return Reading(extra={"active": _resting(pattern, prompts.again)})

    def on_control(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        alphas, every = alpha(pattern), torch.ones_like(prompts.again)
        extra = {"alpha": alphas, "dormant": _resting(pattern, prompts.again)}
        return Reading(Rows(pattern[..., 0], every), score=alphas, extra=extra)

    def on_values(self, values: Float[Tensor, "batch pos head d_head"]) -> Mapping[str, Float[Tensor, "batch head"]]:
        norms = values.norm(dim=-1)
        return {"value_first": norms[:, 0], "value_others": norms[:, 1:].mean(1)}

    def of_sequences(self, means: PerHead) -> PerHead:
        return rests(means)

    def undecidable(self, cfg: StackConfig, n_tokens: int) -> str | None:
        return warning(n_tokens)

    def bars(self, nulls: PerHead) -> PerHead:
        return np.full_like(nulls, LEAST_SHARE)

    def intervals(self, scores: PerHead, bar: PerHead, seed: int) -> tuple[Ends, Ends]:
        low, high = share_interval(scores.sum(0), len(scores))
        return (low, high), (low - LEAST_SHARE, high - LEAST_SHARE)

    def rank(self, measured: Measured) -> Float[np.ndarray, "layer head"]:
        """Return the share, and among heads of the same share their attention."""
        return measured.mean(self.name) + 1e-6 * measured.extra["alpha"].mean(0)

    def of_model(self, model: HookedModel, measured: Measured) -> dict[str, float]:
        """Return the share of heads that are sinks, as Gu et al. publish it, on random tokens and on text."""
        shares = {"random": float(measured.scores[self.name].mean())}
        try:
            text = text_sequences(model, BATCH, WINDOW)
        except InputError:
            return shares
        return shares | {"text": float(rests(each_pattern(model, text, alpha)).mean())}

    def details(self, measured: Measured, head: Head) -> dict[str, float]:
        means = {name: float(values.mean(0)[head]) for name, values in measured.extra.items()}
        # a head whose values are all 0 writes as little there as elsewhere: its first value is as long as the others
        longer = means["value_others"] if means["value_others"] > 0 else 1.0
        return {
            "alpha_1": means["alpha"],
            "value_norm_ratio": 0.0 if means["value_first"] == 0 else means["value_first"] / longer,
            "dormant": means["dormant"],
            "active": means["active"],
        }

    def experiment(self, setting: Setting) -> Experiment | str:
        return loss_on_text(setting, cut=True)


def _resting(pattern: Pattern, queries: Bool[Tensor, "batch pos"]) -> Float[Tensor, "batch head"]:
    """Return the mean attention of ``queries`` to the first token."""
    return Rows(pattern[..., 0], queries).mean()
