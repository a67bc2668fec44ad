"""The position-wise MLP, plain or gated, hooked.

plain:  out = act(x W_in + b_in) W_out + b_out
gated:  out = (act(x W_gate + b_gate) * (x W_in + b_in)) W_out + b_out        (SwiGLU, GeGLU: arXiv 2002.05202)
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models.config import Activation, MLPConfig
from models.hooks.point import HookPoint
from models.parts.linear import Linear


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


class MLP(nn.Module):
    """One MLP sublayer, without its norm; ``W_in``, ``W_gate`` and ``W_out`` are views [in, out] of its weights."""

    def __init__(self, cfg: MLPConfig) -> None:
        super().__init__()
        assert cfg.d_mlp is not None
        self.act = ACTIVATIONS[cfg.act]
        self.inp = Linear(cfg.d_model, cfg.d_mlp, bias=cfg.mlp_bias)
        self.gate = Linear(cfg.d_model, cfg.d_mlp, bias=cfg.mlp_bias) if cfg.gated else None
        self.out = Linear(cfg.d_mlp, cfg.d_model, bias=cfg.mlp_bias)
        self.hook_pre = HookPoint()
        if cfg.gated:
            self.hook_pre_linear = HookPoint()
        self.hook_post = HookPoint()

    @property
    def readers(self) -> tuple[nn.Linear, ...]:
        """What is read with."""
        return (self.inp,) if self.gate is None else (self.inp, self.gate)

    @property
    def writer(self) -> nn.Linear:
        """What is written with."""
        return self.out

    @property
    def W_in(self) -> Float[Tensor, "d_model d_mlp"]:
        return self.inp.weight.T

    @property
    def W_gate(self) -> Float[Tensor, "d_model d_mlp"] | None:
        return None if self.gate is None else self.gate.weight.T

    @property
    def W_out(self) -> Float[Tensor, "d_mlp d_model"]:
        return self.out.weight.T

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        if self.gate is None:
            post = self.act(self.hook_pre(self.inp(x)))
        else:
            post = self.act(self.hook_pre(self.gate(x))) * self.hook_pre_linear(self.inp(x))
        return self.out(self.hook_post(post))
