"""What an ablated activation is replaced with.

==================  ===============================================================================================
zero                nothing; the furthest off what the model ever sees
mean                its mean over the reference's examples and real positions
mean_per_position   its mean over the reference's examples at the same column, for templates that align
resample            its value in another example, drawn with a seed
==================  ===============================================================================================

A pattern's replacement has no weight on keys that are padding in the example that gets it: their share goes to the
row's other keys.

Zero is the harshest and agrees least with counterfactual ablation (arXiv 2409.09951).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.cells import Site, n_layers_of
from models.errors import InputError
from models.protocol import HookedModel

Method = Literal["zero", "mean", "mean_per_position", "resample"]
Source = Callable[[int], Tensor]


def check_method(method: str, site: Site) -> None:
    """Raise InputError for an unknown method, or a mean of patterns over positions."""
    if method not in get_args(Method):
        raise InputError(f"method is {method!r}; expected one of {', '.join(get_args(Method))}")
    if method == "mean" and site.name == "pattern":
        raise InputError(
            "a pattern's mean over queries attends to tokens that come later; use 'mean_per_position', 'resample' or "
            "'zero'"
        )


def ablation_source(
    model: HookedModel,
    site: Site,
    method: Method,
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
    reference: Int[Tensor, "reference pos"] | None = None,
    reference_real: Bool[Tensor, "reference pos"] | None = None,
    seed: int = 0,
) -> Source:
    """Return, by layer, the activation ``[batch, pos, ...]`` that stands in for the ablated one.

    Args:
        model: run once on the reference, unless ``method`` is ``zero``.
        site: which activation.
        method: see the table above.
        tokens, real: the batch that is ablated, and its real tokens (None for all).
        reference, reference_real: where the values come from; by default the batch itself.
        seed: of the draws.

    Raises:
        InputError: a reference that the method cannot use.
    """
    check_method(method, site)
    batch, width = tokens.shape
    if method == "zero":
        return _zeros(model, site, batch, width)
    own = reference is None
    if reference is None:
        reference, reference_real = tokens, real
    rows: Tensor | None = None
    if method != "mean":
        _check_columns(method, site, reference, reference_real, tokens, real, own)
    if method == "resample":
        rows = _draw(reference, reference_real, tokens, real, own, seed)
    names = [site.hook_name(layer) for layer in range(n_layers_of(model.cfg))]
    _, cache = model.run_with_cache(reference, attention_mask=reference_real, names_filter=names)

    def replacement(layer: int) -> Tensor:
        value = cache[site.hook_name(layer)]
        if rows is not None:
            return value[rows]
        if method == "mean":
            return _mean(value, reference_real, (0, 1)).expand(batch, width, *value.shape[2:])
        if site.name == "pattern":  # query positions are its third axis
            mean = _mean(value.transpose(1, 2), reference_real, (0,)).transpose(1, 2)
        else:
            mean = _mean(value, reference_real, (0,))
        return mean.expand(batch, *value.shape[1:])

    @lru_cache(maxsize=1)  # sweeps go layer by layer, and ask for one many times
    def source(layer: int) -> Tensor:
        value = replacement(layer)
        return value if site.name != "pattern" or real is None else _off_padding(value, real)

    return source


def _off_padding(
    pattern: Float[Tensor, "batch head query_pos key_pos"], real: Bool[Tensor, "batch pos"]
) -> Float[Tensor, "batch head query_pos key_pos"]:
    """Return a pattern without weight on padded keys, its rows' sums as before.

    A replacement comes from other examples, which attend where this one may have padding.
    """
    kept = pattern * real.to(pattern.device)[:, None, None, :]
    before, after = pattern.sum(-1, keepdim=True), kept.sum(-1, keepdim=True)
    return torch.where(after > 0, kept * (before / after), kept)


def _mean(value: Tensor, real: Bool[Tensor, "reference pos"] | None, axes: tuple[int, ...]) -> Tensor:
    """Return the mean of ``[reference, pos, ...]`` over axes among the first two, padding left out."""
    wide = value.to(torch.promote_types(value.dtype, torch.float32))
    if real is None:
        return wide.mean(axes, keepdim=True).to(value.dtype)
    weight = real.to(value.device).view(*real.shape, *[1] * (value.ndim - 2))
    return ((wide * weight).sum(axes, keepdim=True) / weight.sum(axes, keepdim=True).clamp(min=1)).to(value.dtype)


def _zeros(model: HookedModel, site: Site, batch: int, width: int) -> Source:
    cfg = model.cfg
    sizes = {"batch": batch, "pos": width, "query_pos": width, "key_pos": width, "head": cfg.n_heads}
    sizes |= {"kv_head": cfg.n_kv_heads, "d_model": cfg.d_model, "d_head": cfg.d_head, "d_mlp": cfg.d_mlp or 0}
    axes = model.hook_names().specs[site.hook_name(0)].axes
    nothing = model.W_E.new_zeros(()).expand([sizes[axis] for axis in axes])
    return lambda layer: nothing


def _check_columns(
    method: str,
    site: Site,
    reference: Tensor,
    reference_real: Tensor | None,
    tokens: Tensor,
    real: Tensor | None,
    own: bool,
) -> None:
    """Raise InputError unless the reference has something of its own to give at every real column."""
    if own and len(tokens) < 2:
        raise InputError(
            f"{method} of a batch of one is that example itself; give more examples, a reference, or method='mean'"
        )
    if reference.shape[1] != tokens.shape[1]:
        raise InputError(
            f"{method} takes values column by column: the reference has {reference.shape[1]} columns and the batch "
            f"{tokens.shape[1]}; give a reference of the same template, or method='mean'"
        )
    if method == "mean_per_position" and reference_real is not None:
        there = reference_real.any(0)
        missing = (~there if real is None else ~there & real.any(0)).nonzero()
        if len(missing):
            raise InputError(f"the reference has no real token at column {int(missing[0])}; give a longer one")


def _draw(
    reference: Tensor, reference_real: Tensor | None, tokens: Tensor, real: Tensor | None, own: bool, seed: int
) -> Int[Tensor, "batch"]:
    """Draw for each example a row of the reference that is real wherever the example is, and not the example itself."""
    there = torch.ones(reference.shape, dtype=torch.bool) if reference_real is None else reference_real.cpu()
    needed = torch.ones(tokens.shape, dtype=torch.bool) if real is None else real.cpu()
    fits = (there[None] | ~needed[:, None]).all(-1).numpy()  # [batch, reference]
    if own:
        np.fill_diagonal(fits, False)
    if not fits.any(1).all():
        example = int(np.flatnonzero(~fits.any(1))[0])
        raise InputError(
            f"no row of the reference is real wherever example {example} is; give a reference without padding"
        )
    rng = np.random.default_rng(seed)
    drawn = [int(rng.choice(np.flatnonzero(row))) for row in fits]
    return torch.tensor(drawn, device=reference.device)
