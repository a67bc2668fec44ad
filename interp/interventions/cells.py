"""What a sweep ranges over: sites, cells, and the group of cells that can be computed together.

A *site* is one activation of every layer. A *cell* is one entry of the sweep's grid: a layer, and an index into that
layer's activation for each axis swept over; whatever is not swept over is replaced whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks import whole_number
from models.config import DecoderConfig, StackConfig
from models.errors import InputError, nearest


@dataclass(frozen=True)
class Site:
    """One activation of every layer.

    Attributes:
        name: as users write it.
        hook: its hook's name without ``blocks.{layer}.``.
        axes: what can be swept over.
        sublayer: whose it is, ``attn`` or ``mlp``; of the stream between, the one that wrote last. None for the stream
            entering or leaving the block.
    """

    name: str
    hook: str
    axes: tuple[str, ...]
    sublayer: str | None = None

    def hook_name(self, layer: int) -> str:
        """Return the full hook name."""
        return f"blocks.{layer}.{self.hook}"

    @property
    def head_axis(self) -> str | None:
        """``head``, ``kv_head`` or None."""
        return next((axis for axis in self.axes if axis.endswith("head")), None)


_STREAM = ("layer", "pos")
_HEADS = ("layer", "pos", "head")
_KV_HEADS = ("layer", "pos", "kv_head")
SITES: dict[str, Site] = {
    site.name: site
    for site in (
        Site("resid_pre", "hook_resid_pre", _STREAM),
        Site("q", "attn.hook_q", _HEADS, "attn"),
        Site("k", "attn.hook_k", _KV_HEADS, "attn"),
        Site("v", "attn.hook_v", _KV_HEADS, "attn"),
        Site("pattern", "attn.hook_pattern", ("layer", "head", "dest_pos", "src_pos"), "attn"),
        Site("z", "attn.hook_z", _HEADS, "attn"),
        Site("result", "attn.hook_result", _HEADS, "attn"),
        Site("attn_out", "hook_attn_out", _STREAM, "attn"),
        Site("resid_mid", "hook_resid_mid", _STREAM, "attn"),
        Site("mlp_post", "mlp.hook_post", ("layer", "pos", "neuron"), "mlp"),
        Site("mlp_out", "hook_mlp_out", _STREAM, "mlp"),
        Site("resid_post", "hook_resid_post", _STREAM),
    )
}


def n_layers_of(cfg: StackConfig) -> int:
    """Return the number of layers. Raises InputError for an encoder-decoder, which has two stacks of them."""
    if not isinstance(cfg, DecoderConfig):
        raise InputError("sweeps are over the layers of a decoder; an encoder-decoder has two stacks of them")
    return cfg.n_layers


def find_site(name: str, cfg: StackConfig) -> Site:
    """Return a site by name. Raises InputError where it is unknown, or this model has no such activation."""
    if not isinstance(name, str) or name not in SITES:
        raise InputError(f"no site {name!r}{nearest(str(name), SITES)}; sites are {', '.join(SITES)}")
    if name.startswith("mlp") and cfg.d_mlp is None:
        raise InputError(f"site {name!r} belongs to the MLP, and this model is attention-only")
    if name == "resid_mid" and not cfg.has_resid_mid:
        raise InputError("a block that is parallel or attention-only has no resid_mid; use resid_pre or resid_post")
    return SITES[name]


def check_axes(site: Site, over: str | Sequence[str]) -> tuple[str, ...]:
    """Return the axes swept over. ``head`` on k and v means ``kv_head``. Raises InputError on any other axis."""
    if isinstance(over, str):
        over = (over,)
    over = tuple(over) if isinstance(over, Iterable) else (over,)
    if not all(isinstance(axis, str) for axis in over):
        raise InputError(f"over is {over!r}; expected names of axes of {site.name}: {', '.join(site.axes)}")
    axes = tuple(site.head_axis if axis == "head" and site.head_axis else axis for axis in over)
    if not axes or len(set(axes)) != len(axes):
        raise InputError(f"over={over!r} must name axes of {site.name}, each once: {', '.join(site.axes)}")
    for axis in axes:
        if axis not in site.axes:
            raise InputError(
                f"{site.name} has no axis {axis!r}{nearest(axis, site.axes)}; its axes are {', '.join(site.axes)}"
            )
    return axes


def renormalised(pattern: Float[Tensor, "... query_pos key_pos"]) -> Float[Tensor, "... query_pos key_pos"]:
    """Return a pattern whose rows sum to 1 again; a row of nothing stays so."""
    total = pattern.sum(-1, keepdim=True)
    return torch.where(total > 0, pattern / total, pattern)


@dataclass(frozen=True)
class Cell:
    """One entry of the grid: ``index[axis]`` for the axes swept over, and its flat number."""

    number: int
    index: dict[str, int]

    @property
    def column(self) -> int | None:
        """The one column replaced, or None for all."""
        return self.index.get("pos", self.index.get("dest_pos"))


@dataclass(frozen=True)
class Grid:
    """All cells of a sweep, in the order of ``values[axes]``.

    With ``renormalise``, a changed pattern's rows are made to sum to 1 again.
    """

    site: Site
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    neuron_groups: tuple[Int[Tensor, "neuron"], ...] | None = None
    renormalise: bool = False

    @staticmethod
    def of(
        site: Site,
        axes: tuple[str, ...],
        cfg: StackConfig,
        width: int,
        neuron_groups: int | None = None,
        renormalise: bool = False,
    ) -> Grid:
        """Return the grid over ``axes``; neurons go in ``neuron_groups`` groups of neighbours (None: one by one)."""
        groups = None
        if neuron_groups is not None and "neuron" not in axes:
            raise InputError(f"neuron_groups is {neuron_groups}, but the sweep is over {', '.join(axes)}: add 'neuron'")
        if "neuron" in axes:
            assert cfg.d_mlp is not None
            n_groups = cfg.d_mlp
            if neuron_groups is not None:
                n_groups = whole_number(neuron_groups, "neuron_groups", 1, cfg.d_mlp, "d_mlp")
            groups = tuple(torch.arange(cfg.d_mlp).tensor_split(n_groups))
        lengths = {
            "layer": n_layers_of(cfg),
            "pos": width,
            "dest_pos": width,
            "src_pos": width,
            "head": cfg.n_heads,
            "kv_head": cfg.n_kv_heads,
            "neuron": len(groups or ()),
        }
        return Grid(site, axes, tuple(lengths[axis] for axis in axes), groups, renormalise)

    def cells(self) -> list[Cell]:
        """Return every cell."""
        ranges = itertools.product(*(range(size) for size in self.sizes))
        return [Cell(number, dict(zip(self.axes, index, strict=True))) for number, index in enumerate(ranges)]

    def index(self, cell: Cell) -> tuple[object, ...]:
        """Return what the cell replaces, as an index into the site's activation ``[batch, ...]``."""
        everything = slice(None)
        if self.site.name == "pattern":
            order: tuple[str, ...] = ("head", "dest_pos", "src_pos")
        else:
            order = ("pos", *(axis for axis in self.site.axes if axis not in _STREAM))
        chosen: list[object] = [cell.index.get(axis, everything) for axis in order]
        if self.neuron_groups is not None:
            chosen[-1] = self.neuron_groups[cell.index["neuron"]]
        return (everything, *chosen)
