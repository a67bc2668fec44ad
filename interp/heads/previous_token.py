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

import torch
from jaxtyping import Float
from torch import Tensor

from interp.heads.cells import Rows
from interp.sites import Head

LEAST_SCORE = 0.3


def rows(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Rows:
    """Return each query's attention to the token before, of queries i >= 1 + n_prepended."""
    return _stripe(pattern, 1, n_prepended)


def score(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Float[Tensor, "batch head"]:
    """Return each head's mean of ``rows``."""
    return rows(pattern, n_prepended).mean()


def null(pattern: Float[Tensor, "batch head query_pos key_pos"], n_prepended: int) -> Float[Tensor, "batch head"]:
    """Return the larger of the mean A[i, i] and the mean A[i, i-2], over the same queries."""
    return torch.maximum(*(_stripe(pattern, offset, n_prepended).mean() for offset in (0, 2)))


def _stripe(pattern: Tensor, offset: int, n_prepended: int) -> Rows:
    """Return A[i, i - offset] of the queries i > n_prepended; a prepended key counts as no attention."""
    batch, n_heads, n, _ = pattern.shape
    attention = pattern.new_zeros(batch, n_heads, n)
    by_query = pattern.diagonal(-offset, dim1=-2, dim2=-1)
    first = max(n_prepended + 1, n_prepended + offset)
    attention[..., first:] = by_query[..., first - offset :]
    counted = torch.arange(n, device=pattern.device) > n_prepended
    return Rows(attention, counted.expand(batch, -1))


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
