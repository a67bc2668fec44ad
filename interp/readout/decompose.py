"""The residual stream as a bus: who wrote what to it, what each sublayer reads from it, and how it grows.

Promise: the writes add up to the stream, exactly but for rounding (sums are taken in float32 or better).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.readout.writes import By, NormStep, Write, hooks_needed, norm_step, steps
from interp.weights.factored import at_least_float32
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class ResidualWrites:
    """What every component wrote to the stream.

    Attributes:
        labels: ``embed``, ``pos_embed``, ``L3 attn``, ``L3H1``, ``L3 attn bias``, ``L3 mlp``, ``L3N17``, ...
        values: ``[component, batch, pos, d_model]``, at least float32; behind post-norms, as they are by then.
        residual: the stream they add up to, ``[batch, pos, d_model]``.
        layer: the stream is the one entering this layer (``n_layers``: the one leaving the last).
    """

    labels: tuple[str, ...]
    values: Float[Tensor, "component batch pos d_model"]
    residual: Float[Tensor, "batch pos d_model"]
    layer: int

    def __getitem__(self, label: str) -> Float[Tensor, "batch pos d_model"]:
        """Return one component's write. Raises InputError on an unknown label."""
        if label not in self.labels:
            raise InputError(
                f"nothing named {label!r} wrote to this stream; labels are {', '.join(self.labels[:8])} ..."
            )
        return self.values[self.labels.index(label)]

    def relative_error(self) -> float:
        """Return |sum of writes - stream| / |stream|, the largest over positions."""
        difference = (self.values.sum(0) - self.residual).norm(dim=-1)
        return float((difference / self.residual.norm(dim=-1).clamp(min=1e-30)).max())

    def norms(self) -> Float[Tensor, "component batch pos"]:
        """Return the length of every write."""
        return self.values.norm(dim=-1)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per component: its mean length, and its share in the stream's square (they add up to 1)."""
        import pandas as pd

        share = (self.values * self.residual).sum(-1) / self.residual.square().sum(-1)
        return pd.DataFrame(
            {
                "component": self.labels,
                "norm": self.norms().mean((1, 2)).tolist(),
                "share": share.mean((1, 2)).tolist(),
            }
        )


def residual_writes(
    model: ResumableModel, cache: ActivationCache, *, at: int | None = None, by: By = "component"
) -> ResidualWrites:
    """Take the stream entering a layer apart.

    Args:
        cache: of one run, holding ``hooks_needed(model, by)`` (or everything); slice positions with ``pos_slice`` first
            where memory matters: ``by="neuron"`` takes n_layers x d_mlp x batch x pos x d_model numbers.
        at: the layer whose input is meant; None for the stream leaving the last block.
        by: ``component`` (attention and MLP sublayers), ``head`` (attention by head), ``neuron`` (the MLP too).

    Raises:
        InputError: a layer out of range. CacheError: an activation that the cache does not hold.
    """
    n_layers = len(model.blocks)
    layer = n_layers if at is None else at
    if not 0 <= layer <= n_layers:
        raise InputError(f"at is {at}; expected a layer from 0 to {n_layers} ({n_layers}: leaving the last block)")
    hooks_needed(model, by)  # refuses another ``by``
    labels: list[str] = []
    parts: list[Tensor] = []
    for step in steps(model, cache, by, layer):
        if isinstance(step, Write):
            labels += step.labels
            parts.append(step.vectors())
            continue
        parts = [step.linear(part) for part in parts]
        if step.bias is not None:
            labels.append(step.label)
            parts.append(step.bias.expand(parts[0].shape[1:])[None])
    residual = cache[f"blocks.{layer - 1}.hook_resid_post"] if layer else cache["blocks.0.hook_resid_pre"]
    return ResidualWrites(tuple(labels), torch.cat(parts), at_least_float32(residual), layer)


@dataclass(frozen=True, eq=False)
class ResidualReads:
    """What one sublayer reads from the stream.

    Attributes:
        layer, sublayer: which.
        read: the normalised stream, gain and bias applied, ``[batch, pos, d_model]``.
        scale: what the norm divided by, ``[batch, pos]``; ones without a norm.
        labels, shares: of every earlier write, its part of the read's square, ``[component, batch, pos]``; the norm's
            bias is a component too, and all shares add up to 1.
    """

    layer: int
    sublayer: str
    read: Float[Tensor, "batch pos d_model"]
    scale: Float[Tensor, "batch pos"]
    labels: tuple[str, ...]
    shares: Float[Tensor, "component batch pos"]


