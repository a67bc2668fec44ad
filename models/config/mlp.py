"""The MLP: its width, its activation function, its gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.part import PartConfig
from models.errors import ConfigError

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


@dataclass(frozen=True, kw_only=True)
class MLPConfig(PartConfig):
    """The options of the MLP.

    Args:
        d_mlp: inner width, by default ``4 * d_model``; None with ``attn_only``.
        attn_only: no MLP at all.
        act: activation function; ``gelu_tanh`` is GPT-2's.
        gated: act(x W_gate) * (x W_in): SwiGLU with ``silu``, GeGLU with ``gelu``.
        mlp_bias: whether its projections have biases.
    """

    d_mlp: int | None = None
    attn_only: bool = False
    act: Activation = "gelu_tanh"
    gated: bool = False
    mlp_bias: bool = True

    def _check(self) -> None:
        if not self.attn_only:
            if self.d_mlp is None:
                self._set("d_mlp", 4 * self.d_model)
            return
        for name, off in (("gated", False), ("d_mlp", None)):
            if getattr(self, name) != off:
                raise ConfigError(f"attn_only=True has no MLP, so {name}={getattr(self, name)!r} cannot act")
