"""Induction heads: each query attends to the token that came after the last time its own token was seen.

    score = mean over i of  sum over j of A[i, j+1],   tok[j] = tok[i], j < i - 1,   i with at least one such j

This is prefix matching (Olsson et al., arXiv 2209.11895). The sum counts every earlier occurrence.

Null: the largest of

* the same cells of the control run, in which nothing repeats: whatever position alone, the sink or a taste for recent
  tokens would put there is there too; only the match is gone;
* the cells beside these in the same run, j and j + 2: a head that looks somewhere near the match does not say which
  token came next.

Causal evidence: what an induction head is for is to predict the repeat. So without the induction heads, the loss on
the second copy should rise.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.detectors.cells import Rows, beside, rows_on, same_token
from interp.detectors.detector import Detector, Pattern, Reading, Setting
from interp.detectors.experiments import Experiment, RepeatLoss
from interp.prompts import RepeatedTokens

LEAST_SCORE = 0.3


def cells(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch query_pos key_pos"]:
    """Return where the key is the token after an earlier occurrence of the query's token.

    >>> import torch
    >>> cells(torch.tensor([[7, 8, 7]]))[0].int().tolist()
    [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    """
    return beside(same_token(tokens), 1)


def rows(pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]) -> Rows:
    """Return each query's attention to what came after its token."""
    return rows_on(pattern, cells(tokens))


def score(
    pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head"]:
    """Return each head's prefix-matching score. Raises InputError where no token repeats."""
    return rows(pattern, tokens).mean()


def neighbours(
    pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head"]:
    """Return the larger of the mean attention to the earlier occurrence itself and to two after it."""
    seen = same_token(tokens)
    n_queries = cells(tokens).any(-1).sum(-1)[:, None]
    either = [rows_on(pattern, beside(seen, offset)).attention.sum(-1) / n_queries for offset in (0, 2)]
    return torch.maximum(*either)


class Induction(Detector):
    """See the top of this file."""

    name = "induction"
    looks = "look at what followed this token last time"
    short = "induction"
    least_score = LEAST_SCORE

    def on_repeated(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        return Reading(rows(pattern, prompts.repeated), null=neighbours(pattern, prompts.repeated))

    def on_control(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        return Reading(null=score(pattern, prompts.repeated))

    def experiment(self, setting: Setting) -> Experiment | str:
        return RepeatLoss(setting)
