"""Ablating: what sweeps of ablation and joint ablation share, checked before any forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.checks import whole_number
from interp.finite import check_computed, check_model
from interp.interventions.cells import Site, n_layers_of
from interp.interventions.metric_result import by_metric, cell_fields
from interp.interventions.parts import Part
from interp.interventions.prompts import Prompts, aligned
from interp.interventions.sources import Method, Source, ablation_source, check_method
from interp.metrics import AnyMetric, Metric, fitting
from models.errors import InputError
from models.hooks.module import Hook
from models.protocol import HookedModel


@dataclass(frozen=True)
class Ablating:
    """A batch, how it is judged, and what stands in for what is ablated.

    Attributes:
        model: any hooked model.
        tokens, real: the batch, and which of it are real tokens (None for all).
        metrics: by name.
        method: see ``interp.interventions.sources``.
        reference, reference_real: prompts that replacements come from; None for the batch itself.
        frozen_attention: hold every attention pattern to the untouched run's.
        renormalise: make ablated patterns sum to 1 again.
        seed: of ``resample``.
    """

    model: HookedModel
    tokens: Int[Tensor, "batch pos"]
    real: Bool[Tensor, "batch pos"] | None
    metrics: dict[str, Metric]
    method: Method
    reference: Int[Tensor, "reference pos"] | None
    reference_real: Bool[Tensor, "reference pos"] | None
    frozen_attention: bool
    renormalise: bool
    seed: int

    @staticmethod
    def of(
        model: HookedModel,
        tokens: Prompts,
        metric: AnyMetric | Mapping[str, AnyMetric],
        method: Method,
        *,
        attention_mask: Tensor | None,
        reference: Prompts | None,
        reference_mask: Tensor | None,
        frozen_attention: bool,
        renormalise: bool,
        seed: int,
    ) -> Ablating:
        """Check what was given. Raises InputError where it does not fit, NonFiniteError on NaN or inf in the model."""
        n_layers_of(model.cfg)  # an encoder-decoder is refused before anything is run
        seed = whole_number(seed, "seed")
        (ids, _), real = aligned(model, tokens, tokens, attention_mask)
        metrics = fitting(metric, ids, real, model.cfg.d_vocab)
        others = others_real = None
        if reference is not None:
            if method == "zero":
                raise InputError("method='zero' takes nothing from a reference; leave it out")
            (others, _), others_real = aligned(model, reference, reference, reference_mask)
        elif reference_mask is not None:
            raise InputError("reference_mask goes with a reference, and none was given")
        check_model(model, ids, real=real)
        if others is not None:
            check_model(model, others, real=others_real)
        return Ablating(
            model, ids, real, metrics, method, others, others_real, frozen_attention, renormalise, seed
        )  # fmt: skip

    def check_site(self, site: Site) -> None:
        """Raise InputError where an option cannot act at this site."""
        check_method(self.method, site)
        if self.frozen_attention and site.name in ("q", "k"):
            raise InputError(f"{site.name} acts through attention patterns alone, and frozen_attention holds them")

    def check_part(self, part: Part) -> None:
        """Raise InputError where an option cannot act at this part, or an edge leads to padding."""
        self.check_site(part.site)
        if part.site.name != "pattern" or self.real is None:
            return
        key = cast(int, part.index[-1])
        padded = (~self.real[:, key]).nonzero()
        if len(padded):
            raise InputError(
                f"{part}: key {key} is padding in example {int(padded[0])}, to which nothing attends; ablate an edge "
                "between tokens that every example has, or the examples that have it alone"
            )

    def source(self, site: Site) -> Source:
        """Return what replaces a site's activations, by layer."""
        return ablation_source(
            self.model, site, self.method, self.tokens, self.real, self.reference, self.reference_real, self.seed
        )

    def patterns(self) -> Source | None:
        """Return the untouched run's attention patterns, by layer; None where attention is not frozen."""
        if not self.frozen_attention:
            return None
        names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(n_layers_of(self.model.cfg))]
        _, cache = self.model.run_with_cache(self.tokens, attention_mask=self.real, names_filter=names)
        return lambda layer: cache[names[layer]]

    def judged(self, hooks: Sequence[Hook] = ()) -> list[Float[Tensor, "batch"]]:
        """Run the model once and return every metric."""
        logits = self.model.run_with_hooks(self.tokens, attention_mask=self.real, fwd_hooks=hooks)
        return [metric.of_logits(logits, self.real).cpu().double() for metric in self.metrics.values()]

    def check_finite(self, intact: Sequence[Tensor], ablated: Sequence[Tensor]) -> None:
        """Raise NonFiniteError where a metric is NaN or inf; both per metric."""
        computed = by_metric(self.metrics, intact, "the untouched run") | by_metric(
            self.metrics, ablated, "the ablated"
        )
        check_computed(self.model, self.tokens, real=self.real, computed=computed)

    def fields(self, intact: Sequence[Tensor]) -> dict[str, Any]:
        """Return the fields that both results have; ``intact`` is the untouched run, per metric."""
        n_reference = len(self.tokens if self.reference is None else self.reference)
        return cell_fields(self.model, self.metrics) | {
            "intact": {name: value.numpy() for name, value in zip(self.metrics, intact, strict=True)},
            "tokens": tuple(tuple(self.model.to_str_tokens(row)) for row in self.tokens),
            "method": self.method,
            "n_reference": 0 if self.method == "zero" else n_reference,
            "frozen_attention": self.frozen_attention,
            "renormalised": self.renormalise,
            "seed": self.seed,
        }
