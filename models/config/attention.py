"""Attention: heads, who sees whom, biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.norm import NormConfig
from models.config.part import PerLayer, values_of
from models.config.positions import PositionsConfig
from models.errors import ConfigError

QKNorm = Literal["none", "head", "flat"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(PositionsConfig, NormConfig):
    """The options of attention, rotary positions among them.

    Args:
        n_heads: query heads per layer.
        d_head: width of one head, by default ``d_model // n_heads``.
        n_kv_heads: key/value heads, by default ``n_heads`` (MHA); 1 is MQA, a divisor of ``n_heads`` in between is GQA.
        sliding_window: a query sees the last ``sliding_window`` positions only, itself included (Mistral); one number,
            or one per layer (None: all of them).
        qkv_bias, out_bias: whether these projections have biases.
        qk_norm: RMSNorm of queries and keys before they are turned: of each head by itself (``head``: Qwen 3, Gemma 3),
            of all heads together (``flat``: OLMo 2), or ``none``.
    """

    n_heads: int
    d_head: int = None  # type: ignore[assignment]  # filled in _check
    n_kv_heads: int = None  # type: ignore[assignment]
    sliding_window: PerLayer[int | None] = None
    qkv_bias: bool = True
    out_bias: bool = True
    qk_norm: QKNorm = "none"

    def _check(self) -> None:
        if self.d_head is None:
            if self.d_model % self.n_heads:
                raise ConfigError(
                    f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}; give d_head explicitly"
                )
            self._set("d_head", self.d_model // self.n_heads)
        if self.n_kv_heads is None:
            self._set("n_kv_heads", self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}: "
                "every key/value head must serve the same number of query heads"
            )
        if 1 in values_of(self.sliding_window):
            raise ConfigError(
                "sliding_window is 1: a query that sees itself alone has no choice, so queries, keys and scores cannot "
                "act; use 2 or more"
            )
        if self.positions == "rotary":
            if self.rotary_dim is None:
                self._set("rotary_dim", self.d_head)
            if self.rotary_dim % 2 or self.rotary_dim > self.d_head:  # type: ignore[operator]
                raise ConfigError(
                    f"rotary_dim is {self.rotary_dim}; expected an even number of at most d_head = {self.d_head}"
                )

    @property
    def narrowest_window(self) -> int | None:
        """The fewest tokens that a query may see in some layer, itself included; None where all layers see all."""
        return min((window for window in values_of(self.sliding_window) if window is not None), default=None)

    @property
    def group_size(self) -> int:
        """Query heads per key/value head: query head h reads kv head ``h // group_size``."""
        return self.n_heads // self.n_kv_heads
