"""Head scores by loops over queries and keys, as the definitions are written in words."""

from __future__ import annotations

import torch
from torch import Tensor


def previous_token(pattern: Tensor, n_prepended: int) -> Tensor:
    """Mean over queries whose token before is not prepended."""
    batch, heads, n, _ = pattern.shape
    out = torch.zeros(batch, heads)
    for b in range(batch):
        for h in range(heads):
            out[b, h] = torch.stack([pattern[b, h, i, i - 1] for i in range(1, n) if i - 1 >= n_prepended]).mean()
    return out


def neighbouring_stripes(pattern: Tensor, n_prepended: int) -> Tensor:
    """The larger of the mean attention to oneself and to two back, over the same queries."""
    batch, heads, n, _ = pattern.shape
    out = torch.zeros(batch, heads)
    queries = [i for i in range(1, n) if i - 1 >= n_prepended]
    for b in range(batch):
        for h in range(heads):
            itself = sum(float(pattern[b, h, i, i]) for i in queries) / len(queries)
            two_back = sum(float(pattern[b, h, i, i - 2]) for i in queries if i - 2 >= n_prepended) / len(queries)
            out[b, h] = max(itself, two_back)
    return out


def induction(pattern: Tensor, tokens: Tensor) -> Tensor:
    """Sum over j + 1 with tok[j] = tok[i], j < i - 1; mean over queries that have such a j."""
    return _matches(pattern, tokens, shift=1)


def duplicate_token(pattern: Tensor, tokens: Tensor) -> Tensor:
    """Sum over j with tok[j] = tok[i], j < i; mean over queries that have such a j."""
    return _matches(pattern, tokens, shift=0)


def _matches(pattern: Tensor, tokens: Tensor, shift: int) -> Tensor:
    batch, heads, n, _ = pattern.shape
    out = torch.zeros(batch, heads)
    for b in range(batch):
        for h in range(heads):
            sums = []
            for i in range(n):
                js = [j for j in range(n) if j < i - shift and tokens[b, j] == tokens[b, i]]
                if js:
                    sums.append(sum(float(pattern[b, h, i, j + shift]) for j in js))
            out[b, h] = sum(sums) / len(sums)
    return out


def sink(pattern: Tensor, window: int) -> Tensor:
    """Mean over the first ``window`` queries of their attention to the first token."""
    batch, heads, n, _ = pattern.shape
    out = torch.zeros(batch, heads)
    for b in range(batch):
        for h in range(heads):
            out[b, h] = sum(float(pattern[b, h, t, 0]) for t in range(min(n, window))) / min(n, window)
    return out
