"""Who may see whom: the one place where masks are made.

A query at column i sees the key at column j when j <= i (causal), j is a real token (padding), and fewer than
``window`` real tokens stand between them, the query counted (sliding window).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class AttentionMask:
    """Which (query, key) pairs are allowed.

    ``allowed`` is None where the kernel's own mask says it all: the plain triangle if ``causal``, else everything.
    """

    allowed: Bool[Tensor, "batch 1 query_pos key_pos"] | None
    causal: bool

    def apply(self, scores: Float[Tensor, "batch head query_pos key_pos"]) -> Float[Tensor, "..."]:
        """Set forbidden scores to -inf."""
        if self.allowed is not None:
            return scores.masked_fill(~self.allowed, -torch.inf)
        if self.causal:
            n_query, n_key = scores.shape[-2:]
            future = torch.ones(n_query, n_key, dtype=torch.bool, device=scores.device).triu(1)
            return scores.masked_fill(future, -torch.inf)
        return scores

    def rows(self, columns: Int[Tensor, "row"], n_key: int) -> AttentionMask:
        """Return the mask of some query columns against the first ``n_key`` keys."""
        if self.allowed is not None:
            return AttentionMask(self.allowed[:, :, columns, :n_key], causal=False)
        keys = torch.arange(n_key, device=columns.device)
        allowed = columns[:, None] >= keys
        return AttentionMask(None if not self.causal or bool(allowed.all()) else allowed[None, None], causal=False)


EVERYTHING = AttentionMask(None, causal=False)


def causal_mask(
    n_query: int,
    n_key: int,
    *,
    device: torch.device,
    real: Bool[Tensor, "batch key_pos"] | None = None,
    window: int | None = None,
) -> AttentionMask:
    """Return the mask of the last ``n_query`` of ``n_key`` columns.

    A padded query sees itself, so that its row is finite; no real query sees it.

    >>> causal_mask(1, 5, device=torch.device("cpu"))
    AttentionMask(allowed=None, causal=False)
    """
    if window is not None and window >= n_key:
        window = None
    if real is None and window is None:
        if n_query == n_key:
            return AttentionMask(None, causal=True)
        if n_query == 1:
            return EVERYTHING
    keys = torch.arange(n_key, device=device)
    queries = keys[n_key - n_query :]
    distance = queries[:, None] - keys
    allowed = distance >= 0
    if window is not None:
        positions = keys if real is None else real.long().cumsum(-1)  # from 1; only differences count
        allowed = allowed & (positions[..., n_key - n_query :, None] - positions[..., None, :] < window)
    if real is None:
        return AttentionMask(allowed[None, None], causal=False)
    allowed = (allowed & real[:, None]) | (distance == 0)
    return AttentionMask(allowed[:, None], causal=False)


def padding_mask(real: Bool[Tensor, "batch key_pos"] | None) -> AttentionMask:
    """Return the mask that lets every query see every real key: an encoder's, and a cross-attention's."""
    return EVERYTHING if real is None else AttentionMask(real[:, None, None, :], causal=False)
