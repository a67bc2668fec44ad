"""What users hand over, made into what the tools compute with, or refused: ids and whole numbers.

A float or a bool is never an id or a count: PyTorch would round ``3.9`` to 3 and take ``True`` for 1 in silence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from models.errors import InputError


def as_ids(given: Any, what: str) -> Int[Tensor, "..."]:
    """Return whole numbers as a tensor of int64.

    Args:
        given: an int, or a list, tuple, range, array or tensor of ints, of any depth.
        what: its name in messages.

    Raises:
        InputError: floats, bools, text, rows of different length, or something else.

    >>> as_ids([[1, 2], [3, 4]], "ids").shape, as_ids(np.int64(3), "ids").item()
    (torch.Size([2, 2]), 3)
    """
    if isinstance(given, Tensor):
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise InputError(f"{what}: got a tensor of {given.dtype}; expected integers")
        return given.long()
    array = _array(given, what)
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"{what} is {_shown(given)}; expected integers")
    return torch.from_numpy(array.astype(np.int64))


def _array(given: Any, what: str) -> np.ndarray:
    expected = "expected an int, or a list, array or tensor of ints"
    if not isinstance(given, (int, float, bool, np.generic, np.ndarray, list, tuple, range)):
        raise InputError(f"{what} is {_shown(given)}; {expected}")
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # rows of different length, tensors of another device
        raise InputError(f"{what} is {_shown(given)}; {expected}, with rows of equal length") from None


def whole_number(given: Any, what: str, least: int = 0, most: int | None = None, limit: str = "") -> int:
    """Return an int. Raises InputError unless it is a whole number from ``least`` to ``most``, which ``limit`` names.

    >>> whole_number(np.int64(3), "seed")
    3
    """
    is_whole = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
    if not is_whole or given < least or (most is not None and given > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}{f' ({limit})' if limit else ''}"
        raise InputError(f"{what} is {_shown(given)}; expected a whole number, {allowed}")
    return int(given)


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"a {type(given).__name__}"
