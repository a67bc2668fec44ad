"""Sweeps: every cell of a grid replaced once, and judged by metrics; resumed where the model allows it, else naive.

The naive sweep runs the whole model once per cell. It is the definition: the resumed one gives the same numbers to
float tolerance, from ``Wavefront``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.cells import Cell, Grid, n_layers_of, renormalised
from interp.interventions.entering import Base, Entrances
from interp.interventions.resume import MLP_CHUNK, Wavefront
from interp.metrics import Metric
from interp.precision import at_least_float32
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel, ResumableModel

DEFAULT_MEMORY = 1 << 30
_WAVE_TOKENS = 4096  # enough that reading the weights costs nothing beside using them
Progress = Callable[[int, int], None]


@dataclass
class Sweep:
    """What a sweep found.

    Attributes:
        values: per metric, ``[*grid, batch]``; NaN at cells that an interrupt left out.
        block_tokens: how many (token, block) pairs were computed for the cells.
        resumed: False where the naive loop was taken.
        complete: False after an interrupt.
    """

    values: list[Float[Tensor, "*grid batch"]]
    block_tokens: int = 0
    resumed: bool = True
    complete: bool = True
    done: Bool[Tensor, "cell"] = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))

    def finished(self) -> list[Float[Tensor, "cell batch"]]:
        """Return per metric the values of the cells that were computed."""
        return [values.flatten(0, -2)[self.done] for values in self.values]


def read_columns(
    metrics: Sequence[Metric], tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"] | None
) -> list[int]:
    """Return every column that some metric reads, ascending."""
    return sorted({int(column) for metric in metrics for column in metric.positions(tokens, real).unique()})


def judge(
    model: ResumableModel,
    metric: Metric,
    stream: Float[Tensor, "cell batch read d_model"],
    read: Sequence[int],
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
) -> Float[Tensor, "cell batch"]:
    """Return the metric of streams leaving the last block at columns ``read``; only its logits are computed."""
    where = metric.positions(tokens, real)
    index = torch.searchsorted(torch.tensor(list(read), device=stream.device), where.contiguous())
    picked = stream.gather(2, index[None, :, :, None].expand(len(stream), -1, -1, stream.shape[-1]))
    normed = model.ln_final(picked)
    vocabulary = metric.vocabulary()
    if vocabulary is None:
        return metric(at_least_float32(model.unembed(normed)))
    vocabulary = vocabulary.to(stream.device)
    if len(vocabulary) == 1:
        vocabulary = vocabulary.expand(stream.shape[1], -1)
    return metric(at_least_float32(model.unembed.of_tokens(normed, vocabulary)))


def resumed_sweep(
    model: ResumableModel,
    grid: Grid,
    cells: Sequence[Cell],
    base: Base,
    source: Callable[[int], Tensor],
    metrics: Sequence[Metric],
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
    *,
    first: int = 0,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> Sweep:
    """Run a sweep from the base's kept states.

    Args:
        grid, cells: the grid, and the cells of it to compute; the others get the base's value.
        base: the run patched into.
        source: the activation to take values from, by layer.
        first: the first column where source and base can differ.
        memory: bytes that the wavefront may take; more cells than fit go in chunks.
        progress: called with (block-tokens done, in all).
    """
    batch = tokens.shape[0]
    n_cells = len(grid.cells())
    flat = [value.expand(n_cells, batch).clone() for value in baseline(model, metrics, base, tokens, real)]
    sweep = Sweep([], done=torch.ones(n_cells, dtype=torch.bool))
    entrances = Entrances(model, grid, base, source, first)
    wave = Wavefront(entrances, lambda done: progress(done, total) if progress is not None else None)
    useful = [cell for cell in cells if entrances.changes(cell)]
    sweep.done[[cell.number for cell in useful]] = False
    total = sum(cost(entrances, cell) for cell in useful) * batch
    try:
        for chunk in _chunks(useful, entrances, batch, metrics, memory):
            order, stream = wave.run(chunk)
            sweep.block_tokens = wave.block_tokens
            numbers = [cell.number for cell in order]
            for values, metric in zip(flat, metrics, strict=True):
                values[numbers] = judge(model, metric, stream, base.read, tokens, real).cpu().double()
            sweep.done[[cell.number for cell in chunk]] = True
    except KeyboardInterrupt:
        sweep.complete = False
        for values in flat:
            values[~sweep.done] = torch.nan
    sweep.values = [values.view(*grid.sizes, batch) for values in flat]
    return sweep


def baseline(
    model: ResumableModel,
    metrics: Sequence[Metric],
    run: Base,
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
) -> list[Float[Tensor, "batch"]]:
    """Return every metric of an unpatched run."""
    final = run.entering(len(model.blocks), len(model.blocks))[:, run.read]
    return [judge(model, metric, final[None], run.read, tokens, real)[0].cpu().double() for metric in metrics]


def cost(entrances: Entrances, cell: Cell) -> int:
    """Return the block-tokens of one cell and one example, by the formula in ``interp.interventions.resume``."""
    start, layer, last = entrances.start(cell), cell.index["layer"], entrances.n_layers - 1
    before, behind = entrances.sublayers_before(layer), len(entrances.model.blocks[layer].sublayers)
    tokens, read = entrances.width - start, sum(column >= start for column in entrances.base.read)
    if before == behind:
        own = 0
    elif cell.column is None or entrances.site in ("resid_pre", "k", "v"):
        own = read if layer == last else tokens
    else:
        own = int(layer != last or cell.column in entrances.base.read)
    return own + max(last - layer - 1, 0) * tokens + (read if layer < last else 0)


def _chunks(
    cells: Sequence[Cell], entrances: Entrances, batch: int, metrics: Sequence[Metric], memory: int
) -> list[list[Cell]]:
    """Split cells, those of neighbouring layers together.

    A chunk's wavefront stays below ``memory`` bytes, if one cell does. It is no wider than pays: what is finished is
    kept when a sweep is interrupted.
    """
    cfg, size = entrances.model.cfg, entrances.model.W_E.element_size()
    width, n_read = entrances.width, len(entrances.base.read)
    shared = 0 if cfg.d_mlp is None else 4 * MLP_CHUNK * cfg.d_mlp * size
    logits = bytes_of_logits(metrics, n_read, cfg.d_vocab, size)
    heads_width, kv_width = cfg.n_heads * cfg.d_head, cfg.n_kv_heads * cfg.d_head

    def bytes_of(cell: Cell) -> int:
        own = width - entrances.start(cell)
        stream = own * (6 * cfg.d_model + 4 * heads_width + 2 * width)
        keys = 6 * width * kv_width
        # per head and token, beside that: rows of the pattern, or of results
        heads = {"pattern": 4 * width, "result": 3 * cfg.d_model}.get(entrances.site, 0) * own * cfg.n_heads
        return batch * (size * (stream + keys + heads) + logits)

    chunks: list[list[Cell]] = []
    room = wide = 0
    for cell in sorted(cells, key=lambda cell: (cell.index["layer"], entrances.start(cell))):
        needed, tokens = bytes_of(cell), batch * (width - entrances.start(cell))
        if not chunks or needed > room or tokens > wide:
            chunks.append([])
            room, wide = memory - shared, _WAVE_TOKENS
        chunks[-1].append(cell)
        room -= needed
        wide -= tokens
    return chunks


def bytes_of_logits(metrics: Sequence[Metric], n_read: int, d_vocab: int, size: int) -> int:
    """Return the bytes that judging one example takes where a metric reads the whole vocabulary.

    That is four times its logits in float32 or wider (themselves, their log-softmax and two steps of a formula), and
    narrower ones beside them; ``size`` is the bytes of one of the model's numbers.
    """
    if all(metric.vocabulary() is not None for metric in metrics):
        return 0
    return n_read * d_vocab * (4 * size if size >= 4 else 4 * 4 + size)


def naive_sweep(
    model: HookedModel,
    grid: Grid,
    cells: Sequence[Cell],
    source: Callable[[int], Tensor],
    metrics: Sequence[Metric],
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
    *,
    frozen: Callable[[int], Tensor] | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Run the whole model once per cell, with one hook (one per layer where layers are not swept over).

    ``frozen`` gives the attention pattern that every layer is held to.
    """
    batch, n_layers = tokens.shape[0], n_layers_of(model.cfg)
    n_cells = len(grid.cells())
    flat = [torch.full((n_cells, batch), torch.nan, dtype=torch.float64) for _ in metrics]
    sweep = Sweep([], resumed=False, done=torch.zeros(n_cells, dtype=torch.bool))
    freeze = frozen_hooks(frozen, n_layers)
    try:
        for number, cell in enumerate(cells):
            layers = [cell.index["layer"]] if "layer" in cell.index else list(range(n_layers))
            index = grid.index(cell)

            def replace(value: Tensor, hook: HookPoint, index: tuple[Any, ...] = index) -> Tensor:
                assert hook.layer is not None
                value[index] = source(hook.layer)[index]
                return renormalised(value) if grid.renormalise else value

            hooks: list[Hook] = [(grid.site.hook_name(layer), replace) for layer in layers]
            logits = model.run_with_hooks(tokens, attention_mask=real, fwd_hooks=[*freeze, *hooks])
            for values, metric in zip(flat, metrics, strict=True):
                values[cell.number] = metric.of_logits(logits, real).cpu()
            sweep.done[cell.number] = True
            sweep.block_tokens += tokens.numel() * n_layers
            if progress is not None:
                progress(number + 1, len(cells))
    except KeyboardInterrupt:
        sweep.complete = False
    sweep.values = [values.view(*grid.sizes, batch) for values in flat]
    return sweep


def frozen_hooks(pattern: Callable[[int], Tensor] | None, n_layers: int) -> list[Hook]:
    """Return hooks that put every layer's attention pattern in the place of what would be computed."""
    if pattern is None:
        return []

    def freeze(value: Tensor, hook: HookPoint) -> Tensor:
        assert hook.layer is not None
        return pattern(hook.layer)

    return [(f"blocks.{layer}.attn.hook_pattern", freeze) for layer in range(n_layers)]
