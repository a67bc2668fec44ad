"""Copies that look like weights: a write to one would change nothing, so it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.errors import InputError

_ALLOWED = {"requires_grad_", "share_memory_"}  # end in an underscore and write no element


class ReadOnly(Tensor):
    """A tensor that refuses to be written to, and so do its views; whatever is computed from it is a plain tensor.

    >>> copy = read_only(torch.ones(2, 3))
    >>> type(copy[0]).__name__, type(copy + 1).__name__, type(copy.clone()).__name__
    ('ReadOnly', 'Tensor', 'Tensor')
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        targets = _tensors(kwargs.get("out"))
        if _writes(name):
            targets += _tensors(args[:1])
        if any(isinstance(target, ReadOnly) for target in targets):
            raise InputError(
                "this tensor is a copy, stacked from the layers or filled in for a bias that the model lacks: a write "
                "would not reach the model. Write to a layer's own weight, such as model.blocks[0].attn.W_Q, or to a "
                "clone()"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        own = [value for value in _tensors((*args, *kwargs.values())) if isinstance(value, ReadOnly)]
        return _guarded(result, own)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.detach().clone()


def read_only(copy: Tensor) -> Tensor:
    """Return the tensor, refusing writes."""
    return copy.as_subclass(ReadOnly)


def _writes(name: str) -> bool:
    if name == "__setitem__":
        return True
    if name.startswith("__"):
        return name.startswith("__i") and name not in ("__invert__", "__index__", "__int__", "__iter__")
    return name.endswith("_") and name not in _ALLOWED


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    return [one for value in values for one in _tensors(value)] if isinstance(values, (tuple, list)) else []


def _guarded(result: Any, own: list[ReadOnly]) -> Any:
    """Return a result, its tensors plain where they have memory of their own and read-only where they share."""
    if isinstance(result, np.ndarray):
        result.flags.writeable = False
        return result
    if isinstance(result, Tensor):
        shared = any(_share(result, one) for one in own)
        kind = ReadOnly if shared else Tensor
        return result if type(result) is kind or isinstance(result, torch.nn.Parameter) else result.as_subclass(kind)
    if type(result) in (tuple, list):
        return type(result)(_guarded(one, own) for one in result)
    return result


def _share(a: Tensor, b: Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return a.untyped_storage()._cdata == b.untyped_storage()._cdata
        except (NotImplementedError, RuntimeError):  # inside a transform of torch.func there is no memory to write to
            return False
