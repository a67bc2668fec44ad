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
                sites behind the block's last sublayer, and all but resid_pre in parallel blocks: 0
    blocks between                        T - start each
    last block, where it is not its own   r

for every example of the batch. So twice the layers cost about four times as much, and so do twice the positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from interp.interventions.cells import Cell
from interp.interventions.entering import Columns, Entrances, Entry, Values, span
from models.parts.sublayer import Sublayer

MLP_CHUNK = 1024  # tokens whose d_mlp activations fit the processor's cache

Groups = dict[int, tuple[list[Cell], Values]]


class Wavefront:
    """One resumed sweep over some cells.

    Args:
        entrances: what is patched, into which run, and where it enters.
        on_progress: told the block-tokens done so far, after each layer.
    """

    def __init__(self, entrances: Entrances, on_progress: Callable[[int], None]) -> None:
        self.entrances, self.on_progress = entrances, on_progress
        self.model, self.base = entrances.model, entrances.base
        self.n_layers, self.width = entrances.n_layers, entrances.width
        self.block_tokens = 0

    def run(self, cells: Sequence[Cell]) -> tuple[list[Cell], Float[Tensor, "cell batch read d_model"]]:
        """Return the cells in the order in which they were computed, and their streams leaving the last block.

        The streams are those of the columns that are read; cells that change none of them are left out.
        """
        by_layer: dict[int, list[Cell]] = defaultdict(list)
        for cell in cells:
            by_layer[cell.index["layer"]].append(cell)
        groups: Groups = {}
        for layer in range(min(by_layer), self.n_layers):
            groups = self._block(layer, groups, self.entrances.entries(layer, by_layer[layer]))
            self.on_progress(self.block_tokens)
        return self._collect(groups)

    # -- one block -----------------------------------------------------------------------------------------------

    def _block(self, layer: int, groups: Groups, entries: list[Entry]) -> Groups:
        """Take the wavefront through one block; cells patched inside this block join it where they enter."""
        block, before = self.model.blocks[layer], self.entrances.sublayers_before(layer)
        if before == 0:
            for entry in entries:
                self._join(groups, layer, entry)
        attention, *others = block.sublayers  # behind attention, no column of a block sees another
        entering, stream, shapes = self._attended(layer, attention, groups)
        inside: list[Entry] = []
        for n, sublayer in enumerate(others, start=1):
            if n == before:
                inside = entries
                stream = torch.cat([stream, *(entry.stream.flatten(0, 2) for entry in inside)])
            stream = self._pointwise(sublayer, entering if block.parallel else stream, stream)
        self.block_tokens += len(stream)
        shapes += [entry.stream.shape for entry in inside]
        parts = [
            part.view(shape) for part, shape in zip(stream.split([s[:3].numel() for s in shapes]), shapes, strict=True)
        ]
        leaving = {start: (cells, part) for (start, (cells, _)), part in zip(groups.items(), parts, strict=False)}
        joining = [entry._replace(stream=part) for entry, part in zip(inside, parts[len(groups) :], strict=True)]
        for entry in joining if inside or before < len(block.sublayers) else entries:
            self._join(leaving, layer + 1, entry)
        return leaving

    def _attended(self, layer: int, attention: Sublayer, groups: Groups) -> tuple[Tensor, Tensor, list[torch.Size]]:
        """Return the streams before and after attention, token by token, and the shape of each group's.

        They are of all columns from each group's start on; in the last block, of those that are read.
        """
        run, attn = self.entrances, self.model.blocks[layer].attn
        if not groups:
            nothing = run.base.entering(layer, self.n_layers).flatten(0, 1)[:0]
            return nothing, nothing, []
        stream = torch.cat([x.flatten(0, 2) for _, x in groups.values()])
        read = attention.read(stream)
        sizes = [x.shape[:3].numel() for _, x in groups.values()]
        v = attn.v(read).split(sizes)
        k = v if run.base.frozen else attn.k(read).split(sizes)
        last = layer == self.n_layers - 1
        if last:
            stream, read = (self._only_read(flat, groups, sizes) for flat in (stream, read))
        columns = {start: self._columns(start, last) for start in groups}
        shapes = [torch.Size((*x.shape[:2], len(columns[start]), x.shape[3])) for start, (_, x) in groups.items()]
        q = v if run.base.frozen else attn.q(read).split([shape[:3].numel() for shape in shapes])
        zs = []
        for i, (start, (cells, x)) in enumerate(groups.items()):
            own = (len(cells), x.shape[1], self.width - start, -1, attn.d_head)
            vg = run.after_base(layer, "v", start, v[i].view(own))
            if run.base.frozen:
                zs.append(run.attend_as_base(layer, vg, columns[start]))
                continue
            kg = attn.keys(k[i].view(own), run.step(range(start, self.width)))
            kg = run.after_base(layer, "k", start, kg)
            qg = attn.queries(q[i].view(*shapes[i][:3], -1, attn.d_head), run.step(columns[start]))
            zs.append(run.attend(layer, qg, kg, vg, columns[start]))
        attn_out = attn.o(torch.cat([z.flatten(3).flatten(0, 2) for z in zs]))
        return stream, attention.join(stream, attn_out), shapes

    def _only_read(self, flat: Tensor, groups: Groups, sizes: list[int]) -> Tensor:
        parts = []
        for (start, (_, x)), part in zip(groups.items(), flat.split(sizes), strict=True):
            index = span([column - start for column in self._columns(start, True)])
            parts.append(part.view(*x.shape[:3], -1)[:, :, index].flatten(0, 2))
        return torch.cat(parts)

    def _pointwise(self, sublayer: Sublayer, read: Values, stream: Values) -> Float[Tensor, "token d_model"]:
        """Take streams through a sublayer that works token by token, some tokens at a time."""
        if not len(stream):
            return stream
        pairs = zip(read.split(MLP_CHUNK), stream.split(MLP_CHUNK), strict=True)
        return torch.cat([sublayer.join(chunk, sublayer.out(of)) for of, chunk in pairs])

    def _columns(self, start: int, last: bool) -> Columns:
        return [c for c in self.base.read if c >= start] if last else list(range(start, self.width))

    def _join(self, groups: Groups, layer: int, entry: Entry) -> None:
        """Add cells to the group of their start, as they enter ``layer``."""
        start = entry.start
        columns = self._columns(start, layer == self.n_layers)
        if entry.columns == columns:
            stream = entry.stream
        else:
            stream = self.base.entering(layer, self.n_layers)[:, columns].expand(len(entry.cells), -1, -1, -1).clone()
            stream[:, :, span([columns.index(c) for c in entry.columns])] = entry.stream
        if start in groups:
            cells, before = groups[start]
            groups[start] = (cells + entry.cells, torch.cat([before, stream]))
        else:
            groups[start] = (list(entry.cells), stream)

    # -- the end -------------------------------------------------------------------------------------------------

    def _collect(self, groups: Groups) -> tuple[list[Cell], Float[Tensor, "cell batch read d_model"]]:
        final = self.base.entering(self.n_layers, self.n_layers)[:, self.base.read]
        order: list[Cell] = []
        parts = []
        for start, (cells, stream) in groups.items():
            before = [i for i, column in enumerate(self.base.read) if column < start]
            whole = torch.cat([final[:, before].expand(len(cells), -1, -1, -1), stream], dim=2) if before else stream
            order += cells
            parts.append(whole)
        return order, torch.cat(parts) if parts else final.new_empty(0, *final.shape)
