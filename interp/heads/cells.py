"""Attention that falls on chosen cells of a pattern."""

from __future__ import annotations

from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.errors import InputError


def same_token(tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch query_pos key_pos"]:
    """Return where the key is an earlier occurrence of the query's token: tok[j] = tok[i], j < i."""
    return (tokens[:, :, None] == tokens[:, None, :]).tril(-1)


def attention_on(
    pattern: Float[Tensor, "batch head query_pos key_pos"], cells: Bool[Tensor, "batch query_pos key_pos"]
) -> Float[Tensor, "batch head"]:
    """Return the attention summed over a query's cells, averaged over the queries that have any.

    The sum, not the mean, over a query's cells: a head that divides its attention between two right answers is as
    right as one that picks one of them.

    Raises:
        InputError: a sequence in which no query has a cell, so that there is no score.

    >>> import torch
    >>> pattern = torch.tensor([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.3, 0.5]]]])
    >>> attention_on(pattern, torch.tensor([[[0, 0, 0], [0, 0, 0], [1, 1, 0]]]).bool())
    tensor([[0.5000]])
    """
    n_queries = cells.any(-1).sum(-1)
    if not (n_queries > 0).all():
        raise InputError("a sequence in which no token repeats has no such score; give sequences with repeats")
    on_cells = einsum(pattern, cells.to(pattern.dtype), "batch head q k, batch q k -> batch head")
    return on_cells / n_queries[:, None]
