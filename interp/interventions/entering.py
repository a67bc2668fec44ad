"""Where cells enter the wavefront: the stream that a patched activation makes, inside its own block.

A change of a head's z enters as a product with that head's ``W_O`` alone, a change of q, k or the pattern as the
attention of the heads concerned, a change of neurons as a product with their rows of ``W_out``; all else is the base's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from interp.interventions.cells import Cell, Grid, Site, renormalised
from models.parts.step import Step
from models.parts.sublayer import MLPSublayer, Sublayer
from models.protocol import ResumableModel

Columns = list[int]
Values = Float[Tensor, "cell batch column d_model"]


def span(columns: Sequence[int]) -> slice | list[int]:
    """Return an index for columns: of neighbours a slice, which copies nothing."""
    neighbours = len(columns) > 0 and columns[-1] - columns[0] == len(columns) - 1
    return slice(columns[0], columns[-1] + 1) if neighbours else list(columns)


@dataclass(frozen=True)
class Base:
    """The run that is patched into.

    Attributes:
        kept: activations by hook name, ``[batch, ...]``; ``needed_of_base`` says which.
        step: where its columns stand and what they may see.
        read: the columns that metrics read, ascending.
        frozen: hold every attention pattern to this run's.
    """

    kept: Mapping[str, Tensor]
    step: Step
    read: Columns
    frozen: bool = False

    def at(self, layer: int, hook: str) -> Tensor:
        """Return one activation of one layer."""
        return self.kept[f"blocks.{layer}.{hook}"]

    def entering(self, layer: int, n_layers: int) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream entering a block, or leaving the last one."""
        return self.at(layer, "hook_resid_pre") if layer < n_layers else self.at(layer - 1, "hook_resid_post")


def needed_of_base(model: ResumableModel, site: Site, frozen: bool = False) -> set[str]:
    """Return the hooks, without ``blocks.{l}.``, that the base of a sweep over ``site`` must keep."""
    needed = {"hook_resid_pre", "attn.hook_k", "attn.hook_v"}
    if site.name == "pattern" or frozen:
        needed |= {"attn.hook_pattern"}
    if site.name.startswith("resid"):
        return needed
    wires = cast(Sublayer, model.blocks[0].sublayer(cast(str, site.sublayer))).wires
    needed |= {wires.out, wires.reads}
    return needed | ({"attn.hook_q", "attn.hook_z"} if site.sublayer == "attn" else {"mlp.hook_post"})


class Entry(NamedTuple):
    """Cells at the place where they enter the wavefront: their stream at ``columns``, all else being the base's."""

    start: int
    columns: Columns
    cells: list[Cell]
    stream: Values


