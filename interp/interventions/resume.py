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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.interventions.cells import Cell
from interp.interventions.entering import AFTER_MLP, Columns, Entrances, Entry, Values, span

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
        block = self.model.blocks[layer]
        before_mlp: list[Entry] = []
        after_block: list[Entry] = []
        if self.entrances.site == "resid_pre":
            for entry in entries:
                self._join(groups, layer, entry)
        elif self.entrances.site in AFTER_MLP or block.parallel or block.mlp is None:
            after_block = entries
        else:
            before_mlp = entries
        waves = self._attention(layer, groups)
        streams = [stream for _, stream in waves.values()] + [entry.stream for entry in before_mlp]
        if streams and block.mlp is not None and not block.parallel:
            streams = self._through_mlp(block, streams)
        leaving: Groups = {
            start: (cells, stream) for (start, (cells, _)), stream in zip(waves.items(), streams, strict=False)
        }
        after_mlp = zip(before_mlp, streams[len(waves) :], strict=True)
        for entry in [*(entry._replace(stream=stream) for entry, stream in after_mlp), *after_block]:
            self._join(leaving, layer + 1, entry)
        return leaving

    def _attention(self, layer: int, groups: Groups) -> Groups:
        """Return every group's stream after attention (in a parallel block, after both sublayers)."""
        if not groups:
            return {}
        run, block, attn = self.entrances, self.model.blocks[layer], self.model.blocks[layer].attn
        stream = torch.cat([x.flatten(0, 2) for _, x in groups.values()])
        read = block.attention_read(stream)
        sizes = [x.shape[:3].numel() for _, x in groups.values()]
        v = attn.v(read).split(sizes)
        k = v if run.base.frozen else attn.k(read).split(sizes)
        last = layer == self.n_layers - 1
        if last:
            stream, read = (self._only_read(flat, groups, sizes) for flat in (stream, read))
        columns = {start: self._columns(start, last) for start in groups}
        q_sizes = [len(cells) * x.shape[1] * len(columns[start]) for start, (cells, x) in groups.items()]
        q = read.split(q_sizes) if run.base.frozen else attn.q(read).split(q_sizes)
        zs = []
        for i, (start, (cells, x)) in enumerate(groups.items()):
            own = (len(cells), x.shape[1], self.width - start, -1, attn.d_head)
            vg = run.after_base(layer, "v", start, v[i].view(own))
            if run.base.frozen:
                zs.append(run.attend_as_base(layer, vg, columns[start]))
                continue
            kg = attn.rotate(k[i].view(own), run.turn(range(start, self.width)))
            kg = run.after_base(layer, "k", start, kg)
            qg = q[i].view(len(cells), x.shape[1], len(columns[start]), -1, attn.d_head)
            zs.append(run.attend(layer, attn.rotate(qg, run.turn(columns[start])), kg, vg, columns[start]))
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

    def _only_read(self, flat: Tensor, groups: Groups, sizes: list[int]) -> Tensor:
        parts = []
        for (start, (_, x)), part in zip(groups.items(), flat.split(sizes), strict=True):
            index = span([column - start for column in self._columns(start, True)])
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
        return torch.cat([function(chunk) for chunk in flat.split(MLP_CHUNK)])

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
