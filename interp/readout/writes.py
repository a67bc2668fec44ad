"""The residual stream as a sum: what every component wrote, and what that became at the norms on the way.

Pre-norm, the stream is the plain sum of all writes. Post-norm, every norm rescales what is already there: with its
statistics frozen at this run it is linear, so each write passes through it and its bias becomes a write of its own.

``Writes`` lists a run's components once; ``residual_writes`` (the vectors) and ``logit_attribution`` (their share in a
logit) are both made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.sites import Head
from interp.weights.factored import at_least_float32
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.protocol import ResumableModel

By = Literal["component", "head", "neuron"]
Vectors = Float[Tensor, "component batch pos d_model"]


class Write(NamedTuple):
    """Some components that write at the same place.

    Attributes:
        labels: their names, in order.
        vectors: computes what they write, ``[component, batch, pos, d_model]``.
        along: computes their dot product with a direction ``[batch, pos, d_model]``: ``[component, batch, pos]``.
    """

    labels: tuple[str, ...]
    vectors: Callable[[], Vectors]
    along: Callable[[Tensor], Float[Tensor, "component batch pos"]]


class NormStep(NamedTuple):
    """A norm on the stream itself, frozen: ``x -> (x - mean) / scale * w + b``."""

    label: str
    scale: Float[Tensor, "batch pos one"]
    gain: Float[Tensor, "d_model"]
    bias: Float[Tensor, "d_model"] | None
    centred: bool

    def linear(self, x: Float[Tensor, "*any batch pos d_model"]) -> Float[Tensor, "*any batch pos d_model"]:
        """Return what a part of the stream becomes, without the bias."""
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return x / self.scale * self.gain

    def pull_back(self, direction: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        """Return the direction before the norm whose dot product equals that of ``direction`` behind it."""
        direction = direction * self.gain / self.scale
        return direction - direction.mean(-1, keepdim=True) if self.centred else direction


def hooks_needed(model: ResumableModel, by: By) -> list[str]:
    """Return the hooks that a cache must hold to take the stream apart ``by`` component, head or neuron."""
    if by not in get_args(By):
        raise InputError(f"by is {by!r}; expected 'component', 'head' or 'neuron'")
    names = model.hook_names()
    wanted = ["hook_embed", "hook_pos_embed", "hook_resid_post", "hook_attn_out", "hook_mlp_out", "hook_scale"]
    wanted += {"component": [], "head": ["hook_z"], "neuron": ["hook_z", "mlp.hook_post"]}[by]
    return [name for name in names if name.endswith(tuple(wanted))]


def norm_step(norm: torch.nn.Module, label: str, scale: Tensor) -> NormStep:
    """Return a norm frozen at the scale of this run."""
    bias = getattr(norm, "b", None)
    gain = at_least_float32(norm.w)  # type: ignore[arg-type]
    return NormStep(
        label, at_least_float32(scale), gain, None if bias is None else at_least_float32(bias), bool(norm.centred)
    )


def steps(model: ResumableModel, cache: ActivationCache, by: By, n_layers: int) -> Iterator[Write | NormStep]:
    """Yield writes and norms in the order of the forward pass, up to the stream entering layer ``n_layers``."""
    yield _vectors("embed", cache["hook_embed"])
    if "hook_pos_embed" in model.hook_names():
        yield _vectors("pos_embed", cache["hook_pos_embed"])
    post = model.cfg.norm_position == "post"
    for layer in range(n_layers):
        block = model.blocks[layer]
        yield from _attention(model, cache, by, layer)
        if post:
            yield norm_step(block.ln1, f"L{layer} ln1 bias", cache[f"blocks.{layer}.ln1.hook_scale"])
        if block.mlp is not None:
            yield from _mlp(model, cache, by, layer)
            if post:
                yield norm_step(block.ln2, f"L{layer} ln2 bias", cache[f"blocks.{layer}.ln2.hook_scale"])


def _vectors(label: str, value: Float[Tensor, "batch pos d_model"]) -> Write:
    value = at_least_float32(value)
    return Write((label,), lambda: value[None], lambda direction: (value * direction).sum(-1)[None])


def _bias(label: str, bias: Tensor, like: Tensor) -> Write:
    return _vectors(label, bias.expand(*like.shape[:2], -1))


def _attention(model: ResumableModel, cache: ActivationCache, by: By, layer: int) -> Iterator[Write]:
    if by == "component":
        yield _vectors(f"L{layer} attn", cache[f"blocks.{layer}.hook_attn_out"])
        return
    attn = model.blocks[layer].attn
    z, W_O = at_least_float32(cache[f"blocks.{layer}.attn.hook_z"]), at_least_float32(attn.W_O)
    labels = tuple(str(Head(layer, head)) for head in range(model.cfg.n_heads))

    def vectors() -> Tensor:
        return einsum(z, W_O, "batch pos head e, head e d -> head batch pos d")

    def along(direction: Tensor) -> Tensor:
        read = einsum(direction, W_O, "batch pos d, head e d -> batch pos head e")
        return einsum(z, read, "batch pos head e, batch pos head e -> head batch pos")

    yield Write(labels, vectors, along)
    if attn.o.bias is not None:
        yield _bias(f"L{layer} attn bias", attn.o.bias, z)


def _mlp(model: ResumableModel, cache: ActivationCache, by: By, layer: int) -> Iterator[Write]:
    if by != "neuron":
        yield _vectors(f"L{layer} mlp", cache[f"blocks.{layer}.hook_mlp_out"])
        return
    mlp = model.blocks[layer].mlp
    post, W_out = at_least_float32(cache[f"blocks.{layer}.mlp.hook_post"]), at_least_float32(mlp.W_out)
    labels = tuple(f"L{layer}N{neuron}" for neuron in range(post.shape[-1]))

    def vectors() -> Tensor:
        return einsum(post, W_out, "batch pos neuron, neuron d -> neuron batch pos d")

    def along(direction: Tensor) -> Tensor:
        return (post * (direction @ W_out.T)).movedim(-1, 0)

    yield Write(labels, vectors, along)
    if mlp.out.bias is not None:
        yield _bias(f"L{layer} mlp bias", mlp.out.bias, post)
