"""Sweeps: every cell of a grid replaced once, and judged by metrics; resumed where the model allows it, else naive.

The naive sweep runs the whole model once per cell. It is the definition: the resumed one gives the same numbers to
float tolerance, from ``Wavefront``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.cells import Cell, Grid
from interp.interventions.entering import AFTER_MLP, Base, Entrances
from interp.interventions.resume import Wavefront
from interp.metrics import Metric
from models.hooks.cache import ActivationCache
from models.hooks.point import HookPoint
from models.protocol import HookedModel, ResumableModel

DEFAULT_MEMORY = 1 << 30
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


def can_resume(model: HookedModel) -> bool:
    """Return whether the model's blocks can be entered halfway, and nothing is attached that would be passed by."""
    return isinstance(model, ResumableModel) and not any(point.in_use for point in model.hook_dict.values())


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
        return metric(model.unembed(normed))
    vocabulary = vocabulary.to(stream.device)
    if len(vocabulary) == 1:
        vocabulary = vocabulary.expand(stream.shape[1], -1)
    columns = model.W_U.T[vocabulary]  # [batch, token, d_model]
    logits = torch.einsum("nbrd,btd->nbrt", normed, columns)
    return metric(logits + model.b_U[vocabulary][:, None])


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
    final = base.entering(len(model.blocks), len(model.blocks))[:, base.read]
    baselines = [judge(model, metric, final[None], base.read, tokens, real)[0] for metric in metrics]
    n_cells = len(grid.cells())
    flat = [value.expand(n_cells, batch).clone() for value in baselines]
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
                values[numbers] = judge(model, metric, stream, base.read, tokens, real).to(values.dtype)
            sweep.done[[cell.number for cell in chunk]] = True
    except KeyboardInterrupt:
        sweep.complete = False
        for values in flat:
            values[~sweep.done] = torch.nan
    sweep.values = [values.view(*grid.sizes, batch) for values in flat]
    return sweep


def cost(entrances: Entrances, cell: Cell) -> int:
    """Return the block-tokens of one cell and one example, by the formula in ``interp.interventions.resume``."""
    start, layer, last = entrances.start(cell), cell.index["layer"], entrances.n_layers - 1
    block, site = entrances.model.blocks[layer], entrances.site
    tokens, read = entrances.width - start, sum(column >= start for column in entrances.base.read)
    if site in AFTER_MLP or (site != "resid_pre" and (block.parallel or block.mlp is None)):
        own = 0
    elif cell.column is None or site in ("resid_pre", "k", "v"):
        own = read if layer == last else tokens
    else:
        own = int(layer != last or cell.column in entrances.base.read)
    return own + max(last - layer - 1, 0) * tokens + (read if layer < last else 0)


def _chunks(
    cells: Sequence[Cell], entrances: Entrances, batch: int, metrics: Sequence[Metric], memory: int
) -> list[list[Cell]]:
    """Split cells so that each chunk's wavefront stays below ``memory`` bytes; cells of one start stay together."""
    cfg, size = entrances.model.cfg, entrances.model.W_E.element_size()
    n_read = len(entrances.base.read)
    full = any(metric.vocabulary() is None for metric in metrics)

    def bytes_of(cell: Cell) -> int:
        own = entrances.width - entrances.start(cell)
        stream = own * (5 * cfg.d_model + 3 * cfg.n_heads * cfg.d_head)
        keys = 4 * entrances.width * cfg.n_kv_heads * cfg.d_head
        logits = 3 * n_read * cfg.d_vocab if full else 0
        return batch * size * (stream + keys + logits)

    chunks: list[list[Cell]] = []
    room = 0
    for cell in sorted(cells, key=lambda cell: (entrances.start(cell), cell.index["layer"])):
        needed = bytes_of(cell)
        if not chunks or needed > room:
            chunks.append([])
            room = memory
        chunks[-1].append(cell)
        room -= needed
    return chunks


def naive_sweep(
    model: HookedModel,
    grid: Grid,
    cells: Sequence[Cell],
    source: Callable[[int], Tensor],
    metrics: Sequence[Metric],
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
    progress: Progress | None = None,
) -> Sweep:
    """Run the whole model once per cell, with one hook (one per layer where layers are not swept over)."""
    batch, n_layers = tokens.shape[0], cast(Any, model.cfg).n_layers
    flat = [torch.full((len(grid.cells()), batch), torch.nan) for _ in metrics]
    sweep = Sweep([], resumed=False, done=torch.zeros(len(grid.cells()), dtype=torch.bool))
    try:
        for number, cell in enumerate(cells):
            layers = [cell.index["layer"]] if "layer" in cell.index else list(range(n_layers))
            index = grid.index(cell)

            def replace(value: Tensor, hook: HookPoint, index: tuple[Any, ...] = index) -> None:
                assert hook.layer is not None
                value[index] = source(hook.layer)[index]

            hooks = [(grid.site.hook_name(layer), replace) for layer in layers]
            logits = model.run_with_hooks(tokens, attention_mask=real, fwd_hooks=hooks)
            for values, metric in zip(flat, metrics, strict=True):
                values[cell.number] = judge_logits(metric, logits, tokens, real)
            sweep.done[cell.number] = True
            sweep.block_tokens += tokens.numel() * n_layers
            if progress is not None:
                progress(number + 1, len(cells))
    except KeyboardInterrupt:
        sweep.complete = False
    sweep.values = [values.view(*grid.sizes, batch) for values in flat]
    return sweep


def judge_logits(
    metric: Metric,
    logits: Float[Tensor, "batch pos d_vocab"],
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
) -> Float[Tensor, "batch"]:
    """Return the metric of a whole run's logits."""
    where = metric.positions(tokens, real).to(logits.device)
    picked = logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1]))
    vocabulary = metric.vocabulary()
    if vocabulary is not None:
        picked = picked.gather(
            2, vocabulary.to(logits.device).expand(len(logits), -1)[:, None].expand(*picked.shape[:2], -1)
        )
    return metric(picked)


def kept(cache: ActivationCache | Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Return some rows of every cached activation."""
    return {name: value[rows] for name, value in cache.items()}
