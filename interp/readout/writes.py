"""The residual stream as a sum: what every component wrote, and what that became at the norms on the way.

Pre-norm, the stream is the plain sum of all writes. Post-norm, every norm rescales what is already there; with its
statistics frozen at this run it is linear, so that each write passes through it and its bias is a write of its own.

``steps`` lists a run's writes and norms once; the writes' vectors (``residual_writes``) and their shares in a logit
(``logit_attribution``) are both made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, cast, get_args

from einops import einsum
from jaxtyping import Float
from torch import Tensor

from interp.decoders import check_parts
from interp.precision import at_least_float32
from interp.sites import Head
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.parts.mlp import MLP
from models.parts.norm import Norm
from models.protocol import ResumableModel

By = Literal["component", "head", "neuron"]


class Write(NamedTuple):
    """Some components that write at the same place.

    Attributes:
        labels: their names, in order.
        vectors: computes what they write, ``[component, batch, pos, d_model]``.
        along: computes their dot products with a direction ``[batch, pos, d_model]``: ``[component, batch, pos]``.
    """

    labels: tuple[str, ...]
    vectors: Callable[[], Float[Tensor, "component batch pos d_model"]]
    along: Callable[[Tensor], Float[Tensor, "component batch pos"]]


class NormStep(NamedTuple):
    """A norm on the stream, frozen at a run: ``x -> (x - mean(x)) / scale * gain + bias``, without the mean for RMS.

    Attributes:
        label: the name of its bias as a write.
        scale: what the run divided by, ``[batch, pos, 1]``.
        gain, bias: ``[d_model]``; a bias of None adds nothing.
        centred: whether the mean goes.
    """

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
        """Return the direction before the norm that has the same dot product: ``linear``, transposed."""
        direction = direction * self.gain / self.scale
        return direction - direction.mean(-1, keepdim=True) if self.centred else direction


def hooks_needed(model: ResumableModel, by: By = "component") -> list[str]:
    """Return the hooks a cache must hold to take the stream apart ``by`` component, head or neuron.

    Raises:
        InputError: another ``by``, a model that is no ``HookedDecoder``.
    """
    check_parts(model)
    if by not in get_args(By):
        raise InputError(f"by is {by!r}; expected 'component', 'head' or 'neuron'")
    wanted = ["hook_embed", "hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_scale"]
    wanted += ["hook_attn_out"] if by == "component" else ["hook_z"]
    wanted += ["mlp.hook_post"] if by == "neuron" else ["hook_mlp_out"]
    return [name for name in model.hook_names() if name.endswith((*wanted, "hook_pos_embed"))]


def norm_step(norm: Norm, label: str, scale: Float[Tensor, "batch pos one"]) -> NormStep:
    """Return a norm frozen at the scale of a run."""
    bias = None if norm.b is None else at_least_float32(norm.b)
    return NormStep(label, at_least_float32(scale), at_least_float32(norm.w), bias, norm.centred)


def steps(
    model: ResumableModel, cache: ActivationCache, by: By, layer: int, *, mlp_input: bool = False
) -> Iterator[Write | NormStep]:
    """Give writes and norms in the order of the forward pass, up to the stream entering ``layer``.

    With ``mlp_input``, up to the stream its MLP reads. Each write is computed from the cache when asked for.
    """
    yield _stream_write("embed", cache["hook_embed"])
    if "hook_pos_embed" in model.hook_names():
        yield _stream_write("pos_embed", cache["hook_pos_embed"])
    blocks = [block.sublayers for block in model.blocks[:layer]]
    if mlp_input and not model.blocks[layer].parallel:
        blocks.append(tuple(sublayer for sublayer in model.blocks[layer].sublayers if sublayer.attends))
    for at, sublayers in enumerate(blocks):
        for sublayer in sublayers:
            yield from (_attention if sublayer.attends else _mlp)(model, cache, by, at)
            if isinstance(norm := sublayer.norm_sum, Norm):
                name = sublayer.wires.norm
                yield norm_step(norm, f"L{at} {name} bias", cache[f"blocks.{at}.{name}.hook_scale"])


def _stream_write(label: str, value: Float[Tensor, "batch pos d_model"]) -> Write:
    value = at_least_float32(value)
    return Write((label,), lambda: value[None], lambda direction: (value * direction).sum(-1)[None])


def _bias_write(label: str, bias: Float[Tensor, "d_model"], like: Float[Tensor, "batch pos ..."]) -> Write:
    return _stream_write(label, bias.expand(*like.shape[:2], -1))


def _attention(model: ResumableModel, cache: ActivationCache, by: By, layer: int) -> Iterator[Write]:
    if by == "component":
        yield _stream_write(f"L{layer} attn", cache[f"blocks.{layer}.hook_attn_out"])
        return
    attn = model.blocks[layer].attn
    z, W_O = at_least_float32(cache[f"blocks.{layer}.attn.hook_z"]), at_least_float32(attn.W_O)

    def vectors() -> Float[Tensor, "head batch pos d_model"]:
        return einsum(z, W_O, "batch pos head d_head, head d_head d_model -> head batch pos d_model")

    def along(direction: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "head batch pos"]:
        read = einsum(direction, W_O, "batch pos d_model, head d_head d_model -> batch pos head d_head")
        return einsum(z, read, "batch pos head d_head, batch pos head d_head -> head batch pos")

    yield Write(tuple(str(Head(layer, head)) for head in range(model.cfg.n_heads)), vectors, along)
    if attn.o.bias is not None:
        yield _bias_write(f"L{layer} attn bias", attn.o.bias, z)


def _mlp(model: ResumableModel, cache: ActivationCache, by: By, layer: int) -> Iterator[Write]:
    if by != "neuron":
        yield _stream_write(f"L{layer} mlp", cache[f"blocks.{layer}.hook_mlp_out"])
        return
    mlp = cast(MLP, model.blocks[layer].mlp)
    post, W_out = at_least_float32(cache[f"blocks.{layer}.mlp.hook_post"]), at_least_float32(mlp.W_out)

    def vectors() -> Float[Tensor, "neuron batch pos d_model"]:
        return einsum(post, W_out, "batch pos neuron, neuron d_model -> neuron batch pos d_model")

    def along(direction: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "neuron batch pos"]:
        return (post * (direction @ W_out.T)).movedim(-1, 0)

    yield Write(tuple(f"L{layer}N{neuron}" for neuron in range(post.shape[-1])), vectors, along)
    if mlp.out.bias is not None:
        yield _bias_write(f"L{layer} mlp bias", mlp.out.bias, post)
