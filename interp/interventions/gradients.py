"""Gradients of metrics at one site of every layer, by one backward pass.

A probe of zeros is added to the activation; the gradient with respect to the probe is that with respect to the
activation, whether or not weights are frozen, and without touching their ``.grad``. The metric is summed over examples:
none of them sees another, so that each keeps its own gradient.

**Integrated gradients** (EAP-IG, arXiv 2403.17806): the gradient is averaged over m runs whose token embeddings lie at

    e_k = e_base + k/m (e_source - e_base),      k = 0, ..., m - 1

between the run patched into (k = 0, all that m = 1 uses) and the other.

**GradDrop** (AtP*, arXiv 2403.00745), as understood from the paper: one backward pass per layer, in which that layer's
attention and MLP let no gradient through, so that an effect along one way cannot cancel one along another. The
magnitudes of the L passes' effects are added up for each example, divided by L - 1 (a layer's own pass finds nothing
in it; by L for the residual stream), and averaged over examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.cells import n_layers_of
from interp.metrics import Metric
from models.errors import InputError
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel


@dataclass(frozen=True)
class Pass:
    """One backward pass.

    Attributes:
        metric: number of the metric differentiated.
        dropped: the layer whose writes let no gradient through, or None.
        gradients: by layer, shaped as the activation, summed over runs where several are averaged.
    """

    metric: int
    dropped: int | None
    gradients: Sequence[Tensor]


def backward_passes(
    model: HookedModel,
    hook: str,
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None,
    metrics: Sequence[Metric],
    *,
    embed_change: Float[Tensor, "batch pos d_model"],
    ig_steps: int,
    grad_drop: bool,
) -> Iterator[Pass]:
    """Give every backward pass: for each run between the two, metric, and (with ``grad_drop``) layer.

    Args:
        model: the model.
        hook: the site's hook, without ``blocks.{l}.``.
        tokens, real: of the run patched into.
        metrics: what is differentiated.
        embed_change: e_source - e_base.
        ig_steps: m.
        grad_drop: one pass per dropped layer instead of one.

    Raises:
        InputError: a metric without a gradient.
    """
    n_layers = n_layers_of(model.cfg)
    metrics = [_differentiable(metric) for metric in metrics]
    names = [f"blocks.{layer}.{hook}" for layer in range(n_layers)]
    dropped: int | None = None

    def drop(grad: Tensor, hook: HookPoint) -> Tensor | None:
        return torch.zeros_like(grad) if hook.layer == dropped else None

    parts = ["hook_attn_out"] if model.cfg.d_mlp is None else ["hook_attn_out", "hook_mlp_out"]
    writes = [f"blocks.{layer}.{part}" for layer in range(n_layers) for part in parts]
    bwd_hooks: list[Hook] = [(name, drop) for name in writes] if grad_drop else []
    for step in range(ig_steps):
        probes: list[Tensor] = []

        def probe(value: Tensor, hook: HookPoint, probes: list[Tensor] = probes) -> Tensor:
            probes.append(torch.zeros_like(value).requires_grad_())
            return value + probes[-1]

        def move(value: Tensor, hook: HookPoint, share: float = step / ig_steps) -> Tensor:
            return value + share * embed_change

        fwd_hooks: list[Hook] = [(name, probe) for name in names]
        if step:
            fwd_hooks.append(("hook_embed", move))
        with torch.inference_mode(False), torch.enable_grad(), model.hooks(fwd_hooks, bwd_hooks):
            logits = model(tokens, attention_mask=real)
            values = [metric.of_logits(logits, real).sum() for metric in metrics]
        for number, (metric, value) in enumerate(zip(metrics, values, strict=True)):
            if not value.requires_grad:
                raise InputError(
                    f"{metric.name} has no gradient with respect to the logits, so nothing can be attributed to it; "
                    "use LogitDifference or LogProbability, or patch exactly with activation_patching"
                )
            for dropped in range(n_layers) if grad_drop else (None,):
                yield Pass(number, dropped, torch.autograd.grad(value, probes, retain_graph=True))


def _differentiable(metric: Metric) -> Metric:
    """Return a metric whose tensors may be part of a graph: those made under ``inference_mode`` may not, copies may."""
    with torch.inference_mode(False):
        copies = {
            field.name: value.clone()
            for field in fields(metric)
            if isinstance(value := getattr(metric, field.name), Tensor) and value.is_inference()
        }
        return replace(metric, **copies) if copies else metric
