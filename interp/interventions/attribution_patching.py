"""Attribution patching: activation patching to first order, every cell from one backward pass (arXiv 2310.10348).

    metric(base with the cell of source)  ~  metric(base) + sum over the cell of (a_source - a_base) * d metric / d a

It is exact where the metric is linear in the activation, and weak on the residual stream, the first MLP and saturated
queries; ``AttributionResult.compare`` says how weak. ``ig_steps``, ``qk_fix`` and ``grad_drop`` are remedies, see
``interp.interventions.gradients`` and ``interp.interventions.query_key``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.checks import whole_number
from interp.decoders import check_parts, is_resumable
from interp.finite import check_computed, check_model
from interp.interventions.activation_patching import Direction
from interp.interventions.attribution_result import AttributionResult
from interp.interventions.cells import Grid, check_axes, find_site, n_layers_of
from interp.interventions.gradients import backward_passes
from interp.interventions.metric_result import by_metric, common_fields
from interp.interventions.prompts import Prompts, aligned
from interp.interventions.query_key import QueryKeyRuns, needed
from interp.metrics import KL, AnyMetric, Metric, fitting
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.parts.step import Step
from models.protocol import HookedModel

_STREAM_SITES = ("resid_pre", "resid_mid", "resid_post")
_GRID_NAMES = {"query_pos": "dest_pos", "key_pos": "src_pos", "d_mlp": "neuron"}
_ZERO_KL = 1e-5


def attribution_patching(
    model: HookedModel,
    clean: Prompts,
    corrupted: Prompts,
    metric: AnyMetric | Mapping[str, AnyMetric],
    *,
    site: str = "z",
    over: str | Sequence[str] = ("layer", "head"),
    direction: Direction = "denoise",
    ig_steps: int = 1,
    qk_fix: bool = False,
    grad_drop: bool = False,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    neuron_groups: int | None = None,
) -> AttributionResult:
    """Estimate what ``activation_patching`` would find, on the same grid.

    Args:
        model: any hooked model.
        clean, corrupted, metric, site, over, direction, attention_mask, neuron_groups: see ``activation_patching``;
            the metric must be differentiable, and ``over`` must contain ``layer``.
        ig_steps: average the gradient over so many runs between the two.
        qk_fix: for sites q and k, compute the softmax anew instead of differentiating it.
        grad_drop: average the effect's magnitude over backward passes that leave out one layer each, as understood
            from the paper (see ``interp.interventions.gradients``); the changes are then magnitudes without a sign.

    Returns:
        The estimated metric of every cell, ``values [*over, batch]``, with both runs' baselines.

    Raises:
        InputError: what ``activation_patching`` refuses; ``over`` without ``layer``; options that do not fit the site;
            a metric without a gradient, or at its minimum (KL to the very run that is patched into).
        NonFiniteError: NaN or inf, with the first hook at which it appears.

    >>> from interp.metrics import LogitDifference
    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=4, d_vocab=10, n_ctx=8))
    >>> clean, corrupted = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 2, 5, 4]])
    >>> attribution_patching(model, clean, corrupted, LogitDifference(3, 5)).mean().shape
    (2, 4)
    """
    found = find_site(site, model.cfg)
    axes = check_axes(found, over)
    ig_steps = whole_number(ig_steps, "ig_steps", 1)
    _check_options(found.name, axes, direction, ig_steps, qk_fix, grad_drop, n_layers_of(model.cfg))
    if qk_fix and is_resumable(model):
        check_parts(model)  # scores are computed anew
    pair, real = aligned(model, clean, corrupted, attention_mask)
    tokens = pair[1] if direction == "denoise" else pair[0]
    metrics = fitting(metric, tokens, real, model.cfg.d_vocab)
    grid = Grid.of(found, axes, model.cfg, tokens.shape[1], neuron_groups)
    check_model(model, *pair, real=real)
    runs = _Runs.of(model, grid, pair, real, direction, list(metrics.values()), qk_fix)
    check_computed(model, *pair, real=real, computed=by_metric(metrics, runs.baselines, "the plain runs"))
    for one, of_base in zip(metrics.values(), runs.baselines, strict=True):
        _check_slope(one, of_base[1 if direction == "denoise" else 0], ig_steps)
    changes = _changes(model, grid, runs, tokens, real, list(metrics.values()), ig_steps, grad_drop)
    check_computed(model, *pair, real=real, computed=by_metric(metrics, changes, "the estimates"))
    return AttributionResult(
        site=found.name,
        axes=axes,
        direction=direction,
        ig_steps=ig_steps,
        qk_fix=qk_fix,
        grad_drop=grad_drop,
        values={
            name: (both[1 if direction == "denoise" else 0] + change).cpu().numpy()
            for name, both, change in zip(metrics, runs.baselines, changes, strict=True)
        },
        **common_fields(model, metrics, pair, runs.baselines),
    )


def _check_options(
    site: str, axes: Sequence[str], direction: str, ig_steps: int, qk_fix: bool, grad_drop: bool, n_layers: int
) -> None:
    if direction not in get_args(Direction):
        raise InputError(f"direction is {direction!r}; expected 'denoise' or 'noise'")
    if "layer" not in axes:
        raise InputError(
            f"over={tuple(axes)!r} patches several layers at once, whose first-order effects do not add up: each "
            "gradient already passes through the layers above; add 'layer', or use activation_patching"
        )
    if qk_fix and site not in ("q", "k"):
        raise InputError(
            f"qk_fix is about queries and keys; the site is {site!r}: use site='q' or 'k', or leave it out"
        )
    if grad_drop and n_layers < 2:
        raise InputError("grad_drop leaves out one layer at a time, and this model has only one")


def _check_slope(metric: Metric, of_base: Float[Tensor, "batch"], ig_steps: int) -> None:
    if isinstance(metric, KL) and ig_steps == 1 and bool((of_base < _ZERO_KL).all()):
        raise InputError(
            "kl is 0 on the run patched into, its minimum, where every gradient is 0 and nothing would be attributed: "
            "take the other run's logits as reference, the other direction, another metric, or ig_steps of 2 or more"
        )


@dataclass(frozen=True)
class _Runs:
    """Activations of the run patched into and of the other, and both runs' metrics."""

    base: ActivationCache
    source: ActivationCache
    baselines: list[Float[Tensor, "clean_and_corrupted batch"]]
    qk_fix: bool
    step: Step | None

    @staticmethod
    def of(
        model: HookedModel,
        grid: Grid,
        pair: tuple[Tensor, Tensor],
        real: Tensor | None,
        direction: str,
        metrics: Sequence[Metric],
        qk_fix: bool,
    ) -> _Runs:
        hooks = needed(model) if qk_fix else [grid.site.hook]
        names = [f"blocks.{layer}.{hook}" for layer in range(n_layers_of(model.cfg)) for hook in hooks]
        with torch.no_grad():
            runs = [
                model.run_with_cache(side, attention_mask=real, names_filter=[*names, "hook_embed"]) for side in pair
            ]
            baselines = [
                torch.stack([metric.of_logits(logits, real).double() for logits, _ in runs]) for metric in metrics
            ]
        caches = [cache for _, cache in runs]
        source, base = caches if direction == "denoise" else reversed(caches)
        return _Runs(base, source, baselines, qk_fix, model.step(pair[0], real) if is_resumable(model) else None)


