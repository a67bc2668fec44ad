"""Steering: add a direction to the residual stream while the model runs or generates (arXiv 2308.10248)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import isfinite
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks import as_ids
from interp.interventions.cells import find_site, n_layers_of
from models.errors import HookNeverFired, InputError
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel

_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


def steer(
    model: HookedModel,
    direction: Float[Tensor, "d_model"],
    *,
    layers: int | Sequence[int] | Tensor,
    positions: int | Sequence[int] | Tensor | slice | None = None,
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
        HookNeverFired: on leaving the block, where no run was made inside it, where no run reached one of the listed
            positions, or none of a slice's.

    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=10, n_ctx=8))
    >>> with steer(model, torch.ones(8), layers=1, positions=slice(2, None)):
    ...     model.generate(torch.tensor([[1, 2, 3]]), 2, temperature=0).shape
    torch.Size([1, 5])
    """
    if site not in _SITES:
        raise InputError(f"site is {site!r}; a direction of the stream is added at one of {', '.join(_SITES)}")
    found = find_site(site, model.cfg)
    _check_direction(direction, scale, model.cfg.d_model)
    chosen = as_ids(layers, "layers").reshape(-1).tolist()
    n_layers = n_layers_of(model.cfg)
    if not chosen or any(not 0 <= layer < n_layers for layer in chosen):
        raise InputError(f"layers is {layers!r}; this model has layers 0 to {n_layers - 1}")
    wanted = _wanted(positions, model.cfg.n_ctx, model.device)

    unreached = set() if wanted is None else set(wanted.tolist())

    def add(value: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> Tensor:
        assert hook.positions is not None
        added = scale * direction.to(value)
        if wanted is None:
            return value + added
        if unreached:
            unreached.difference_update(hook.positions.unique().tolist())
        return value + added * torch.isin(hook.positions, wanted.to(value.device))[..., None]

    hooks: list[Hook] = [(found.hook_name(layer), add) for layer in dict.fromkeys(chosen)]
    return _steering(model, hooks, unreached, len(unreached) if isinstance(positions, slice) else 1)


@contextmanager
def _steering(model: HookedModel, hooks: list[Hook], unreached: set[int], too_many: int) -> Iterator[Any]:
    """Attach the hooks; on leaving, raise HookNeverFired where ``too_many`` positions or more were never reached."""
    with model.hooks(fwd_hooks=hooks) as hooked:
        yield hooked
    if 0 < too_many <= len(unreached):
        shown = ", ".join(map(str, sorted(unreached)[:3])) + (" and more" if len(unreached) > 3 else "")
        raise HookNeverFired(
            f"steer was given positions that no run inside the block reached: {shown}. Nothing was added there: give "
            "positions that the prompts have, counted from 0 over real tokens"
        )


def _check_direction(direction: Any, scale: Any, d_model: int) -> None:
    if not isinstance(direction, Tensor) or direction.shape != (d_model,):
        shape = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction).__name__
        raise InputError(f"direction is {shape}; expected a tensor [d_model] = ({d_model},)")
    if direction.is_complex() or not bool(direction.isfinite().all()):
        what = "complex" if direction.is_complex() else "not finite (NaN or inf)"
        raise InputError(f"direction is {what}; expected finite real numbers")
    number = isinstance(scale, (int, float, np.number, Tensor)) and not isinstance(scale, bool)
    if not number or np.ndim(scale) != 0 or np.iscomplexobj(scale) or not isfinite(scale):
        raise InputError(f"scale is {scale!r}; expected one finite number")


def _wanted(positions: Any, n_ctx: int, device: torch.device) -> Int[Tensor, "wanted"] | None:
    """Return the absolute positions meant, None for everywhere.

    Raises InputError on a negative one (where the sequence ends changes as it is generated), one that the context
    never reaches, or none at all.
    """
    if positions is None:
        return None
    if isinstance(positions, slice):
        if positions.step not in (None, 1):
            raise InputError(f"positions is {positions}; a slice of positions takes no step")
        start, stop = (
            default if end is None else int(as_ids(end, "an end of positions"))
            for end, default in ((positions.start, 0), (positions.stop, n_ctx))
        )
        found = torch.arange(start, max(start, min(stop, n_ctx)))
        given = [start, stop]
    else:
        found = as_ids(positions, "positions").reshape(-1)
        given = found.tolist()
    if any(position < 0 for position in given):
        raise InputError(f"positions is {positions!r}; positions are absolute, counted from 0, never from the end")
    if not len(found):
        raise InputError(f"positions is {positions!r}, which is empty; give at least one, or None for everywhere")
    if int(found.max()) >= n_ctx:
        raise InputError(f"positions is {positions!r}; this model's context has positions 0 to {n_ctx - 1}")
    return found.to(device)
