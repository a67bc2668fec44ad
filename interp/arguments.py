"""Arguments that many tools take, checked before any forward pass: whole numbers, and tokens to follow."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from models.errors import InputError
from models.protocol import ResumableModel

Followed = int | str | Sequence[int] | Sequence[str] | Tensor


def check_whole(name: str, value: Any) -> None:
    """Raise InputError unless a value is a whole number; True and 3.0 are none."""
    if not _is_whole(value):
        raise InputError(f"{name} is {value!r}; expected a whole number")


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def followed_tokens(model: ResumableModel, target: Followed, batch: int) -> list[int]:
    """Return the token to follow in each prompt.

    Args:
        target: an id, or a text that is one token; or one of these per prompt.
        batch: the number of prompts.

    Raises:
        InputError: anything else, an id outside the vocabulary, another number of targets.
    """
    given = _plain(target)
    several = [_plain(one) for one in given] if isinstance(given, (list, tuple)) else [given]
    for one in several:
        if not isinstance(one, str) and not _is_whole(one):
            raise InputError(
                f"target is {target!r}; expected a token id, a text that is one token, or one of these per prompt"
            )
    if len(several) not in (1, batch):
        raise InputError(f"{len(several)} targets for {batch} prompts; give one, or one per prompt")
    ids = [model.to_single_token(one) if isinstance(one, str) else int(one) for one in several]
    for one in ids:
        if not 0 <= one < model.cfg.d_vocab:
            raise InputError(f"target {one} is outside this vocabulary, 0 to {model.cfg.d_vocab - 1}")
    return ids * batch if len(ids) == 1 else ids


def _plain(value: Any) -> Any:
    """Return tensors and arrays as Python numbers and lists, anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
