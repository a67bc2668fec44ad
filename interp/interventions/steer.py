"""Steering: add a direction to the residual stream while the model runs or generates (arXiv 2308.10248)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.cells import find_site, n_layers_of
from models.errors import InputError
from models.hooks.point import HookPoint
from models.protocol import HookedModel

_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


def steer(
    model: HookedModel,
    direction: Float[Tensor, "d_model"],
    *,
    layers: int | Sequence[int],
    positions: int | Sequence[int] | slice | None = None,
    site: str = "resid_pre",
    scale: float = 1.0,
) -> AbstractContextManager[Any]:
    """Add ``scale * direction`` to the stream, for every run inside a ``with`` block.

    Positions are absolute: they count real tokens, so that padding on the left and generation with a KV cache change
    nothing about where the direction goes.

    Args:
        model: any hooked model.
        direction: ``[d_model]``, in the units of the stream.
        layers: one or several.
        positions: where to add it: one, several, or a slice such as ``slice(5, None)``; by default everywhere.
        site: ``resid_pre``, ``resid_mid``, ``resid_post``, ``attn_out`` or ``mlp_out``.
        scale: a factor.

    Raises:
        InputError: a direction of another shape, a layer, position or site that the model does not have.
        HookNeverFired: on leaving the block, where no run was made inside it.

    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=10, n_ctx=8))
    >>> with steer(model, torch.ones(8), layers=1, positions=slice(2, None)):
    ...     model.generate(torch.tensor([[1, 2, 3]]), 2, temperature=0).shape
    torch.Size([1, 5])
    """
    if site not in _SITES:
        raise InputError(f"site is {site!r}; a direction of the stream is added at one of {', '.join(_SITES)}")
    found = find_site(site, model.cfg)
    if not isinstance(direction, Tensor) or direction.shape != (model.cfg.d_model,):
        shape = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction).__name__
        raise InputError(f"direction is {shape}; expected a tensor [d_model] = ({model.cfg.d_model},)")
    chosen = [layers] if isinstance(layers, int) else list(layers)
    n_layers = n_layers_of(model.cfg)
    if not chosen or any(not 0 <= layer < n_layers for layer in chosen):
        raise InputError(f"layers is {layers!r}; this model has layers 0 to {n_layers - 1}")
    _check_positions(positions)

    def add(value: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> Tensor:
        assert hook.positions is not None
        added = scale * direction.to(value)
        return value + (added if positions is None else added * _at(positions, hook.positions)[..., None])

    return model.hooks(fwd_hooks=[(found.hook_name(layer), add) for layer in dict.fromkeys(chosen)])


def _check_positions(positions: int | Sequence[int] | slice | None) -> None:
    """Raise InputError on a negative position: where the sequence ends changes as it is generated."""
    if isinstance(positions, slice):
        given = [end for end in (positions.start, positions.stop) if end is not None]
        if positions.step not in (None, 1):
            raise InputError(f"positions is {positions}; a slice of positions takes no step")
    else:
        given = [positions] if isinstance(positions, int) else list(positions or ())
        if positions is not None and not given:
            raise InputError("positions is empty; give at least one, or None for everywhere")
    if any(position < 0 for position in given):
        raise InputError(f"positions is {positions!r}; positions are absolute, counted from 0, never from the end")


def _at(positions: int | Sequence[int] | slice, here: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"]:
    if isinstance(positions, slice):
        from_start = here >= (positions.start or 0)
        return from_start if positions.stop is None else from_start & (here < positions.stop)
    wanted = [positions] if isinstance(positions, int) else list(positions)
    return torch.isin(here, torch.tensor(wanted, device=here.device))
