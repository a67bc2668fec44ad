"""The residual stream as a bus: who wrote what to it, and what each sublayer reads from it.

    x = sum_c write_c          read = norm(x) = sum_c (write_c through the frozen norm) + bias

Both sums are exact but for rounding, and taken in float32 or better. A model in half precision rounds its own stream
at every addition; its writes add up to what the stream would be without that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.precision import at_least_float32
from interp.readout.writes import By, NormStep, Write, hooks_needed, norm_step, steps
from models.errors import InputError, nearest
from models.hooks.cache import ActivationCache
from models.parts.norm import Norm
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd

    from models.parts.sublayer import Sublayer as BlockSublayer

Sublayer = Literal["attn", "mlp"]


@dataclass(frozen=True, eq=False)
class ResidualWrites:
    """What every component wrote to the stream.

    Attributes:
        labels: ``embed``, ``pos_embed``, ``L3 attn``, ``L3H1``, ``L3 attn bias``, ``L3 mlp``, ``L3N17``,
            ``L3 mlp bias``; behind post-norms also ``L3 ln1 bias``.
        values: ``[component, batch, pos, d_model]``, at least float32; behind post-norms, as they are by then.
        residual: the stream they add up to, ``[batch, pos, d_model]``, as the model had it.
        hook: the name of the hook where the stream passed.
    """

    labels: tuple[str, ...]
    values: Float[Tensor, "component batch pos d_model"]
    residual: Float[Tensor, "batch pos d_model"]
    hook: str

    def __getitem__(self, label: str) -> Float[Tensor, "batch pos d_model"]:
        """Return one component's write. Raises InputError on an unknown label."""
        if label not in self.labels:
            raise InputError(
                f"nothing named {label!r} wrote to {self.hook}{nearest(label, self.labels)}; .labels lists what did"
            )
        return self.values[self.labels.index(label)]

    def relative_error(self) -> float:
        """Return |sum of writes - stream| / |stream|, the largest over positions."""
        difference = (self.values.sum(0) - self.residual).norm(dim=-1)
        return float((difference / self.residual.norm(dim=-1).clamp(min=1e-30)).max())

    def norms(self) -> Float[Tensor, "component batch pos"]:
        """Return the length of every write."""
        return self.values.norm(dim=-1)

    def cosines(self) -> Float[Tensor, "component batch pos"]:
        """Return the cosine of every write with the stream."""
        return torch.cosine_similarity(self.values, self.residual, dim=-1)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per component, means over batch and positions.

        Columns: ``norm``, ``cosine`` with the stream, ``share``: write . stream / |stream|^2; shares add up to 1.
        """
        import pandas as pd

        share = (self.values * self.residual).sum(-1) / self.residual.square().sum(-1)
        means = {"norm": self.norms(), "cosine": self.cosines(), "share": share}
        columns = {name: value.mean((1, 2)).tolist() for name, value in means.items()}
        return pd.DataFrame({"component": self.labels} | columns)


@torch.no_grad()
def residual_writes(
    model: ResumableModel,
    cache: ActivationCache,
    *,
    at: int | None = None,
    mlp_input: bool = False,
    by: By = "component",
) -> ResidualWrites:
    """Take the stream apart into what every component wrote.

    Args:
        model: a ``HookedDecoder``.
        cache: of one run, with everything or at least ``hooks_needed(model, by)``. Slice positions with ``pos_slice``
            where memory matters: ``by="neuron"`` makes n_layers x d_mlp x batch x pos x d_model numbers.
        at: the layer whose input is meant, 0 to n_layers; by default n_layers, the stream leaving the last block.
        mlp_input: take the stream that the layer's MLP reads instead.
        by: ``component`` (sublayers), ``head`` (attention by head), ``neuron`` (MLPs by neuron too).

    Raises:
        InputError: no ``HookedDecoder``, a layer out of range, another ``by``, no MLP where ``mlp_input`` asks for one.
        CacheError: an activation that the cache does not hold.

    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=10, n_ctx=8))
    >>> _, cache = model.run_with_cache(torch.tensor([[1, 2, 3]]))
    >>> writes = residual_writes(model, cache, by="head")
    >>> writes.labels
    ('embed', 'pos_embed', 'L0H0', 'L0H1', 'L0 attn bias', 'L0 mlp')
    >>> writes["L0H1"].shape, writes.relative_error() < 1e-5
    (torch.Size([1, 3, 16]), True)
    """
    hooks_needed(model, by)  # refuses another ``by``
    layer, hook = _place(model, at, mlp_input)
    labels: list[str] = []
    parts: list[Tensor] = []
    for step in steps(model, cache, by, layer, mlp_input=mlp_input):
        if isinstance(step, Write):
            labels += step.labels
            parts.append(step.vectors())
        else:
            parts = [step.linear(part) for part in parts]
            _add_bias(step, labels, parts)
    return ResidualWrites(tuple(labels), torch.cat(parts), at_least_float32(cache[hook]), hook)


def _place(model: ResumableModel, at: int | None, mlp_input: bool) -> tuple[int, str]:
    """Return the layer and the hook of a stream."""
    n_layers = len(model.blocks)
    layer = n_layers if at is None else at
    last = n_layers - 1 if mlp_input else n_layers
    if mlp_input and model.cfg.d_mlp is None:
        raise InputError("this model is attention-only, so no MLP reads its stream; leave mlp_input out")
    if not 0 <= layer <= last:
        meant = "a layer" if mlp_input else f"a layer, or {n_layers} for the stream leaving the last"
        raise InputError(f"at is {at}; expected 0 to {last}, {meant}")
    if layer == n_layers:
        return layer, f"blocks.{n_layers - 1}.hook_resid_post"
    sublayer = model.blocks[layer].sublayer("mlp" if mlp_input else "attn")
    return layer, f"blocks.{layer}.{cast('BlockSublayer', sublayer).wires.reads}"


def _add_bias(step: NormStep, labels: list[str], parts: list[Tensor]) -> None:
    if step.bias is not None:
        labels.append(step.label)
        parts.append(step.bias.expand(parts[0].shape[1:])[None])


@dataclass(frozen=True, eq=False)
class ResidualReads:
    """What one sublayer reads from the stream.

    Attributes:
        layer, sublayer: which.
        labels: the writes before it, and ``L3 ln1 bias`` (``ln2``) for the bias of the norm it reads through.
        values: what of the read comes from each, ``[component, batch, pos, d_model]``, the norm frozen.
        scale: what the norm divided by, ``[batch, pos]``; ones without a norm.
    """

    layer: int
    sublayer: Sublayer
    labels: tuple[str, ...]
    values: Float[Tensor, "component batch pos d_model"]
    scale: Float[Tensor, "batch pos"]

    @property
    def read(self) -> Float[Tensor, "batch pos d_model"]:
        """The normalised stream, gain and bias applied: what the sublayer's weights multiply."""
        return self.values.sum(0)

    @property
    def shares(self) -> Float[Tensor, "component batch pos"]:
        """Part . read / |read|^2 of every component; they add up to 1, and one that works against the rest is < 0."""
        read = self.read
        return (self.values * read).sum(-1) / read.square().sum(-1)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per component with its mean share, the largest first."""
        import pandas as pd

        frame = pd.DataFrame({"component": self.labels, "share": self.shares.mean((1, 2)).tolist()})
        return frame.sort_values("share", ascending=False, ignore_index=True, kind="stable")


@torch.no_grad()
def residual_reads(
    model: ResumableModel, cache: ActivationCache, layer: int, sublayer: Sublayer = "attn", *, by: By = "component"
) -> ResidualReads:
    """Return what a sublayer reads, and the part of every earlier write in it.

    Args:
        model, cache, by: as in ``residual_writes``.
        layer: which block.
        sublayer: ``attn`` or ``mlp``.

    Raises:
        InputError: a layer or sublayer the model does not have, another ``by``.
        CacheError: an activation that the cache does not hold.
    """
    hooks_needed(model, by)
    if sublayer not in get_args(Sublayer) or not 0 <= layer < len(model.blocks):
        raise InputError(
            f"got layer {layer} and sublayer {sublayer!r}; expected 0 to {len(model.blocks) - 1}, and 'attn' or 'mlp'"
        )
    writes = residual_writes(model, cache, at=layer, mlp_input=sublayer == "mlp", by=by)
    labels, parts = list(writes.labels), [writes.values]
    scale = torch.ones_like(writes.residual[..., 0])
    reader = cast("BlockSublayer", model.blocks[layer].sublayer(sublayer))
    if isinstance(norm := reader.norm_in, Norm):
        name = reader.wires.norm
        step = norm_step(norm, f"L{layer} {name} bias", cache[f"blocks.{layer}.{name}.hook_scale"])
        parts, scale = [step.linear(writes.values)], step.scale.squeeze(-1)
        _add_bias(step, labels, parts)
    return ResidualReads(layer, sublayer, tuple(labels), torch.cat(parts), scale)
