"""The keys and values of past tokens, so that a new token is one query against them.

Size: 2 * n_layers * n_kv_heads * n * d_head values per sequence.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from models.errors import CacheError


class LayerKV:
    """The keys and values of one layer; grows by ``append``."""

    def __init__(self) -> None:
        self.k: Float[Tensor, "batch pos kv_head d_head"] | None = None
        self.v: Float[Tensor, "batch pos kv_head d_head"] | None = None

    @property
    def n_columns(self) -> int:
        return 0 if self.k is None else self.k.shape[1]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new columns and return all so far."""
        if self.k is not None and self.v is not None:
            k, v = torch.cat([self.k, k], dim=1), torch.cat([self.v, v], dim=1)
        self.k, self.v = k, v
        return k, v


class KVCache:
    """The keys and values of all layers, and which of the columns seen so far hold real tokens."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [LayerKV() for _ in range(n_layers)]
        self.real: Bool[Tensor, "batch pos"] | None = None
        self.length = 0

    def extend(self, real: Bool[Tensor, "batch pos"] | None, batch: int, n_new: int) -> Bool[Tensor, "..."] | None:
        """Count new columns in; return the mask over all columns, or None where all are real.

        Raises CacheError where the batch differs from the one before, or where a run before this one left some
        layers behind.
        """
        if any(layer.n_columns != self.length for layer in self.layers):
            raise CacheError(
                f"the KV cache counts {self.length} columns and its layers hold {[x.n_columns for x in self.layers]}: "
                "a run with it failed or stopped at a layer; start a new one"
            )
        before = self.layers[0].k
        if before is not None and before.shape[0] != batch:
            raise CacheError(f"the KV cache holds a batch of {before.shape[0]}, the new tokens a batch of {batch}")
        if real is not None or self.real is not None:
            device = real.device if real is not None else self.real.device  # type: ignore[union-attr]
            past = self.real
            if past is None:
                past = torch.ones(batch, self.length, dtype=torch.bool, device=device)
            if real is None:
                real = torch.ones(batch, n_new, dtype=torch.bool, device=device)
            self.real = torch.cat([past, real], dim=1)
        self.length += n_new
        return self.real
