"""Attention that falls on chosen cells of a pattern."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.errors import InputError


def same_token(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch query_pos key_pos"]:
    """Return where the key is an earlier occurrence of the query's token: tok[j] = tok[i], j < i."""
    return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)


def beside(cells: Bool[Tensor, "batch query_pos key_pos"], offset: int) -> Bool[Tensor, "batch query_pos key_pos"]:
    """Return where the key is ``offset`` columns after a cell's, and before the query."""
    n = cells.shape[-1]
    moved = F.pad(cells, (offset, 0))[..., :n] if offset > 0 else F.pad(cells, (0, -offset))[..., -offset:]
    return moved.tril(-1)


@dataclass(frozen=True)
class Rows:
    """What each query of a pattern gives to the cells in question.

    Attributes:
        attention: summed over the query's cells.
        counted: the queries that have cells; the same for every head.
    """

    attention: Float[Tensor, "batch head query_pos"]
    counted: Bool[Tensor, "batch query_pos"]

    def mean(self) -> Float[Tensor, "batch head"]:
        """Return the mean over the queries that count.

        Raises:
            InputError: a sequence in which no query has a cell, so that there is no score.
        """
        n_queries = self.counted.sum(-1)
        if not (n_queries > 0).all():
            raise InputError("a sequence in which no token repeats has no such score; give sequences with repeats")
        return self._sum(self.attention, self.counted) / n_queries[:, None]

    def by_third(self) -> tuple[Float[Tensor, "batch head third"], Float[Tensor, "batch third"]]:
        """Return the sums over the queries that lie in each third of the columns, and how many these are."""
        n = self.counted.shape[-1]
        parts = [slice(round(i * n / 3), round((i + 1) * n / 3)) for i in range(3)]
        sums = [self._sum(self.attention[..., part], self.counted[..., part]) for part in parts]
        return torch.stack(sums, -1), torch.stack([self.counted[:, part].sum(-1) for part in parts], -1).float()

    def _sum(self, attention: Tensor, counted: Tensor) -> Tensor:
        return einsum(attention, counted.to(attention.dtype), "batch head q, batch q -> batch head")


def stripe(pattern: Float[Tensor, "batch head query_pos key_pos"], offset: int, n_prepended: int) -> Rows:
    """Return A[i, i - offset] of the queries i > n_prepended; a prepended key counts as no attention."""
    batch, n_heads, n, _ = pattern.shape
    attention = pattern.new_zeros(batch, n_heads, n)
    by_query = pattern.diagonal(-offset, dim1=-2, dim2=-1)
    first = max(n_prepended + 1, n_prepended + offset)
    attention[..., first:] = by_query[..., first - offset :]
    counted = torch.arange(n, device=pattern.device) > n_prepended
    return Rows(attention, counted.expand(batch, -1))


def rows_on(
    pattern: Float[Tensor, "batch head query_pos key_pos"], cells: Bool[Tensor, "batch query_pos key_pos"]
) -> Rows:
    """Return the attention summed over each query's cells.

    The sum, not the mean, over a query's cells: a head that divides its attention between two right answers is as
    right as one that picks one of them.

    >>> import torch
    >>> pattern = torch.tensor([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]]])
    >>> rows_on(pattern, torch.tensor([[[0, 0, 0], [0, 0, 0], [1, 1, 0]]]).bool()).mean()
    tensor([[0.5000]])
    """
    on_cells = einsum(pattern, cells.to(pattern.dtype), "batch head q k, batch q k -> batch head q")
    return Rows(on_cells, cells.any(-1))
