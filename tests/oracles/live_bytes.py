"""Bytes that tensors made within a block hold at the same time: every operation is seen, and every storage counted."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class LiveBytes(TorchDispatchMode):
    """Count live storages of tensors that operations return; ``peak`` is the most bytes alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        inputs = {storage_of(x) for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, torch.Tensor) and storage_of(value) not in inputs:
                self._count(value)
        return out

    def _count(self, value: torch.Tensor) -> None:
        storage, key = value.untyped_storage(), storage_of(value)
        if key in self._alive:
            return
        size = storage.nbytes()
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def storage_of(value: torch.Tensor) -> int:
    """Return what tells one storage from another while both live."""
    return value.untyped_storage()._cdata
