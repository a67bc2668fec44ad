"""Induction heads: each query attends to the token that came after the last time its own token was seen.

    score = mean over i of  sum over j of A[i, j+1],   tok[j] = tok[i], j < i - 1,   i with at least one such j

This is prefix matching (Olsson et al., arXiv 2209.11895). The sum counts every earlier occurrence.

Null: the same cells of the same first half's control run, in which nothing repeats. Whatever position alone, the sink
or a taste for recent tokens would put on these cells is there too; only the match is gone.

Causal evidence: what an induction head is for is to predict the repeat. So without the induction heads, the loss on
the repeated half should rise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.heads.cells import attention_on, same_token
from interp.heads.knockout import Knockout, RandomSets, repeat_loss_evidence
from interp.results import CausalEvidence
from interp.sites import Head

LEAST_SCORE = 0.3


def cells(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch query_pos key_pos"]:
    """Return where the key is the token after an earlier occurrence of the query's token.

    >>> import torch
    >>> cells(torch.tensor([[7, 8, 7]]))[0].int().tolist()
    [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    """
    after = F.pad(same_token(tokens), (1, 0))[..., :-1]
    return after.tril(-1)


def score(
    pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head"]:
    """Return each head's prefix-matching score. Raises InputError where no token repeats."""
    return attention_on(pattern, cells(tokens))


def causal(
    knockout: Knockout, heads: Sequence[Head], random_sets: RandomSets, singly: Sequence[Head]
) -> tuple[CausalEvidence, dict[Head, float]]:
    """Return the rise in repeat loss without ``heads``, and without each of ``singly``."""
    return repeat_loss_evidence("induction", knockout, heads, random_sets, singly)
