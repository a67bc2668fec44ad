"""The resumed sweep: all cells at once, recomputing only what each of them can change.

The run that is patched into (the *base*) is kept once. A cell replaces part of an activation in block ``l`` and first
changes column ``start``; then

* blocks below ``l`` and columns before ``start`` are the base's, their keys and values too;
* block ``l`` is entered where the activation is: a patched ``z`` costs one product with ``W_O``, not a block;
* the cells form one *wavefront*: at layer i every cell patched at a layer <= i is active, all their tokens in one
  matrix product per weight, so that each layer's weights are read once per sweep and not once per cell;
* in the last block only the columns that the metric reads get queries, an MLP and an unembedding.

Cells with the same ``start`` are a *group*, ``[cell, batch, column, d_model]``, and attend in one call.

**Cost**, in block-tokens (one token through one block's attention output and MLP): a cell at layer l of L, with T
columns up to the last one read and r of them read at or after ``start``, takes

    own block   resid_pre, k, v:          T - start      (r in the last block)
                other sites, one column:  1              (1 if read, in the last block)
                other sites, all columns: T - start      (r in the last block)
                mlp_post, mlp_out, resid_post, and all but resid_pre in parallel or attention-only blocks: 0
    blocks between                        T - start each
    last block, where it is not its own   r

for every example of the batch. So twice the layers cost about four times as much, and so do twice the positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from interp.interventions.cells import Cell, Grid
from models.protocol import ResumableModel

Columns = list[int]
_MLP_CHUNK = 1024  # tokens whose d_mlp activations fit the processor's cache

Values = Float[Tensor, "cell batch column d_model"]


@dataclass(frozen=True)
class Base:
    """The run that is patched into.

    Attributes:
        kept: activations by hook name, ``[batch, ...]``; ``needed_of_base`` says which.
        step: where its columns stand and what they may see.
        read: the columns that metrics read, ascending.
    """

    kept: Mapping[str, Tensor]
    step: Any
    read: Columns

    def at(self, layer: int, hook: str) -> Tensor:
        """Return one activation of one layer."""
        return self.kept[f"blocks.{layer}.{hook}"]

    def entering(self, layer: int, n_layers: int) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream entering a block, or leaving the last one."""
        return self.at(layer, "hook_resid_pre") if layer < n_layers else self.at(layer - 1, "hook_resid_post")


def needed_of_base(model: ResumableModel, site: str) -> set[str]:
    """Return the hooks, without ``blocks.{l}.``, that the base of a sweep over ``site`` must keep."""
    rotary = model.cfg.positions == "rotary"
    needed = {"hook_resid_pre", "attn.hook_rot_k" if rotary else "attn.hook_k", "attn.hook_v"}
    if site in ("q", "k", "v", "pattern", "z", "result", "attn_out"):
        needed |= {"attn.hook_z", "hook_attn_out", "attn.hook_rot_q" if rotary else "attn.hook_q"}
    if site == "pattern":
        needed |= {"attn.hook_pattern"}
    if site in ("mlp_post", "mlp_out"):
        needed |= {"mlp.hook_post", "hook_mlp_out"} | (set() if model.cfg.parallel else {"hook_resid_mid"})
    return needed


class Entry(NamedTuple):
    """Cells at the place where they enter the wavefront: their stream at ``columns``, all else being the base's."""

    start: int
    columns: Columns
    cells: list[Cell]
    stream: Values