def _changes(
    model: HookedModel,
    grid: Grid,
    runs: _Runs,
    tokens: Tensor,
    real: Tensor | None,
    metrics: Sequence[Metric],
    ig_steps: int,
    grad_drop: bool,
) -> list[Float[Tensor, "*grid batch"]]:
    """Return the estimated change of every cell, per metric."""
    n_layers = n_layers_of(model.cfg)
    total = [[torch.zeros(()) for _ in range(n_layers if grad_drop else 1)] for _ in metrics]
    passes = backward_passes(
        model,
        "attn.hook_pattern" if runs.qk_fix else grid.site.hook,
        tokens,
        real,
        metrics,
        embed_change=runs.source["hook_embed"] - runs.base["hook_embed"],
        ig_steps=ig_steps,
        grad_drop=grad_drop,
    )
    for one in passes:
        effects = [_effect(model, grid, runs, layer, gradient) for layer, gradient in enumerate(one.gradients)]
        so_far = total[one.metric]
        so_far[one.dropped or 0] = so_far[one.dropped or 0] + torch.stack(effects) / ig_steps
    where = grid.axes.index("layer")
    if not grad_drop:
        return [so_far[0].movedim(0, where) for so_far in total]
    # a layer that is left out is left out for what stands in it too, so that one of the passes finds nothing there
    n_passes = n_layers if grid.site.name in _STREAM_SITES else n_layers - 1
    return [(torch.stack(so_far).abs().sum(0) / n_passes).movedim(0, where) for so_far in total]


def _effect(model: HookedModel, grid: Grid, runs: _Runs, layer: int, gradient: Tensor) -> Float[Tensor, "*cell batch"]:
    """Return the first-order effect of one layer's cells, in the order of the grid's axes without ``layer``."""
    site, name = grid.site, grid.site.hook_name(layer)
    if runs.qk_fix:
        by_head, by_position = site.head_axis in grid.axes, "pos" in grid.axes
        queries_keys = QueryKeyRuns(model, runs.base, runs.source, runs.step)
        effect = queries_keys.effect(site.name, layer, gradient, by_head=by_head, by_position=by_position)
        names = ["batch", str(site.head_axis), "pos"]
    else:
        effect = (runs.source[name].double() - runs.base[name].double()) * gradient.double()
        names = [_GRID_NAMES.get(axis, axis) for axis in model.hook_names().specs[name].axes]
    kept = [axis for axis in names if axis == "batch" or axis in grid.axes]
    effect = effect.sum([i for i, axis in enumerate(names) if axis not in kept]) if len(kept) < len(names) else effect
    if grid.neuron_groups is not None:
        groups = [effect[..., group.to(effect.device)].sum(-1) for group in grid.neuron_groups]
        effect = torch.stack(groups, dim=-1)  # neurons are the activation's last axis
    order = [*(axis for axis in grid.axes if axis != "layer"), "batch"]
    return effect.permute([kept.index(axis) for axis in order])
