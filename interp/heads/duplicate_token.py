"""Duplicate-token heads: each query attends to earlier occurrences of its own token.

    score = mean over i of  sum over j of A[i, j],   tok[j] = tok[i], j < i,   i with at least one such j

Source: the IOI paper (arXiv 2211.00593), where they tell later heads that a name was said before.

Null: as for induction, the same cells of the control run, in which nothing repeats.

Causal evidence: the rise in repeat loss without them. This is a weaker prediction than for induction heads: a
duplicate-token head says that and where a token was seen, which some induction circuits use (through the queries) and
others do not. An effect near that of the random sets does not speak against the head, only against its use here.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from interp.heads.cells import attention_on, same_token
from interp.heads.knockout import Knockout, RandomSets, repeat_loss_evidence
from interp.results import CausalEvidence
from interp.sites import Head

LEAST_SCORE = 0.3


def score(
    pattern: Float[Tensor, "batch head query_pos key_pos"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch head"]:
    """Return each head's attention to earlier occurrences. Raises InputError where no token repeats."""
    return attention_on(pattern, same_token(tokens))


def causal(
    knockout: Knockout, heads: Sequence[Head], random_sets: RandomSets, singly: Sequence[Head]
) -> tuple[CausalEvidence, dict[Head, float]]:
    """Return the rise in repeat loss without ``heads``, and without each of ``singly``."""
    return repeat_loss_evidence("duplicate_token", knockout, heads, random_sets, singly)
