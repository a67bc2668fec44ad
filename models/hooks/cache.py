"""ActivationCache: what passed the hook points of one run, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from models.errors import CacheError, nearest


def snapshot(value: Tensor) -> Tensor:
    """Copy a tensor so that later writes to it, or to what it is a view of, do not reach the copy.

    Axes that only repeat one value (stride 0) stay repeated rather than being written out.
    """
    value = value.detach()
    repeated = [dim for dim in range(value.ndim) if value.stride(dim) == 0 and value.shape[dim] > 1]
    small = value
    for dim in repeated:
        small = small.narrow(dim, 0, 1)
    return small.clone(memory_format=torch.contiguous_format).expand(value.shape)


class ActivationCache(Mapping[str, Tensor]):
    """Activations by hook name; ``cache["resid_post", 3]`` is short for ``cache["blocks.3.hook_resid_post"]``.

    One entry per activation, each a copy: writing to an element of one changes that element alone. Gradients, where
    asked for, stand beside them as ``name + "_grad"``.

    Args:
        activations: by hook name.
        n_layers: of the model, which a negative layer counts from: ``cache["resid_post", -1]`` is its last.

    >>> cache = ActivationCache({"blocks.0.attn.hook_q": torch.zeros(1, 2, 4, 8)})
    >>> cache["q", 0].shape
    torch.Size([1, 2, 4, 8])
    """

    def __init__(self, activations: Mapping[str, Tensor], n_layers: int | None = None) -> None:
        self._activations = dict(activations)
        self._n_layers = n_layers

    def __getitem__(self, key: str | tuple[str, int] | tuple[str, int, str]) -> Tensor:
        name = self._name(key)
        if name not in self._activations:
            raise CacheError(
                f"{name!r} was not cached{nearest(name, self._activations)}; "
                f"{len(self)} activations are, ask run_with_cache for more with names_filter"
            )
        value = self._activations[name]
        if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True)):
            # kept as one value that an axis repeats; whoever looks may write, so that each element gets a place now
            value = self._activations[name] = value.clone(memory_format=torch.contiguous_format)
        return value

    def _name(self, key: str | tuple[str, int] | tuple[str, int, str]) -> str:
        return self._long_name(*key) if isinstance(key, tuple) else key

    def _long_name(self, short: str, layer: int, part: str | None = None) -> str:
        """Expand (``"resid_post"``, 3) or (``"scale"``, 3, ``"ln1"``); a negative layer counts from the end."""
        layer = self._from_the_start(layer)
        if part is not None:
            return f"blocks.{layer}.{part}.hook_{short}"
        candidates = [f"blocks.{layer}.{middle}hook_{short}" for middle in ("", "attn.", "mlp.")]
        return next((name for name in candidates if name in self._activations), candidates[0])

    def _from_the_start(self, layer: int) -> int:
        if layer >= 0:
            return layer
        if self._n_layers is None:
            held = sorted({int(name.split(".")[1]) for name in self._activations if name.startswith("blocks.")})
            raise CacheError(
                f"layer {layer} counts from the end of a model, and this cache does not know how many layers its model "
                f"has; it holds layers {held}: count from the start, or make the cache with n_layers"
            )
        if layer < -self._n_layers:
            raise CacheError(f"layer {layer} is out of range: the model has layers 0 to {self._n_layers - 1}")
        return layer + self._n_layers

    def __iter__(self) -> Iterator[str]:
        return iter(self._activations)

    def __len__(self) -> int:
        return len(self._activations)

    def __contains__(self, key: object) -> bool:
        return self._name(key) in self._activations  # type: ignore[arg-type]

    def get(self, key: str | tuple[str, int] | tuple[str, int, str], default: Any = None) -> Any:
        """Return an activation, or ``default`` where it was not cached."""
        name = self._name(key)
        return self[name] if name in self._activations else default

    def __repr__(self) -> str:
        megabytes = sum(value.untyped_storage().nbytes() for value in self._activations.values()) / 1e6
        return f"ActivationCache({len(self)} activations, {megabytes:.1f} MB)"

    def stack(self, short: str, part: str | None = None) -> Float[Tensor, "layer ..."]:
        """Stack one activation over all layers that have it, layer first.

        Raises CacheError where no layer has it.
        """
        layers = sorted({int(name.split(".")[1]) for name in self if name.startswith("blocks.")})
        names = [self._long_name(short, layer, part) for layer in layers]
        found = [self._activations[name] for name in names if name in self._activations]
        if not found:
            raise CacheError(f"no layer has {short!r} in this cache{nearest(short, self._activations)}")
        return torch.stack(found)

    def to(self, device: torch.device | str) -> ActivationCache:
        """Return a cache with every tensor on ``device``; those that are there already are shared with this one."""
        moved = {name: value.to(device) for name, value in self._activations.items()}
        return ActivationCache(moved, self._n_layers)

    def remove_batch_dim(self) -> ActivationCache:
        """Return a cache without the batch axis, of the same memory. Raises CacheError unless the batch has one row."""
        for name, value in self._activations.items():
            if value.shape[0] != 1:
                raise CacheError(f"{name} has a batch of {value.shape[0]}; only a batch of 1 can be dropped")
        return ActivationCache({name: self[name][0] for name in self}, self._n_layers)
