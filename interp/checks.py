"""What users hand over, made into what the tools compute with, or refused: ids and whole numbers.

A float or a bool is never a count: ``True`` would be 1 in silence. Ids are checked where the models check them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from models.errors import InputError
from models.protocol import ResumableModel
from models.tokens import as_ids as as_ids
from models.tokens import shown as shown

Followed = int | str | Sequence[int] | Sequence[str] | Tensor


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
