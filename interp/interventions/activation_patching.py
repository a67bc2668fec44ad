"""Activation patching: put an activation of one run into another, cell by cell, and measure what comes back.

``denoise`` runs the corrupted prompt with clean activations put in (what suffices to bring the answer back; it misses
AND-gates); ``noise`` runs the clean prompt with corrupted ones (what is necessary; it misses OR-gates and backups).
Sources: causal tracing (arXiv 2202.05262), best practices (2309.16042).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.checks import whole_number
from interp.decoders import can_resume
from interp.finite import check_computed, check_model
from interp.interventions.cells import Grid, check_axes, find_site, n_layers_of
from interp.interventions.entering import Base, needed_of_base
from interp.interventions.metric_result import by_metric
from interp.interventions.patching_result import PatchingResult, make_result
from interp.interventions.prompts import Prompts, aligned
from interp.interventions.sweep import (
    DEFAULT_MEMORY,
    Progress,
    baseline,
    naive_sweep,
    read_columns,
    resumed_sweep,
)
from interp.metrics import AnyMetric, Metric, fitting
from models.errors import InputError
from models.protocol import HookedModel, ResumableModel

Direction = Literal["denoise", "noise"]


def activation_patching(
    model: HookedModel,
    clean: Prompts,
    corrupted: Prompts,
    metric: AnyMetric | Mapping[str, AnyMetric],
    *,
    site: str = "resid_pre",
    over: str | Sequence[str] = ("layer", "pos"),
    direction: Direction = "denoise",
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    neuron_groups: int | None = None,
    per_example: bool = True,
    memory: int = DEFAULT_MEMORY,
    progress: Progress | None = None,
) -> PatchingResult:
    """Patch every cell of a grid once.

    Args:
        model: any hooked model; a ``HookedDecoder`` is resumed, others take one whole run per cell.
        clean, corrupted: prompts that go in pairs of equal token length: ids ``[batch, pos]`` (a tensor, an array or
            lists), a text, or texts (pairs of different length are padded on the right).
        metric: one of ``interp.metrics``, a function of logits ``[batch, pos, d_vocab]``, or several by name.
        site: ``resid_pre``, ``resid_mid``, ``resid_post``, ``attn_out``, ``mlp_out``, ``mlp_post``, ``z``, ``q``,
            ``k``, ``v``, ``pattern`` or ``result``.
        over: the axes of the grid: ``layer``; ``pos``; ``head`` (``kv_head`` for k and v); ``dest_pos`` and
            ``src_pos`` for the pattern; ``neuron`` for mlp_post. What is not named is replaced whole.
        direction: ``denoise`` puts clean activations into the corrupted run, ``noise`` the reverse.
        attention_mask: True at real tokens; both prompts share it. Texts make their own.
        neuron_groups: how many groups the neurons go in (default: one by one).
        per_example: keep every example's value, which intervals and p-values need; False keeps means.
        memory: bytes that the sweep may take beside the two runs.
        progress: called with (done, in all), in block-tokens where the sweep is resumed, else in cells.

    Returns:
        The metric of every cell, ``values [*over, batch]``, with both runs' baselines.

    Raises:
        InputError: prompts that do not align, an unknown site or axis, a metric that does not fit.
        NonFiniteError: NaN or inf, with the first hook at which it appears.

    >>> from interp.metrics import LogitDifference
    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=10, n_ctx=8))
    >>> clean, corrupted = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 5, 4]])
    >>> found = activation_patching(model, clean, corrupted, LogitDifference(3, 5), site="z", over=("layer", "head"))
    >>> found.mean().shape, found.resumed
    ((2, 2), True)
    """
    found = find_site(site, model.cfg)
    axes = check_axes(found, over)
    if direction not in get_args(Direction):
        raise InputError(f"direction is {direction!r}; expected 'denoise' or 'noise'")
    memory = whole_number(memory, "memory")
    pair, real = aligned(model, clean, corrupted, attention_mask)
    tokens = pair[1] if direction == "denoise" else pair[0]
    metrics = fitting(metric, tokens, real, model.cfg.d_vocab)
    grid = Grid.of(found, axes, model.cfg, tokens.shape[1], neuron_groups)
    run: Any = _resumed if can_resume(model) and "layer" in axes else _naive
    check_model(model, *pair, real=real)
    with torch.inference_mode():
        sweep, baselines = run(model, grid, pair, real, direction, list(metrics.values()), memory, progress)
    check_computed(
        model, *pair, real=real,
        computed=by_metric(metrics, baselines, "the plain runs") | by_metric(metrics, sweep.finished(), "the patched"),
    )  # fmt: skip
    return make_result(
        model, grid, metrics, sweep, baselines, direction=direction, tokens=pair, per_example=per_example
    )


def _first_difference(pair: tuple[Tensor, Tensor], real: Tensor | None) -> int:
    """Return the first column in which some example differs; the width where none does."""
    differs = pair[0] != pair[1]
    if real is not None:
        differs = differs & real
    columns = differs.any(0).nonzero()
    return int(columns[0]) if len(columns) else pair[0].shape[1]


def _resumed(
    model: ResumableModel,
    grid: Grid,
    pair: tuple[Tensor, Tensor],
    real: Tensor | None,
    direction: Direction,
    metrics: list[Metric],
    memory: int,
    progress: Progress | None,
) -> tuple[Any, list[Tensor]]:
    batch, n_layers = pair[0].shape[0], len(model.blocks)
    names = [f"blocks.{layer}.{hook}" for layer in range(n_layers) for hook in needed_of_base(model, grid.site)]
    wanted = {
        *names,
        *(grid.site.hook_name(layer) for layer in range(n_layers)),
        f"blocks.{n_layers - 1}.hook_resid_post",
    }
    both = torch.cat(pair)
    mask = None if real is None else torch.cat([real, real])
    _, cache = model.run_with_cache(both, attention_mask=mask, names_filter=sorted(wanted), return_type=None)
    clean, corrupted = (
        {name: value[rows] for name, value in cache.items()} for rows in (slice(batch), slice(batch, None))
    )
    into, out_of = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    tokens = pair[1] if direction == "denoise" else pair[0]
    base = Base(into, model.step(tokens, real), read_columns(metrics, tokens, real))
    other = Base(out_of, base.step, base.read)
    first = _first_difference(pair, real)
    sweep = resumed_sweep(
        model, grid, grid.cells(), base, lambda layer: out_of[grid.site.hook_name(layer)], metrics, tokens, real,
        first=first, memory=memory, progress=progress,
    )  # fmt: skip

    runs = (other, base) if direction == "denoise" else (base, other)
    of_clean, of_corrupted = (baseline(model, metrics, run, tokens, real) for run in runs)
    return sweep, [torch.stack(pair) for pair in zip(of_clean, of_corrupted, strict=True)]


def _naive(
    model: HookedModel,
    grid: Grid,
    pair: tuple[Tensor, Tensor],
    real: Tensor | None,
    direction: Direction,
    metrics: list[Metric],
    memory: int,
    progress: Progress | None,
) -> tuple[Any, list[Tensor]]:
    n_layers = n_layers_of(model.cfg)
    names = [grid.site.hook_name(layer) for layer in range(n_layers)]
    into, out_of = (pair[1], pair[0]) if direction == "denoise" else pair
    _, cache = model.run_with_cache(out_of, attention_mask=real, names_filter=names)
    sweep = naive_sweep(
        model, grid, grid.cells(), lambda layer: cache[grid.site.hook_name(layer)], metrics, into, real,
        progress=progress,
    )  # fmt: skip
    logits = [model(side, attention_mask=real) for side in pair]
    return sweep, [torch.stack([metric.of_logits(one, real).cpu().double() for one in logits]) for metric in metrics]
