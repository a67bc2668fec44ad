"""One block: two reads of the residual stream and two writes to it (three where it attends to an encoder's output).

pre-norm:   mid = pre + attn(ln1(pre))            post = mid + mlp(ln2(mid))
parallel:   post = pre + attn(ln1(pre)) + mlp(ln2(pre))
post-norm:  mid = ln1(pre + attn(pre))            post = ln2(mid + mlp(mid))
attn-only:  post = pre + attn(ln1(pre)), or ln1(pre + attn(pre))
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor, nn

from models.config import StackConfig
from models.hooks.point import HookPoint
from models.parts.attention import Attention, Step
from models.parts.kv_cache import LayerKV
from models.parts.masks import AttentionMask
from models.parts.mlp import MLP
from models.parts.norm import make_norm


@dataclass(frozen=True)
class Memory:
    """The encoder's output, and which of it a decoder may see."""

    states: Float[Tensor, "batch key_pos d_model"]
    mask: AttentionMask


class Block(nn.Module):
    """Attention and MLP around the residual stream, in the order that ``cfg`` says.

    Args:
        cfg: everything about the block.
        cross: attend to a ``Memory`` between attention and MLP, as in the 2017 decoder.
    """

    def __init__(self, cfg: StackConfig, *, cross: bool = False) -> None:
        super().__init__()
        self.pre_norm, self.parallel = cfg.norm_position == "pre", cfg.parallel
        self.n_heads, self.n_kv_heads = cfg.n_heads, cfg.n_kv_heads
        self.hook_resid_pre = HookPoint()
        self.ln1 = make_norm(cfg)
        self.hook_q_input = HookPoint()
        self.hook_k_input = HookPoint()
        self.hook_v_input = HookPoint()
        self.attn = Attention(cfg)
        self.hook_attn_out = HookPoint()
        self.cross_attn: Attention | None = None
        if cross:
            self.ln_cross = make_norm(cfg)
            self.cross_attn = Attention(cfg, cross=True)
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

    def forward(
        self,
        resid_pre: Float[Tensor, "batch pos d_model"],
        step: Step,
        past: LayerKV | None = None,
        memory: Memory | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        resid_pre = self.hook_resid_pre(resid_pre)
        attn_out = self.attention_out(resid_pre, step, past)
        if self.parallel:
            return self.hook_resid_post(resid_pre + attn_out + self.mlp_out(resid_pre))
        resid_mid = self.add_attention(resid_pre, attn_out)
        if self.mlp is None:
            return self.hook_resid_post(resid_mid)
        resid_mid = self.hook_resid_mid(resid_mid)
        if self.cross_attn is not None:
            assert memory is not None
            resid_mid = self._add_cross_attention(self.cross_attn, resid_mid, step, memory)
        return self.add_mlp(resid_mid)

    def attention_out(self, resid_pre: Tensor, step: Step, past: LayerKV | None) -> Float[Tensor, "batch pos d_model"]:
        """Return what attention writes after reading ``resid_pre``."""
        return self.hook_attn_out(self.attn(*self._attention_inputs(resid_pre), step, past))

    def attention_read(self, attn_in: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """Return what queries, keys and values are projected from."""
        return self.ln1(attn_in) if self.pre_norm else attn_in

    def add_attention(self, resid_pre: Tensor, attn_out: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream after attention's write (and, post-norm, its norm)."""
        return resid_pre + attn_out if self.pre_norm else self.ln1(resid_pre + attn_out)

    def _add_cross_attention(self, attn: Attention, resid_mid: Tensor, step: Step, memory: Memory) -> Tensor:
        attn_in = attn.hook_attn_in(resid_mid)
        query_input = self.ln_cross(attn_in) if self.pre_norm else attn_in
        out = attn(query_input, memory.states, memory.states, replace(step, mask=memory.mask))
        resid = resid_mid + self.hook_cross_attn_out(out)
        return self.hook_resid_mid_cross(resid if self.pre_norm else self.ln_cross(resid))

    def mlp_out(self, resid: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """Return what the MLP writes after reading ``resid``."""
        assert self.mlp is not None
        mlp_in = self.hook_mlp_in(resid)
        return self.hook_mlp_out(self.mlp(self.ln2(mlp_in) if self.pre_norm else mlp_in))

    def add_mlp(self, resid_mid: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream leaving the block."""
        return self.hook_resid_post(self.add_mlp_out(resid_mid, self.mlp_out(resid_mid)))

    def add_mlp_out(self, resid_mid: Tensor, mlp_out: Tensor) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream after the MLP's write (and, post-norm, its norm)."""
        return resid_mid + mlp_out if self.pre_norm else self.ln2(resid_mid + mlp_out)

    def _attention_inputs(self, resid_pre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what queries, keys and values read: one tensor, or per head where a hook acts on that head's copy."""
        attn_in = self.attn.hook_attn_in(resid_pre)
        shared = self.attention_read(attn_in)

        def read(point: HookPoint, n_heads: int) -> Tensor:
            if not point.in_use:
                return shared
            per_head = point(attn_in.unsqueeze(2).expand(-1, -1, n_heads, -1))
            if not point.acts:
                return shared
            return self.ln1.unhooked(per_head) if self.pre_norm else per_head

        return (
            read(self.hook_q_input, self.n_heads),
            read(self.hook_k_input, self.n_kv_heads),
            read(self.hook_v_input, self.n_kv_heads),
        )
