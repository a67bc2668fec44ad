"""Where in a model something is: heads and how they are written.

A head is written ``L5H1``: layer 5, head 1, both counted from 0. ``5.1`` and ``(5, 1)`` are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

from models.config import StackConfig
from models.errors import InputError

_WRITTEN = re.compile(r"\s*(?:[Ll](\d+)[Hh](\d+)|(\d+)\.(\d+))\s*")


class Head(NamedTuple):
    """One query head; ``str`` gives ``L5H1``."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"


def parse_head(written: str | tuple[int, int] | Head, cfg: StackConfig) -> Head:
    """Return the head that is meant.

    Args:
        written: ``"L5H1"``, ``"5.1"``, ``(5, 1)`` or a ``Head``.
        cfg: of the model it must exist in; gives ``n_layers`` and ``n_heads``.

    Raises:
        InputError: another notation, or a layer or head that this model does not have.

    >>> from models.config import DecoderConfig
    >>> cfg = DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4)
    >>> str(parse_head("1.0", cfg)), parse_head((0, 1), cfg)
    ('L1H0', Head(layer=0, head=1))
    """
    layer, head = _numbers(written)
    n_layers, n_heads = cast(Any, cfg).n_layers, cfg.n_heads
    for what, got, count in (("layer", layer, n_layers), ("head", head, n_heads)):
        if not 0 <= got < count:
            raise InputError(
                f"{what} {got} in {written!r} is out of range: this model has {what}s 0 to {count - 1} "
                f"({n_layers} layers of {n_heads} heads, L0H0 to {Head(n_layers - 1, n_heads - 1)})"
            )
    return Head(layer, head)


def as_several(written: Any) -> list[Any]:
    """Return one name, or several, as a list: a text, a ``Head`` and a pair of numbers are one."""
    is_one = isinstance(written, str) or (
        isinstance(written, tuple) and len(written) > 0 and all(isinstance(part, int) for part in written)
    )
    if is_one:
        return [written]
    if not isinstance(written, Iterable):
        raise InputError(f"{written!r} names no part of a model; write 'L5H1', or a list of names")
    return list(written)


def _numbers(written: str | tuple[int, int] | Head) -> tuple[int, int]:
    if isinstance(written, str) and (match := _WRITTEN.fullmatch(written)):
        layer, head = (int(group) for group in match.groups() if group is not None)
        return layer, head
    if isinstance(written, tuple) and len(written) == 2:
        layer, head = written
        if all(isinstance(part, int) and not isinstance(part, bool) for part in (layer, head)):
            return layer, head
    raise InputError(f"{written!r} is not a head; write it as 'L5H1', '5.1' or (5, 1)")