def residual_reads(
    model: ResumableModel,
    cache: ActivationCache,
    layer: int,
    sublayer: Literal["attn", "mlp"] = "attn",
    *,
    by: By = "component",
) -> ResidualReads:
    """Return what a sublayer reads, and the share of every earlier write in it.

    Raises InputError on a layer or sublayer the model does not have.
    """
    if sublayer not in ("attn", "mlp") or not 0 <= layer < len(model.blocks):
        raise InputError(
            f"got layer {layer}, sublayer {sublayer!r}; expected a layer of 0 to {len(model.blocks) - 1}, and 'attn' "
            "or 'mlp'"
        )
    if sublayer == "mlp" and model.cfg.attn_only:
        raise InputError("this model is attention-only, so no MLP reads its stream")
    writes = residual_writes(model, cache, at=layer, by=by)
    labels, values = list(writes.labels), writes.values
    block = model.blocks[layer]
    if sublayer == "mlp" and not model.cfg.parallel:
        for step in steps(model, cache, by, layer + 1):
            if isinstance(step, Write) and step.labels[0].startswith((f"L{layer} attn", f"L{layer}H")):
                labels += step.labels
                values = torch.cat([values, step.vectors()])
            elif isinstance(step, NormStep) and step.label == f"L{layer} ln1 bias":
                values = step.linear(values)
                if step.bias is not None:
                    labels.append(step.label)
                    values = torch.cat([values, step.bias.expand(values.shape[1:])[None]])
    scale = torch.ones(values.shape[1:3], device=values.device)
    if model.cfg.norm != "none" and model.cfg.norm_position == "pre":
        name = "ln1" if sublayer == "attn" else "ln2"
        norm = norm_step(getattr(block, name), f"L{layer} {name} bias", cache[f"blocks.{layer}.{name}.hook_scale"])
        values, scale = norm.linear(values), norm.scale.squeeze(-1)
        if norm.bias is not None:
            labels.append(norm.label)
            values = torch.cat([values, norm.bias.expand(values.shape[1:])[None]])
    read = values.sum(0)
    shares = (values * read).sum(-1) / read.square().sum(-1)
    return ResidualReads(layer, sublayer, read, scale, tuple(labels), shares)


@dataclass(frozen=True, eq=False)
class StreamGrowth:
    """How the stream changes with depth, at every position.

    Attributes:
        norms: length of the stream entering each layer, and leaving the last, ``[layer + 1, batch, pos]``.
        cosines: between successive streams, ``[layer, batch, pos]``.
        massive: massive activations (Sun et al. 2402.17762): (layer, batch, pos, dimension, value) with |value| > 100
            and > 1000 x the median of that stream.
    """

    norms: Float[Tensor, "layer batch pos"]
    cosines: Float[Tensor, "layer batch pos"]
    massive: tuple[tuple[int, int, int, int, float], ...]


def stream_growth(model: ResumableModel, tokens: Int[Tensor, "batch pos"], **run: object) -> StreamGrowth:
    """Run once and measure the stream at every depth; ``run`` goes to the model (``attention_mask=...``)."""
    n_layers = len(model.blocks)
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers)]
    names.append(f"blocks.{n_layers - 1}.hook_resid_post")
    with torch.inference_mode():
        _, cache = model.run_with_cache(tokens, names_filter=names, return_type=None, **run)
    streams = torch.stack([at_least_float32(cache[name]) for name in names])
    size = streams.abs()
    large = (size > 100) & (size > 1000 * size.median(-1, keepdim=True).values)
    massive = tuple((*(int(i) for i in where), float(streams[tuple(where)])) for where in large.nonzero())
    return StreamGrowth(
        norms=streams.norm(dim=-1),
        cosines=torch.cosine_similarity(streams[:-1], streams[1:], dim=-1),
        massive=massive,  # type: ignore[arg-type]
    )
