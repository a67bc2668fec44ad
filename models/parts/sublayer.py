"""Sublayers: what a block is a row of. Each reads the residual stream once and writes to it once.

pre-norm    read   x_in = norm(stream)      post-norm    read   x_in = stream
            core   out = core(x_in)                      core   out = core(x_in)
            join   stream + out                          join   norm(stream + out)

The core is attention, an MLP, or attention to an encoder's output. Whatever enters a block halfway, or takes the stream
apart, walks its sublayers, and asks them and not the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from jaxtyping import Float
from torch import Tensor

from models.hooks.point import HookPoint
from models.parts.attention import Attention
from models.parts.kv_cache import LayerKV
from models.parts.mlp import MLP
from models.parts.norm import NoNorm, Norm
from models.parts.step import Step

if TYPE_CHECKING:
    from models.parts.block import Block

SublayerName = Literal["attn", "cross_attn", "mlp"]
_NOTHING = NoNorm()


@dataclass(frozen=True)
class Memory:
    """The encoder's output, and which of it a decoder may see."""

    states: Float[Tensor, "batch key_pos d_model"]
    step: Step


@dataclass(frozen=True)
class Wires:
    """How a sublayer hangs in its block, by the block's own names.

    Attributes:
        norm: the norm's name.
        out: the hook of what is written.
        reads: the hook of the stream that is read.
        joined: the hook of the stream with the write; None where no stream is between (parallel blocks).
        pre_norm: whether the norm stands before the core, not after the sum.
    """

    norm: str
    out: str
    reads: str
    joined: str | None
    pre_norm: bool


class Sublayer:
    """One sublayer of a block: a view of its parts, as they are now.

    Attributes:
        name: ``attn``, ``cross_attn`` or ``mlp``; the core's name in the block.
        attends: whether columns of the stream see each other in it.
    """

    __slots__ = ("block", "wires")
    name: SublayerName
    attends = False

    @property
    def core(self) -> Attention | MLP:
        """What stands between reading and writing."""
        raise NotImplementedError

    def __init__(self, block: Block, wires: Wires) -> None:
        self.block, self.wires = block, wires

    @property
    def norm(self) -> Norm | NoNorm:
        """The norm of what is read, or of the sum."""
        return cast("Norm | NoNorm", getattr(self.block, self.wires.norm))

    @property
    def norm_in(self) -> Norm | NoNorm:
        """The norm of what is read."""
        return self.norm if self.wires.pre_norm else _NOTHING

    @property
    def norm_sum(self) -> Norm | NoNorm:
        """The norm of the stream with the write."""
        return _NOTHING if self.wires.pre_norm else self.norm

    @property
    def hook_out(self) -> HookPoint:
        """Where what is written passes."""
        return cast(HookPoint, getattr(self.block, self.wires.out))

    def read(self, stream: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        """Return what the core is given of a stream."""
        return self.norm(stream) if self.wires.pre_norm else stream

    def out(
        self,
        stream: Float[Tensor, "batch pos d_model"],
        step: Step | None = None,
        past: LayerKV | None = None,
        memory: Memory | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        """Return what is written after reading a stream; ``step`` is needed where columns see each other."""
        raise NotImplementedError

    def join(self, stream: Float[Tensor, "*any d_model"], out: Tensor) -> Float[Tensor, "*any d_model"]:
        """Return the stream with the write."""
        return stream + out if self.wires.pre_norm else self.norm(stream + out)

    def joined(self, stream: Float[Tensor, "*any d_model"], out: Tensor) -> Float[Tensor, "*any d_model"]:
        """Return the stream with the write, past its hook."""
        stream = self.join(stream, out)
        return stream if self.wires.joined is None else cast(Tensor, getattr(self.block, self.wires.joined)(stream))


class AttentionSublayer(Sublayer):
    """Attention among the columns of the stream."""

    __slots__ = ()
    name: SublayerName = "attn"
    attends = True

    @property
    def core(self) -> Attention:
        return self.block.attn

    def out(
        self, stream: Tensor, step: Step | None = None, past: LayerKV | None = None, memory: Memory | None = None
    ) -> Tensor:
        assert step is not None
        return self.hook_out(self.core(*self._inputs(stream), step, past))

    def _inputs(self, stream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what queries, keys and values read: one tensor, or per head where a hook acts on that head's copy."""
        block, attn = self.block, self.core
        attn_in = attn.hook_attn_in(stream)
        shared = self.read(attn_in)

        def split(point: HookPoint, n_heads: int) -> Tensor:
            if not point.in_use:
                return shared
            per_head = point(attn_in.unsqueeze(2).expand(-1, -1, n_heads, -1))
            if not point.acts:
                return shared
            return self.norm.unhooked(per_head) if self.wires.pre_norm else per_head

        return (
            split(block.hook_q_input, attn.n_heads),
            split(block.hook_k_input, attn.n_kv_heads),
            split(block.hook_v_input, attn.n_kv_heads),
        )


class CrossAttentionSublayer(Sublayer):
    """Attention to an encoder's output."""

    __slots__ = ()
    name: SublayerName = "cross_attn"

    @property
    def core(self) -> Attention:
        return cast(Attention, self.block.cross_attn)

    def out(
        self, stream: Tensor, step: Step | None = None, past: LayerKV | None = None, memory: Memory | None = None
    ) -> Tensor:
        assert memory is not None
        read = self.read(self.core.hook_attn_in(stream))
        return self.hook_out(self.core(read, memory.states, memory.states, memory.step))


class MLPSublayer(Sublayer):
    """The MLP, position by position."""

    __slots__ = ()
    name: SublayerName = "mlp"

    @property
    def core(self) -> MLP:
        return cast(MLP, self.block.mlp)

    def out(
        self, stream: Tensor, step: Step | None = None, past: LayerKV | None = None, memory: Memory | None = None
    ) -> Tensor:
        return self.hook_out(self.core(self.read(self.block.hook_mlp_in(stream))))
