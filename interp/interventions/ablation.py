"""Ablation: take an activation out and measure what is missed.

A sweep ablates each cell of a grid alone, and runs as patching sweeps do: only what a cell can change is computed.
``ablate`` takes out a set of parts together, beside each of them alone: single effects do not add up, because parts
stand in for each other (self-repair, arXiv 2307.15771).

With ``frozen_attention`` every attention pattern is held to the untouched run's, so that what is measured went through
values and MLPs, not through later heads looking elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from interp.checks import whole_number
from interp.decoders import can_resume
from interp.interventions.ablating import Ablating
from interp.interventions.ablation_result import AblationResult, JointAblation
from interp.interventions.cells import Grid, Site, check_axes, find_site, n_layers_of, renormalised
from interp.interventions.entering import Base, needed_of_base
from interp.interventions.parts import Part, PartName, parse_parts
from interp.interventions.patching_result import cell_values, sweep_counts
from interp.interventions.prompts import Prompts
from interp.interventions.sources import Method, Source
from interp.interventions.sweep import (
    DEFAULT_MEMORY,
    Progress,
    Sweep,
    baseline,
    frozen_hooks,
    naive_sweep,
    read_columns,
    resumed_sweep,
)
from interp.metrics import AnyMetric
from models.errors import InputError
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel, ResumableModel


def ablation_sweep(
    model: HookedModel,
    tokens: Prompts,
    metric: AnyMetric | Mapping[str, AnyMetric],
    *,
    site: str = "z",
    over: str | Sequence[str] | None = None,
    method: Method = "mean",
    reference: Prompts | None = None,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    reference_mask: Bool[Tensor, "reference pos"] | None = None,
    frozen_attention: bool = False,
    renormalise: bool = False,
    neuron_groups: int | None = None,
    per_example: bool = True,
    memory: int = DEFAULT_MEMORY,
    seed: int = 0,
    progress: Progress | None = None,
) -> AblationResult:
    """Ablate every cell of a grid once.

    Args:
        model: any hooked model; a ``HookedDecoder`` is resumed, others take one whole run per cell.
        tokens: prompts, ids or text.
        metric: one of ``interp.metrics``, a function of logits ``[batch, pos, d_vocab]``, or several by name.
        site: see ``activation_patching``; with ``pattern`` and all its axes, single attention edges.
        over: the axes of the grid; by default layers and heads (or neurons), for the stream layers and positions.
        method: ``zero``, ``mean``, ``mean_per_position`` or ``resample``, see ``interp.interventions.sources``.
        reference: prompts that means and samples come from; by default the batch itself.
        attention_mask, reference_mask: True at real tokens. Texts make their own.
        frozen_attention: hold every attention pattern to the untouched run's.
        renormalise: make an ablated pattern's rows sum to 1 again; without it, what a zeroed edge carried is lost.
        neuron_groups: how many groups the neurons go in (default: one by one).
        per_example: keep every example's value, which intervals and p-values need; False keeps means.
        memory: bytes that the sweep may take beside the runs it starts from.
        seed: of ``resample``.
        progress: called with (done, in all).

    Returns:
        The metric without each cell, ``values [*over, batch]``, and the untouched run's, ``intact [batch]``.

    Raises:
        InputError: an unknown site, axis or method, a metric or reference that does not fit.
        NonFiniteError: NaN or inf, with the first hook at which it appears.

    >>> from interp.metrics import Probability
    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=4, d_vocab=10, n_ctx=8))
    >>> ablation_sweep(model, torch.tensor([[1, 2, 3]]), Probability(4)).change().shape
    (2, 4)
    """
    found = find_site(site, model.cfg)
    axes = check_axes(found, _default_axes(found) if over is None else over)
    setting = Ablating.of(
        model, tokens, metric, method,
        attention_mask=attention_mask, reference=reference, reference_mask=reference_mask,
        frozen_attention=frozen_attention, renormalise=renormalise, seed=seed,
    )  # fmt: skip
    setting.check_site(found)
    if renormalise and found.name != "pattern":
        raise InputError(f"renormalise acts on patterns, not on {site}; leave it out")
    grid = Grid.of(found, axes, model.cfg, setting.tokens.shape[1], neuron_groups, renormalise)
    memory = whole_number(memory, "memory")
    run = _resumed if can_resume(model) and "layer" in axes else _naive
    with torch.inference_mode():
        sweep, intact = run(setting, grid, memory, progress)
    setting.check_finite(intact, sweep.finished())
    return AblationResult(
        site=found.name,
        axes=axes,
        values=cell_values(sweep, setting.metrics, per_example),
        **sweep_counts(model, grid, sweep, setting.tokens),
        **setting.fields(intact if per_example else [one.mean(-1, keepdim=True) for one in intact]),
    )


def ablate(
    model: HookedModel,
    tokens: Prompts,
    metric: AnyMetric | Mapping[str, AnyMetric],
    what: PartName | Sequence[PartName],
    *,
    method: Method = "mean",
    reference: Prompts | None = None,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    reference_mask: Bool[Tensor, "reference pos"] | None = None,
    frozen_attention: bool = False,
    renormalise: bool = False,
    seed: int = 0,
) -> JointAblation:
    """Take out a set of parts together, and each of them alone.

    Args:
        what: the parts: heads (``L5H1``, ``5.1``, ``(5, 1)``), ``mlp5``, ``attn5``, neurons ``L5N17``, the stream
            ``resid_pre5``, edges ``L5H1[7,3]``; see ``interp.interventions.parts``.
        model, tokens, metric, method, reference, attention_mask, reference_mask, frozen_attention, renormalise, seed:
            see ``ablation_sweep``.

    Raises:
        InputError: an unknown part or method, a metric or reference that does not fit.
        NonFiniteError: NaN or inf, with the first hook at which it appears.

    >>> from interp.metrics import Probability
    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=4, d_vocab=10, n_ctx=8))
    >>> found = ablate(model, torch.tensor([[1, 2, 3]]), Probability(4), ["L0H1", "mlp1"])
    >>> found.parts, found.change().shape
    (('L0H1', 'mlp1'), (2,))
    """
    setting = Ablating.of(
        model, tokens, metric, method,
        attention_mask=attention_mask, reference=reference, reference_mask=reference_mask,
        frozen_attention=frozen_attention, renormalise=renormalise, seed=seed,
    )  # fmt: skip
    parts = parse_parts(what, model.cfg, setting.tokens.shape[1])
    for part in parts:
        setting.check_part(part)
    if renormalise and not any(part.site.name == "pattern" for part in parts):
        raise InputError("renormalise acts on patterns, and no edge is among the parts; leave it out")
    with torch.inference_mode():
        sources = {site: setting.source(site) for site in dict.fromkeys(part.site for part in parts)}
        freeze = frozen_hooks(setting.patterns(), n_layers_of(model.cfg))

        def without(some: Sequence[Part]) -> list[Tensor]:
            return setting.judged([*freeze, *_hooks(some, sources, renormalise)])

        intact, joint = setting.judged(), without(parts)
        singles = [torch.stack(values) for values in zip(*(without([part]) for part in parts), strict=True)]
    setting.check_finite(intact, [torch.cat([both, alone[None]]) for both, alone in zip(singles, joint, strict=True)])
    return JointAblation(
        axes=("part",),
        parts=tuple(map(str, parts)),
        values={name: value.numpy() for name, value in zip(setting.metrics, singles, strict=True)},
        joint={name: value.numpy() for name, value in zip(setting.metrics, joint, strict=True)},
        **setting.fields(intact),
    )


def _hooks(parts: Sequence[Part], sources: Mapping[Site, Source], renormalise: bool) -> list[Hook]:
    """Return one hook per activation that the parts lie in."""
    together: dict[tuple[Site, int], list[Part]] = defaultdict(list)
    for part in parts:
        together[part.site, part.layer].append(part)

    def replace(site: Site, layer: int, some: list[Part]) -> Callable[..., Tensor]:
        def hook(value: Tensor, hook: HookPoint) -> Tensor:
            instead = sources[site](layer)
            for part in some:
                value[part.where] = instead[part.where]
            return renormalised(value) if renormalise and site.name == "pattern" else value

        return hook

    return [(site.hook_name(layer), replace(site, layer, some)) for (site, layer), some in together.items()]


def _default_axes(site: Site) -> tuple[str, ...]:
    own = tuple(axis for axis in site.axes if not axis.endswith("pos"))
    return own if own != ("layer",) else ("layer", "pos")


def _resumed(setting: Ablating, grid: Grid, memory: int, progress: Progress | None) -> tuple[Sweep, list[Tensor]]:
    model, tokens, real = cast(ResumableModel, setting.model), setting.tokens, setting.real
    metrics, last = list(setting.metrics.values()), len(model.blocks) - 1
    needed = needed_of_base(model, grid.site, setting.frozen_attention)
    names = [f"blocks.{layer}.{hook}" for layer in range(last + 1) for hook in needed]
    names.append(f"blocks.{last}.hook_resid_post")
    _, kept = model.run_with_cache(tokens, attention_mask=real, names_filter=names, return_type=None)
    base = Base(kept, model.step(tokens, real), read_columns(metrics, tokens, real), setting.frozen_attention)
    source = setting.source(grid.site)
    sweep = resumed_sweep(
        model, grid, grid.cells(), base, source, metrics, tokens, real, memory=memory, progress=progress
    )
    return sweep, baseline(model, metrics, base, tokens, real)


def _naive(setting: Ablating, grid: Grid, memory: int, progress: Progress | None) -> tuple[Sweep, list[Tensor]]:
    intact = setting.judged()
    sweep = naive_sweep(
        setting.model, grid, grid.cells(), setting.source(grid.site), list(setting.metrics.values()),
        setting.tokens, setting.real, frozen=setting.patterns(), progress=progress,
    )  # fmt: skip
    return sweep, intact
