"""One block: a row of sublayers around the residual stream, in sequence or side by side.

serial      for each sublayer:  stream = join(stream, out(stream))
parallel    for each sublayer:  stream = join(stream, out(entering))          (GPT-J, GPT-NeoX)

The sublayers are attention, in a decoder of an encoder-decoder attention to the encoder's output, and an MLP, where the
model has one.
"""

from __future__ import annotations

from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from models.config import StackConfig
from models.hooks.point import HookPoint
from models.parts.attention import Attention
from models.parts.kv_cache import LayerKV
from models.parts.mlp import MLP
from models.parts.norm import make_norm
from models.parts.step import Step
from models.parts.sublayer import (
    AttentionSublayer,
    CrossAttentionSublayer,
    Memory,
    MLPSublayer,
    Sublayer,
    Wires,
)


class Block(nn.Module):
    """The sublayers of one layer, and the hooks around them.

    Args:
        cfg: everything about the block.
        layer: whose values of options that differ by layer.
        cross: attend to a ``Memory`` between attention and MLP, as in the 2017 decoder.
    """

    def __init__(self, cfg: StackConfig, layer: int = 0, *, cross: bool = False) -> None:
        super().__init__()
        self.parallel = cfg.parallel
        self.hook_resid_pre = HookPoint()
        self.ln1 = make_norm(cfg)
        self.hook_q_input = HookPoint()
        self.hook_k_input = HookPoint()
        self.hook_v_input = HookPoint()
        self.attn = Attention(cfg, layer)
        self.hook_attn_out = HookPoint()
        self.cross_attn: Attention | None = None
        if cross:
            self.ln_cross = make_norm(cfg)
            self.cross_attn = Attention(cfg, layer, cross=True)
            self.hook_cross_attn_out = HookPoint()
            self.hook_resid_mid_cross = HookPoint()
        if not cfg.attn_only:
            if not cfg.parallel:
                self.hook_resid_mid = HookPoint()
            self.hook_mlp_in = HookPoint()
            self.ln2 = make_norm(cfg)
            self.mlp: MLP | None = MLP(cfg)
            self.hook_mlp_out = HookPoint()
        else:
            self.mlp = None
        self.hook_resid_post = HookPoint()
        self._wires = _wires(cfg, cross=cross)

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """The sublayers, in the order in which they write."""
        return tuple(kind(self, wires) for kind, wires in self._wires)

    @property
    def attention(self) -> AttentionSublayer:
        """The sublayer in which columns see each other: the first."""
        return cast(AttentionSublayer, self.sublayers[0])

    def sublayer(self, name: str) -> Sublayer | None:
        """Return a sublayer by name, None where this block has none such."""
        return next((one for one in self.sublayers if one.name == name), None)

    def forward(
        self,
        resid_pre: Float[Tensor, "batch pos d_model"],
        step: Step,
        past: LayerKV | None = None,
        memory: Memory | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        stream = entering = self.hook_resid_pre(resid_pre)
        for sublayer in self.sublayers:
            stream = sublayer.joined(stream, sublayer.out(entering if self.parallel else stream, step, past, memory))
        return stream


def _wires(cfg: StackConfig, *, cross: bool) -> tuple[tuple[type[Sublayer], Wires], ...]:
    """Return the kinds of a block's sublayers, and which of its norms and hooks are theirs."""
    parts: list[tuple[type[Sublayer], str, str, str]] = [
        (AttentionSublayer, "ln1", "hook_attn_out", "hook_resid_mid"),
        *([(CrossAttentionSublayer, "ln_cross", "hook_cross_attn_out", "hook_resid_mid_cross")] if cross else []),
        *([] if cfg.attn_only else [(MLPSublayer, "ln2", "hook_mlp_out", "hook_resid_post")]),
    ]
    reads, wired = "hook_resid_pre", []
    for i, (kind, norm, out, joined) in enumerate(parts):
        last = i == len(parts) - 1
        after = "hook_resid_post" if last else None if cfg.parallel else joined
        wired.append((kind, Wires(norm, out, reads, after, cfg.norm_position == "pre")))
        reads = reads if after is None else after
    return tuple(wired)
