"""Duplicate-token heads: each query attends to earlier occurrences of its own token.

    score = mean over i of  sum over j of A[i, j],   tok[j] = tok[i], j < i,   i with at least one such j

Source: the IOI paper (arXiv 2211.00593), where they tell later heads that a name was said before.

Null: the largest of the same cells of the control run, in which nothing repeats, and of the cells one before and one
after in the same run.

Causal evidence: the rise in repeat loss without them. This is a weaker prediction than for induction heads: a
duplicate-token head says that and where a token was seen, which some induction circuits use (through the queries) and
others do not. No effect does not speak against the pattern, only against its use here.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.detectors.cells import Rows, beside, rows_on, same_token
from interp.detectors.detector import Detector, Pattern, Reading, Setting
from interp.detectors.experiments import Experiment, RepeatLoss
from interp.prompts import RepeatedTokens

LEAST_SCORE = 0.3


def rows(pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]) -> Rows:
    """Return each query's attention to earlier occurrences of its token."""
    return rows_on(pattern, same_token(tokens))


def score(
    pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head"]:
    """Return each head's mean of ``rows``. Raises InputError where no token repeats."""
    return rows(pattern, tokens).mean()


def neighbours(
    pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head"]:
    """Return the larger of the mean attention to one before and one after the earlier occurrences."""
    cells = same_token(tokens)
    n_queries = cells.any(-1).sum(-1)[:, None]
    either = [rows_on(pattern, beside(cells, offset)).attention.sum(-1) / n_queries for offset in (-1, 1)]
    return torch.maximum(*either)


class DuplicateToken(Detector):
    """See the top of this file."""

    name = "duplicate_token"
    looks = "look at earlier copies of the same token"
    short = "duplicate"
    least_score = LEAST_SCORE

    def on_repeated(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        return Reading(rows(pattern, prompts.repeated), null=neighbours(pattern, prompts.repeated))

    def on_control(self, pattern: Pattern, prompts: RepeatedTokens) -> Reading:
        return Reading(null=score(pattern, prompts.repeated))

    def experiment(self, setting: Setting) -> Experiment | str:
        return RepeatLoss(setting)
