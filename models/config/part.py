"""What every part of a configuration shares: fields checked by their types, and values that differ by layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from models.errors import ConfigError, nearest

T = TypeVar("T")
PerLayer: TypeAlias = T | tuple[T, ...]  # one value for all layers, or one for each


def of_layer(value: PerLayer[T], layer: int) -> T:
    """Return a per-layer option's value in one layer.

    >>> of_layer((4, None), 1), of_layer(4, 1)
    (None, 4)
    """
    return value[layer] if isinstance(value, tuple) else value


def values_of(value: PerLayer[T]) -> tuple[T, ...]:
    """Return every value that a per-layer option takes: one for all layers, or each layer's."""
    return value if isinstance(value, tuple) else (value,)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, a bool not counted."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """The options of one part of a model. ``_check`` of each part says which values describe none.

    Args:
        d_model: width of the residual stream.
        n_ctx: the longest sequence, in tokens.
    """

    d_model: int
    n_ctx: int

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:  # None: filled in by ``_check``, or left out
                self._set(field.name, _checked(field.name, value, kinds[field.name]))
        for part in reversed(type(self).__mro__):
            if issubclass(part, PartConfig) and "_check" in vars(part):
                part._check(self)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check(self) -> None:
        """Fill defaults that depend on other options, and raise ConfigError where options contradict each other."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values, the inverse of ``from_dict``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build from plain values. Raises ConfigError on unknown or missing keys."""
        known = {field.name for field in fields(cls)}
        for key in values:
            if key not in known:
                raise ConfigError(f"{cls.__name__} has no field {key!r}{nearest(key, known)}")
        kinds = get_type_hints(cls)
        try:
            return cls(**{name: _restored(value, kinds[name]) for name, value in values.items()})
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


def _restored(value: Any, kind: Any) -> Any:
    """Return a value as it was before it was made plain."""
    if isinstance(value, list):
        return tuple(_restored(one, kind) for one in value)
    if isinstance(value, dict):
        made: Any = next(one for one in get_args(kind) if dataclasses.is_dataclass(one))
        return made(**value)
    return value


def _checked(name: str, value: Any, kind: Any) -> Any:
    """Return a value of the kind that a field declares. Raises ConfigError where it is of another."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if isinstance(value, (list, tuple)) and any(get_origin(one) is tuple for one in kinds):
        single = tuple(one for one in kinds if get_origin(one) is not tuple)
        return tuple(_single(f"{name}[{layer}]", one, single) for layer, one in enumerate(value))
    return _single(name, value, kinds)


def _single(name: str, value: Any, kinds: Sequence[Any]) -> Any:
    if value is None and NoneType in kinds:
        return None
    kind = next(one for one in kinds if one is not NoneType)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(map(str, get_args(kind)))}")
    elif kind is int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} is {value!r}; expected a positive integer")
    elif kind is float:
        if not is_number(value):
            raise ConfigError(f"{name} is {value!r}; expected a number")
    elif kind is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; expected True or False")
    elif not isinstance(value, kind):
        raise ConfigError(f"{name} is {value!r}; expected a {kind.__name__}{' or None' if NoneType in kinds else ''}")
    return value
