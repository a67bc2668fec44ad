"""What users hand over, made into what the tools compute with, or refused: ids and whole numbers.

A float or a bool is never an id or a count: PyTorch would round ``3.9`` to 3 and take ``True`` for 1 in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from models.errors import InputError
from models.protocol import ResumableModel

Followed = int | str | Sequence[int] | Sequence[str] | Tensor


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
        raise InputError(f"{what} is {shown(given)}; expected integers")
    return torch.from_numpy(array.astype(np.int64))


def _array(given: Any, what: str) -> np.ndarray:
    expected = "expected an int, or a list, array or tensor of ints"
    if not isinstance(given, (int, float, bool, np.generic, np.ndarray, list, tuple, range)):
        raise InputError(f"{what} is {shown(given)}; {expected}")
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # rows of different length, tensors of another device
        raise InputError(f"{what} is {shown(given)}; {expected}, with rows of equal length") from None


def is_whole(given: Any) -> bool:
    """Return whether a value is a whole number; True and 3.0 are none."""
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)


def whole_number(given: Any, what: str, least: int | None = 0, most: int | None = None, limit: str = "") -> int:
    """Return an int. Raises InputError unless it is a whole number from ``least`` to ``most``, which ``limit`` names.

    Where ``least`` is None, any whole number will do.

    >>> whole_number(np.int64(3), "seed")
    3
    """
    if least is None:
        if not is_whole(given):
            raise InputError(f"{what} is {shown(given)}; expected a whole number")
        return int(given)
    if not is_whole(given) or given < least or (most is not None and given > most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}{f' ({limit})' if limit else ''}"
        raise InputError(f"{what} is {shown(given)}; expected a whole number, {allowed}")
    return int(given)


def shown(given: Any) -> str:
    """Return a value for a message: itself where it is short, else its type."""
    text = repr(given)
    return text if len(text) <= 60 else f"a {type(given).__name__}"


def followed_tokens(model: ResumableModel, target: Followed, batch: int, what: str = "target") -> list[int]:
    """Return the token to follow in each prompt.

    Args:
        target: an id, or a text that is one token; or one of these per prompt.
        batch: the number of prompts.
        what: its name in messages.

    Raises:
        InputError: anything else, an id outside the vocabulary, another number of targets.
    """
    given = _plain(target)
    several = [_plain(one) for one in given] if isinstance(given, (list, tuple)) else [given]
    for one in several:
        if not isinstance(one, str) and not is_whole(one):
            raise InputError(
                f"{what} is {shown(target)}; expected a token id, a text that is one token, or one of these per prompt"
            )
    if len(several) not in (1, batch):
        raise InputError(f"{len(several)} {what}s for {batch} prompts; give one, or one per prompt")
    ids = [model.to_single_token(one) if isinstance(one, str) else int(one) for one in several]
    for one in ids:
        if not 0 <= one < model.cfg.d_vocab:
            raise InputError(f"{what} {one} is outside this vocabulary, 0 to {model.cfg.d_vocab - 1}")
    return ids * batch if len(ids) == 1 else ids


def _plain(value: Any) -> Any:
    """Return tensors and arrays as Python numbers and lists, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