class Entrances:
    """Computes the entries of one sweep.

    Args:
        model: a model whose blocks can be run from outside.
        grid: what the cells mean.
        base: the run that is patched into.
        source: for a layer, the activation that cells take their values from, ``[batch, ...]``.
        first: the first column in which source and base can differ.
    """

    def __init__(
        self, model: ResumableModel, grid: Grid, base: Base, source: Callable[[int], Tensor], first: int
    ) -> None:
        self.model, self.grid, self.base, self.source, self.first = model, grid, base, source, first
        self.site = grid.site.name
        self.n_layers = len(model.blocks)
        self.width = base.read[-1] + 1
        self._steps: dict[tuple[int, ...], Step] = {}
        self._met: dict[tuple[int, str], Tensor] = {}

    def sublayers_before(self, layer: int) -> int:
        """Return how many of a block's sublayers lie before the streams of its entries."""
        block, site = self.model.blocks[layer], self.grid.site
        if site.sublayer is None or block.parallel:
            return 0 if self.site == "resid_pre" else len(block.sublayers)
        return [sublayer.name == site.sublayer for sublayer in block.sublayers].index(True) + 1

    def start(self, cell: Cell) -> int:
        """Return the first column whose stream the cell can change."""
        return max(self.first, cell.column or 0, cell.index.get("src_pos", 0))

    def changes(self, cell: Cell) -> bool:
        """Return whether the cell can change a column that is read; where it cannot, its value is the base's."""
        start = self.start(cell)
        return start < self.width and cell.column in (None, start)

    def _changed(self, start: int, column: int | None) -> Columns:
        """Return the columns whose stream differs where the cell enters."""
        if column is not None and self.site not in ("k", "v"):
            return [column]
        return list(range(start, self.width))

    def entries(self, layer: int, cells: list[Cell]) -> list[Entry]:
        """Return the entries of one layer's cells, together what they first change (none where nothing is read)."""
        groups: dict[tuple[int, int | None], list[Cell]] = defaultdict(list)
        for cell in cells:
            groups[self.start(cell), cell.column].append(cell)
        stream = self._stream_entry if self.site.startswith("resid") else self._written_entry
        entries = []
        for (start, column), members in groups.items():
            columns = self._changed(start, column)
            if layer == self.n_layers - 1 and self.site != "resid_pre":
                columns = [c for c in columns if c in self.base.read]
            if columns:
                entries.append(Entry(start, columns, members, stream(layer, columns, members)))
        return entries

    def _stream_entry(self, layer: int, columns: Columns, cells: list[Cell]) -> Values:
        """Return the stream of resid_pre, resid_mid or resid_post: the source's own."""
        return self.source(layer)[:, span(columns)].expand(len(cells), -1, -1, -1)

    def _written_entry(self, layer: int, columns: Columns, cells: list[Cell]) -> Values:
        """Return the stream after the sublayer's write, or in a parallel block after all of them."""
        block, at = self.model.blocks[layer], span(columns)
        sublayer = cast(Sublayer, block.sublayer(cast(str, self.grid.site.sublayer)))
        before = self.base.at(layer, sublayer.wires.out)[:, at]
        if self.site in ("attn_out", "mlp_out"):
            out = self.source(layer)[:, at].expand(len(cells), -1, -1, -1)
        elif sublayer.attends:
            out = before + self._head_write(layer, columns, cells)
        else:
            out = self._of_neurons(layer, cast(MLPSublayer, sublayer), columns, cells, before)
        if block.parallel:
            return self.base.entering(layer + 1, self.n_layers)[:, at] + (out - before)
        return sublayer.join(self.base.at(layer, sublayer.wires.reads)[:, at], out)

    def _head_write(self, layer: int, columns: Columns, cells: list[Cell]) -> Values:
        """Return the change of attn_out that the patched heads make."""
        attn = self.model.blocks[layer].attn
        heads = self._heads(layer, cells)
        at = span(columns)
        z_before = _pick(self.base.at(layer, "attn.hook_z")[:, at], heads)
        if self.site == "result":
            after = _pick(self.source(layer)[:, at], heads)
            return (after - einsum(z_before, attn.W_O[heads], "n b c h e, n h e d -> n b c h d")).sum(3)
        if self.site == "z":
            z = _pick(self.source(layer)[:, at], heads)
        elif self.site == "pattern":
            z = self._z_of_pattern(layer, columns, cells, heads)
        else:
            z = self._z_of_qkv(layer, columns, cells, heads)
        return einsum(z - z_before, attn.W_O[heads], "n b c h e, n h e d -> n b c d")

    def _heads(self, layer: int, cells: list[Cell]) -> Int[Tensor, "cell head"]:
        """Return the query heads that each cell reaches."""
        cfg, device = self.model.cfg, self.base.step.positions.device
        if self.site in ("q", "k") and not self.model.blocks[layer].attn.heads_apart:
            return torch.arange(cfg.n_heads, device=device).expand(len(cells), -1)
        if "kv_head" in self.grid.axes:
            kv = torch.tensor([cell.index["kv_head"] for cell in cells], device=device)
            return kv[:, None] * cfg.group_size + torch.arange(cfg.group_size, device=device)
        if "head" in self.grid.axes:
            return torch.tensor([[cell.index["head"]] for cell in cells], device=device)
        return torch.arange(cfg.n_heads, device=device).expand(len(cells), -1)

    def _z_of_pattern(self, layer: int, columns: Columns, cells: list[Cell], heads: Tensor) -> Tensor:
        base, source = (
            pattern[:, :, span(columns), : self.width][:, heads].movedim(1, 0)  # [cell, batch, head, column, key]
            for pattern in (self.base.at(layer, "attn.hook_pattern"), self.source(layer))
        )
        pattern = source
        if "src_pos" in self.grid.axes:
            src = torch.tensor([cell.index["src_pos"] for cell in cells], device=heads.device)
            chosen = torch.arange(self.width, device=heads.device) == src.view(-1, 1, 1, 1, 1)
            pattern = torch.where(chosen, source, base)
        if self.grid.renormalise:
            pattern = renormalised(pattern)
        v = _pick(self.base.at(layer, "attn.hook_v")[:, : self.width], heads // self.model.cfg.group_size)
        return einsum(pattern, v, "n b h q k, n b k h d -> n b q h d")

    def _z_of_qkv(self, layer: int, columns: Columns, cells: list[Cell], heads: Tensor) -> Tensor:
        group = self.model.cfg.group_size
        if self.site == "q":
            q = self._patched(layer, columns, cells, heads)
            k, v = (_pick(self._cached(layer, what)[:, : self.width], heads // group) for what in ("k", "v"))
            return self.attend(layer, q, k, v, columns)
        column = cells[0].column  # shared: cells are grouped by it
        patched = list(range(self.first, self.width)) if column is None else [column]
        at, kv_heads = span(patched), heads[:, ::group] // group
        q = _pick(self._cached(layer, "q")[:, span(columns)], heads)
        k, v = (_pick(self._cached(layer, what)[:, : self.width], kv_heads) for what in ("k", "v"))
        if self.site == "k":
            k[:, :, at] = self._patched(layer, patched, cells, kv_heads)
        else:
            v[:, :, at] = _pick(self.source(layer)[:, at], kv_heads)
        if self.base.frozen:
            return self.attend_as_base(layer, v, columns, heads)
        return self.attend(layer, q, k, v, columns)

    def _patched(
        self, layer: int, columns: Columns, cells: list[Cell], heads: Int[Tensor, "cell chosen"]
    ) -> Float[Tensor, "cell batch column chosen d_head"]:
        """Return the source's queries or keys as they meet, of each cell's heads."""
        attn, at = self.model.blocks[layer].attn, span(columns)
        meet = attn.queries if self.site == "q" else attn.keys
        axis = cast(str, self.grid.site.head_axis)
        if attn.heads_apart or axis not in self.grid.axes:
            return _pick(meet(self.source(layer)[:, at], self.step(columns)), heads)
        own = self.base.at(layer, f"attn.hook_{self.site}")[:, at].expand(len(cells), -1, -1, -1, -1).clone()
        for values, cell in zip(own, cells, strict=True):
            values[:, :, cell.index[axis]] = self.source(layer)[:, at, cell.index[axis]]
        return meet(own, self.step(columns))

    def _of_neurons(
        self, layer: int, sublayer: MLPSublayer, columns: Columns, cells: list[Cell], before: Tensor
    ) -> Values:
        """Return what the MLP writes with the source's neurons."""
        W_out = sublayer.core.W_out
        change = (self.source(layer) - self.base.at(layer, "mlp.hook_post"))[:, span(columns)]
        if self.grid.neuron_groups is None:
            return (before + change @ W_out).expand(len(cells), -1, -1, -1)
        groups = [self.grid.neuron_groups[cell.index["neuron"]].to(change.device) for cell in cells]
        return torch.stack([before + change[..., group] @ W_out[group] for group in groups])

    # -- attention against the base ------------------------------------------------------------------------------

    def step(self, columns: Sequence[int]) -> Step:
        """Return where some columns stand and what they may see, made once per sweep."""
        key = tuple(columns)
        if key not in self._steps:
            self._steps[key] = self.base.step.at(span(columns), self.width)
        return self._steps[key]

    def _cached(self, layer: int, what: str) -> Float[Tensor, "batch pos head d_head"]:
        """Return the base's queries, keys or values as attention meets them."""
        if (layer, what) not in self._met:
            attn, own = self.model.blocks[layer].attn, self.base.at(layer, f"attn.hook_{what}")
            meet = {"q": attn.queries, "k": attn.keys}.get(what)
            self._met[layer, what] = own if meet is None else meet(own, self.base.step)
        return self._met[layer, what]

    def after_base(self, layer: int, what: str, start: int, own: Tensor) -> Tensor:
        """Return keys or values of all columns: the base's before ``start``, each cell's own from there."""
        if start == 0:
            return own
        before = self._cached(layer, what)[:, :start]
        return torch.cat([before.expand(len(own), *before.shape), own], dim=2)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, columns: Columns) -> Tensor:
        """Return z ``[cell, batch, column, head, d_head]`` of queries at ``columns`` against all keys."""
        n, batch = q.shape[:2]
        attn = self.model.blocks[layer].attn
        mask = self.step(columns).mask(attn.window)
        if mask.allowed is not None and mask.allowed.shape[0] > 1:
            mask = type(mask)(mask.allowed.repeat(n, 1, 1, 1), mask.causal)
        return attn.attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), mask).unflatten(0, (n, batch))

    def attend_as_base(self, layer: int, v: Tensor, columns: Columns, heads: Tensor | None = None) -> Tensor:
        """Return z of values under the base's own pattern, of all heads or of each cell's ``heads``."""
        pattern = self.base.at(layer, "attn.hook_pattern")[:, :, span(columns), : self.width]
        group = self.model.cfg.group_size
        if heads is None:
            grouped = pattern.unflatten(1, (-1, group))
            return einsum(grouped, v, "b kv group q k, n b k kv d -> n b q kv group d").flatten(3, 4)
        picked = pattern[:, heads].movedim(1, 0).unflatten(2, (-1, group))
        return einsum(picked, v, "n b kv group q k, n b k kv d -> n b q kv group d").flatten(3, 4)


def _pick(
    x: Float[Tensor, "batch pos head d"], heads: Int[Tensor, "cell chosen"]
) -> Float[Tensor, "cell batch pos chosen d"]:
    """Return each cell's own heads."""
    return x[:, :, heads].movedim(2, 0)