class Wavefront:
    """One resumed sweep over some cells of a grid.

    Args:
        model: a model whose blocks can be run from outside, with no hooks attached.
        grid: what the cells mean.
        base: the run that is patched into.
        source: for a layer, the activation that cells take their values from, ``[batch, ...]``.
        first: the first column in which source and base can differ.
        on_progress: told the block-tokens done after each layer.
    """

    def __init__(
        self,
        model: ResumableModel,
        grid: Grid,
        base: Base,
        source: Callable[[int], Tensor],
        first: int,
        on_progress: Callable[[int], None],
    ) -> None:
        self.model, self.grid, self.base, self.source = model, grid, base, source
        self.first, self.on_progress = first, on_progress
        self.site = grid.site.name
        self.n_layers = len(model.blocks)
        self.width = base.read[-1] + 1
        self.block_tokens = 0

    def run(self, cells: Sequence[Cell]) -> tuple[list[Cell], Float[Tensor, "cell batch read d_model"]]:
        """Return the cells in the order in which they were computed, and their streams leaving the last block.

        The streams are those of the columns that are read.
        """
        by_layer: dict[int, list[Cell]] = defaultdict(list)
        for cell in cells:
            by_layer[cell.index["layer"]].append(cell)
        groups: dict[int, tuple[list[Cell], Values]] = {}
        for layer in range(min(by_layer), self.n_layers):
            here = by_layer.get(layer, [])
            if self.site == "resid_pre":
                for entry in self._by_start(here, layer, self._stream_entry):
                    self._join(groups, layer, entry)
            groups = self._block(layer, groups, [] if self.site == "resid_pre" else here)
            self.on_progress(self.block_tokens)
        return self._collect(groups)

    # -- one block -----------------------------------------------------------------------------------------------

    def _block(
        self, layer: int, groups: dict[int, tuple[list[Cell], Values]], here: list[Cell]
    ) -> dict[int, tuple[list[Cell], Values]]:
        """Take the wavefront through one block; cells patched inside this block join it on the way."""
        block = self.model.blocks[layer]
        waves = self._attention(layer, groups)
        if self.site in ("mlp_post", "mlp_out", "resid_post"):
            entering: list[Entry] = []
            leaving = list(self._by_start(here, layer, self._late_entry))
        else:
            inside = list(self._by_start(here, layer, self._middle_entry))
            skips_mlp = block.parallel or block.mlp is None
            entering, leaving = ([], inside) if skips_mlp else (inside, [])
        streams = [stream for _, stream in waves.values()] + [entry.stream for entry in entering]
        if streams and block.mlp is not None and not block.parallel:
            streams = self._through_mlp(block, streams)
        groups = {}
        for (start, (cells, _)), stream in zip(waves.items(), streams, strict=False):
            groups[start] = (cells, stream)
        for entry, stream in zip(entering, streams[len(waves) :], strict=True):
            self._join(groups, layer + 1, entry._replace(stream=stream))
        for entry in leaving:
            self._join(groups, layer + 1, entry)
        return groups

    def _attention(
        self, layer: int, groups: dict[int, tuple[list[Cell], Values]]
    ) -> dict[int, tuple[list[Cell], Values]]:
        """Return every group's stream after attention (in a parallel block, after both sublayers)."""
        if not groups:
            return {}
        block, attn = self.model.blocks[layer], self.model.blocks[layer].attn
        stream = torch.cat([x.flatten(0, 2) for _, x in groups.values()])
        read = block.attention_read(stream)
        sizes = [x.shape[:3].numel() for _, x in groups.values()]
        k, v = (linear(read).split(sizes) for linear in (attn.k, attn.v))
        last = layer == self.n_layers - 1
        if last:
            stream, read = (self._only_read(flat, groups, sizes) for flat in (stream, read))
        columns = {start: self._columns(start, last) for start in groups}
        q_sizes = [len(cells) * x.shape[1] * len(columns[start]) for start, (cells, x) in groups.items()]
        q = attn.q(read).split(q_sizes)
        zs = []
        for i, (start, (cells, x)) in enumerate(groups.items()):
            n, batch = len(cells), x.shape[1]
            kg = k[i].view(n, batch, self.width - start, -1, attn.d_head)
            vg = v[i].view(n, batch, self.width - start, -1, attn.d_head)
            qg = q[i].view(n, batch, len(columns[start]), -1, attn.d_head)
            kg = self._after_base(layer, "k", start, attn.rotate(kg, self._turn(range(start, self.width))))
            vg = self._after_base(layer, "v", start, vg)
            zs.append(self._attend(layer, attn.rotate(qg, self._turn(columns[start])), kg, vg, columns[start]))
        attn_out = attn.o(torch.cat([z.flatten(3).flatten(0, 2) for z in zs]))
        if block.parallel:
            self.block_tokens += len(stream)
            stream = stream + attn_out + self._chunked(block.mlp_out, stream)
        else:
            stream = block.add_attention(stream, attn_out)
            if block.mlp is None:
                self.block_tokens += len(stream)
        shapes = [(len(cells), x.shape[1], len(columns[start])) for start, (cells, x) in groups.items()]
        parts = stream.split(q_sizes)
        return {
            start: (cells, part.view(*shape, -1))
            for (start, (cells, _)), part, shape in zip(groups.items(), parts, shapes, strict=True)
        }

    def _only_read(self, flat: Tensor, groups: dict[int, tuple[list[Cell], Values]], sizes: list[int]) -> Tensor:
        parts = []
        for (start, (_, x)), part in zip(groups.items(), flat.split(sizes), strict=True):
            index = torch.tensor([column - start for column in self._columns(start, True)], device=flat.device)
            parts.append(part.view(*x.shape[:3], -1)[:, :, index].flatten(0, 2))
        return torch.cat(parts)

    def _through_mlp(self, block: Any, streams: list[Values]) -> list[Values]:
        flat = torch.cat([stream.flatten(0, 2) for stream in streams])
        self.block_tokens += len(flat)
        out = self._chunked(block.add_mlp, flat)
        sizes = [stream.shape[:3].numel() for stream in streams]
        return [part.view(stream.shape) for part, stream in zip(out.split(sizes), streams, strict=True)]

    def _chunked(self, function: Callable[[Tensor], Tensor], flat: Float[Tensor, "token d_model"]) -> Tensor:
        """Apply a position-wise function to some tokens at a time."""
        return torch.cat([function(chunk) for chunk in flat.split(_MLP_CHUNK)])

    # -- attention against the base ------------------------------------------------------------------------------

    def _columns(self, start: int, last: bool) -> Columns:
        return [c for c in self.base.read if c >= start] if last else list(range(start, self.width))

    def _turn(self, columns: Sequence[int]) -> Any:
        """Return the rotation of some columns, or None."""
        if self.base.step.rotation is None:
            return None
        index = torch.tensor(list(columns), device=self.base.step.positions.device)
        return tuple(part[:, index] for part in self.base.step.rotation)

    def _cached(self, layer: int, what: str) -> Float[Tensor, "batch pos head d_head"]:
        rotated = what != "v" and self.base.step.rotation is not None
        return self.base.at(layer, f"attn.hook_rot_{what}" if rotated else f"attn.hook_{what}")

    def _after_base(self, layer: int, what: str, start: int, own: Tensor) -> Tensor:
        """Return keys or values of all columns: the base's before ``start``, each cell's own from there."""
        if start == 0:
            return own
        before = self._cached(layer, what)[:, :start]
        return torch.cat([before.expand(len(own), *before.shape), own], dim=2)

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, columns: Columns) -> Tensor:
        """Return z ``[cell, batch, column, head, d_head]`` of queries at ``columns`` against all keys."""
        n, batch = q.shape[:2]
        mask = self.base.step.mask.rows(torch.tensor(columns, device=q.device), self.width)
        if mask.allowed is not None and mask.allowed.shape[0] > 1:
            mask = type(mask)(mask.allowed.repeat(n, 1, 1, 1), mask.causal)
        attn = self.model.blocks[layer].attn
        return attn.attend(*(x.flatten(0, 1) for x in (q, k, v)), mask).unflatten(0, (n, batch))

    # -- where cells enter ---------------------------------------------------------------------------------------

    def _by_start(
        self, cells: list[Cell], layer: int, entry: Callable[[int, int, Columns, list[Cell]], Values]
    ) -> list[Entry]:
        """Group cells by what they change first, and compute each group's entry (none where nothing read changes)."""
        groups: dict[tuple[int, int | None], list[Cell]] = defaultdict(list)
        for cell in cells:
            groups[self.start(cell), cell.column].append(cell)
        entries = []
        for (start, column), members in groups.items():
            columns = self._changed(start, column)
            if layer == self.n_layers - 1 and self.site != "resid_pre":
                columns = [c for c in columns if c in self.base.read]
            if columns:
                entries.append(Entry(start, columns, members, entry(layer, start, columns, members)))
        return entries

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

    def _join(self, groups: dict[int, tuple[list[Cell], Values]], layer: int, entry: Entry) -> None:
        """Add cells to the group of their start, as they enter ``layer``."""
        start = entry.start
        columns = self._columns(start, layer == self.n_layers)
        if entry.columns == columns:
            stream = entry.stream
        else:
            stream = self.base.entering(layer, self.n_layers)[:, columns].expand(len(entry.cells), -1, -1, -1).clone()
            stream[:, :, [columns.index(c) for c in entry.columns]] = entry.stream
        if start in groups:
            cells, before = groups[start]
            groups[start] = (cells + entry.cells, torch.cat([before, stream]))
        else:
            groups[start] = (list(entry.cells), stream)

    def _stream_entry(self, layer: int, start: int, columns: Columns, cells: list[Cell]) -> Values:
        """resid_pre, resid_mid, resid_post: the source's stream itself."""
        return self.source(layer)[:, columns].expand(len(cells), -1, -1, -1)

    def _middle_entry(self, layer: int, start: int, columns: Columns, cells: list[Cell]) -> Values:
        """Return the stream after attention (in a parallel block, after both sublayers)."""
        if self.site == "resid_mid":
            return self._stream_entry(layer, start, columns, cells)
        block = self.model.blocks[layer]
        before = self.base.at(layer, "hook_attn_out")[:, columns]
        if self.site == "attn_out":
            attn_out = self.source(layer)[:, columns].expand(len(cells), -1, -1, -1)
        else:
            attn_out = before + self._head_write(layer, columns, cells)
        if block.parallel:
            return self.base.entering(layer + 1, self.n_layers)[:, columns] + (attn_out - before)
        return block.add_attention(self.base.at(layer, "hook_resid_pre")[:, columns], attn_out)

    def _head_write(self, layer: int, columns: Columns, cells: list[Cell]) -> Values:
        """Return the change of attn_out that the patched heads make."""
        attn = self.model.blocks[layer].attn
        heads = self._heads(layer, cells)
        z_before = _pick(self.base.at(layer, "attn.hook_z")[:, columns], heads)
        if self.site == "result":
            after = _pick(self.source(layer)[:, columns], heads)
            return (after - einsum(z_before, attn.W_O[heads], "n b c h e, n h e d -> n b c h d")).sum(3)
        if self.site == "z":
            z = _pick(self.source(layer)[:, columns], heads)
        elif self.site == "pattern":
            z = self._z_of_pattern(layer, columns, cells, heads)
        else:
            z = self._z_of_qkv(layer, columns, cells, heads)
        return einsum(z - z_before, attn.W_O[heads], "n b c h e, n h e d -> n b c d")

    def _heads(self, layer: int, cells: list[Cell]) -> Int[Tensor, "cell head"]:
        """Return the query heads that each cell reaches."""
        cfg, device = self.model.cfg, self.base.step.positions.device
        if "kv_head" in self.grid.axes:
            kv = torch.tensor([cell.index["kv_head"] for cell in cells], device=device)
            return kv[:, None] * cfg.group_size + torch.arange(cfg.group_size, device=device)
        if "head" in self.grid.axes:
            return torch.tensor([[cell.index["head"]] for cell in cells], device=device)
        return torch.arange(cfg.n_heads, device=device).expand(len(cells), -1)

    def _z_of_pattern(self, layer: int, columns: Columns, cells: list[Cell], heads: Tensor) -> Tensor:
        base, source = (
            pattern[:, heads][..., columns, : self.width].movedim(1, 0)  # [cell, batch, head, column, key]
            for pattern in (self.base.at(layer, "attn.hook_pattern"), self.source(layer))
        )
        pattern = source
        if "src_pos" in self.grid.axes:
            src = torch.tensor([cell.index["src_pos"] for cell in cells], device=heads.device)
            chosen = torch.arange(self.width, device=heads.device) == src.view(-1, 1, 1, 1, 1)
            pattern = torch.where(chosen, source, base)
        v = _pick(self.base.at(layer, "attn.hook_v")[:, : self.width], heads // self.model.cfg.group_size)
        return einsum(pattern, v, "n b h q k, n b k h d -> n b q h d")

    def _z_of_qkv(self, layer: int, columns: Columns, cells: list[Cell], heads: Tensor) -> Tensor:
        attn, group = self.model.blocks[layer].attn, self.model.cfg.group_size
        column = cells[0].column  # shared: cells are grouped by it
        patched = list(range(self.first, self.width)) if column is None else [column]
        turn = self._turn(patched)
        if self.site == "q":
            q = _pick(attn.rotate(self.source(layer)[:, columns], self._turn(columns)), heads)
            k, v = (_pick(self._cached(layer, what)[:, : self.width], heads // group) for what in ("k", "v"))
            return self._attend(layer, q, k, v, columns)
        kv_heads = heads[:, ::group] // group
        q = _pick(self._cached(layer, "q")[:, columns], heads)
        k, v = (_pick(self._cached(layer, what)[:, : self.width], kv_heads) for what in ("k", "v"))
        value = self.source(layer)[:, patched]
        if self.site == "k":
            k[:, :, patched] = _pick(attn.rotate(value, turn), kv_heads)
        else:
            v[:, :, patched] = _pick(value, kv_heads)
        return self._attend(layer, q, k, v, columns)

    def _late_entry(self, layer: int, start: int, columns: Columns, cells: list[Cell]) -> Values:
        """Return the stream leaving the block for mlp_post, mlp_out and resid_post."""
        if self.site == "resid_post":
            return self._stream_entry(layer, start, columns, cells)
        block = self.model.blocks[layer]
        before = self.base.at(layer, "hook_mlp_out")[:, columns]
        source = self.source(layer)[:, columns]
        if self.site == "mlp_out":
            mlp_out = source.expand(len(cells), -1, -1, -1)
        else:
            change = source - self.base.at(layer, "mlp.hook_post")[:, columns]
            if self.grid.neuron_groups is None:
                mlp_out = (before + change @ block.mlp.W_out).expand(len(cells), -1, -1, -1)
            else:
                groups = [self.grid.neuron_groups[cell.index["neuron"]].to(change.device) for cell in cells]
                mlp_out = torch.stack([before + change[..., g] @ block.mlp.W_out[g] for g in groups])
        if block.parallel:
            return self.base.entering(layer + 1, self.n_layers)[:, columns] + (mlp_out - before)
        return block.add_mlp_out(self.base.at(layer, "hook_resid_mid")[:, columns], mlp_out)

    # -- the end -------------------------------------------------------------------------------------------------

    def _collect(
        self, groups: dict[int, tuple[list[Cell], Values]]
    ) -> tuple[list[Cell], Float[Tensor, "cell batch read d_model"]]:
        final = self.base.entering(self.n_layers, self.n_layers)[:, self.base.read]
        order: list[Cell] = []
        parts = []
        for start, (cells, stream) in groups.items():
            before = [i for i, column in enumerate(self.base.read) if column < start]
            whole = torch.cat([final[:, before].expand(len(cells), -1, -1, -1), stream], dim=2) if before else stream
            order += cells
            parts.append(whole)
        return order, torch.cat(parts) if parts else final.new_empty(0, *final.shape)


def _pick(
    x: Float[Tensor, "batch pos head d"], heads: Int[Tensor, "cell chosen"]
) -> Float[Tensor, "cell batch pos chosen d"]:
    """Return each cell's own heads."""
    return x[:, :, heads].movedim(2, 0)
