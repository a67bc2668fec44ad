"""What a model is made of: frozen configurations, and all of their validation.

``StackConfig`` holds what one stack of blocks needs; ``DecoderConfig`` and ``EncoderDecoderConfig`` add the
vocabulary and the depth. A combination that describes no model is refused here, with a reason, so that the
modules in ``models.parts`` may trust what they are given.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from models.errors import ConfigError, nearest

Positions = Literal["learned", "rotary", "sinusoidal", "none"]
RotaryLayout = Literal["half", "interleaved"]
NormKind = Literal["layer", "rms", "none"]
NormPosition = Literal["pre", "post"]
Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Init = Literal["gpt2", "fan_in", "torch"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "positions": get_args(Positions),
    "rotary_layout": get_args(RotaryLayout),
    "norm": get_args(NormKind),
    "norm_position": get_args(NormPosition),
    "act": get_args(Activation),
    "init": get_args(Init),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class RotaryScaling:
    """How rotary frequencies are stretched for contexts longer than those first trained on.

    ``linear`` divides every frequency by ``factor``. ``llama3`` divides the low frequencies by ``factor``, keeps
    the high ones, and interpolates between wavelengths ``original_n_ctx / low_freq`` and ``/ high_freq``.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq: float = 1.0
    high_freq: float = 4.0
    original_n_ctx: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            raise ConfigError(f"rotary scaling kind is {self.kind!r}; expected 'linear' or 'llama3'")
        for name in ("factor", "low_freq", "high_freq", "original_n_ctx"):
            if not _is_number(value := getattr(self, name)) or value <= 0:
                raise ConfigError(f"rotary scaling {name} is {value!r}; expected a positive number")
        if self.kind == "llama3" and not self.low_freq < self.high_freq:
            raise ConfigError(f"low_freq {self.low_freq} must be below high_freq {self.high_freq}")


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """What one stack of blocks is made of: widths, heads, positions, norms, the MLP, biases.

    ``d_head`` defaults to ``d_model // n_heads``, ``n_kv_heads`` to ``n_heads``, ``d_mlp`` to ``4 * d_model``
    and ``rotary_dim`` to ``d_head``; after construction none of them is ``None``, except ``d_mlp`` with
    ``attn_only`` and ``rotary_dim`` without rotary positions.

    Args:
        d_model: width of the residual stream.
        n_heads: query heads per layer.
        d_vocab: number of tokens.
        n_ctx: the longest sequence, in tokens.
        d_head: width of one head.
        n_kv_heads: key/value heads; ``n_heads`` is MHA, 1 is MQA, a divisor of ``n_heads`` in between is GQA.
        d_mlp: inner width of the MLP.
        attn_only: no MLP at all.
        positions: ``learned`` and ``sinusoidal`` are added to the embedding, ``rotary`` turns queries and keys.
        rotary_layout: planes from dimensions (i, i + rotary_dim/2) (``half``, as in Llama) or (2i, 2i+1)
            (``interleaved``, as in the RoPE paper and GPT-J).
        rotary_dim: how many of a head's dimensions are rotated.
        rotary_base: the base of the frequencies, 10000 in the paper.
        rotary_scaling: frequency scaling for longer contexts.
        sliding_window: a query sees the last ``sliding_window`` positions only, itself included (Mistral).
        norm: LayerNorm, RMSNorm or none.
        norm_eps: added to the mean square (or variance).
        norm_bias: LayerNorm's additive bias.
        norm_position: ``pre`` reads a normalised stream, ``post`` normalises after the addition (2017).
        parallel: attention and MLP both read the block's input (GPT-J, GPT-NeoX); the MLP through its own norm.
        act: activation function; ``gelu_tanh`` is GPT-2's.
        gated: act(x W_gate) * (x W_in): SwiGLU with ``silu``, GeGLU with ``gelu``.
        qkv_bias, out_bias, mlp_bias, unembed_bias: whether these projections have biases.
        tied: the unembedding is the transposed embedding.
        scale_embedding: multiply embeddings by sqrt(d_model) (2017).
        init: how fresh weights are drawn, see ``models.parts.initialise``.
    """

    d_model: int
    n_heads: int
    d_vocab: int
    n_ctx: int
    d_head: int = None  # type: ignore[assignment]  # filled in __post_init__
    n_kv_heads: int = None  # type: ignore[assignment]
    d_mlp: int | None = None
    attn_only: bool = False
    positions: Positions = "learned"
    rotary_layout: RotaryLayout = "half"
    rotary_dim: int | None = None
    rotary_base: float = 10_000.0
    rotary_scaling: RotaryScaling | None = None
    sliding_window: int | None = None
    norm: NormKind = "layer"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_position: NormPosition = "pre"
    parallel: bool = False
    act: Activation = "gelu_tanh"
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    unembed_bias: bool = False
    tied: bool = False
    scale_embedding: bool = False
    init: Init = "gpt2"

    def __post_init__(self) -> None:
        self._check_kinds()
        self._fill_defaults()
        self._check_heads()
        self._check_positions()
        self._check_norm_and_mlp()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_kinds(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")
        for field in fields(self):
            value = getattr(self, field.name)
            kind = str(field.type)
            if value is None and field.default is None:
                continue  # filled in below, or left out
            if kind.startswith("int"):
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise ConfigError(f"{field.name} is {value!r}; expected a positive integer")
            elif kind == "float" and not _is_number(value):
                raise ConfigError(f"{field.name} is {value!r}; expected a number")
            elif kind == "bool" and not isinstance(value, bool):
                raise ConfigError(f"{field.name} is {value!r}; expected True or False")
        if self.rotary_scaling is not None and not isinstance(self.rotary_scaling, RotaryScaling):
            raise ConfigError(f"rotary_scaling is {self.rotary_scaling!r}; expected a RotaryScaling or None")

    def _fill_defaults(self) -> None:
        if self.d_head is None:
            if self.d_model % self.n_heads:
                raise ConfigError(
                    f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}; give d_head explicitly"
                )
            self._set("d_head", self.d_model // self.n_heads)
        if self.n_kv_heads is None:
            self._set("n_kv_heads", self.n_heads)
        if self.d_mlp is None and not self.attn_only:
            self._set("d_mlp", 4 * self.d_model)
        if self.positions == "rotary" and self.rotary_dim is None:
            self._set("rotary_dim", self.d_head)

    def _check_heads(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}: "
                "every key/value head must serve the same number of query heads"
            )

    def _check_positions(self) -> None:
        if self.positions == "rotary":
            assert self.rotary_dim is not None
            if self.rotary_dim % 2 or self.rotary_dim > self.d_head:
                raise ConfigError(
                    f"rotary_dim is {self.rotary_dim}; expected an even number of at most d_head = {self.d_head}"
                )
            if self.rotary_base <= 1:
                raise ConfigError(f"rotary_base is {self.rotary_base}; expected a number above 1, such as 10000")
        elif self.rotary_dim is not None or self.rotary_scaling is not None:
            raise ConfigError(
                f"rotary_dim and rotary_scaling belong to positions='rotary', not to positions={self.positions!r}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(f"sinusoidal positions need an even d_model, not {self.d_model}")

        if self.sliding_window == 1:
            raise ConfigError(
                "sliding_window is 1: a query that sees itself alone has no choice, so queries, keys and scores cannot "
                "act; use 2 or more"
            )

    def _check_norm_and_mlp(self) -> None:
        if self.norm_eps <= 0:
            raise ConfigError(f"norm_eps is {self.norm_eps}; expected a small positive number such as 1e-5")
        if self.norm != "layer" and self.norm_bias:
            self._set("norm_bias", False)  # only LayerNorm has one; the default must not force a flag on everyone
        if self.norm == "none" and self.norm_position == "post":
            raise ConfigError("norm_position='post' needs a norm; use norm='layer' or 'rms'")
        if self.parallel and self.norm_position == "post":
            raise ConfigError(
                "parallel blocks with norm_position='post' are not a known architecture; use norm_position='pre'"
            )
        if self.attn_only:
            for name, off in (("gated", False), ("parallel", False), ("d_mlp", None)):
                if getattr(self, name) != off:
                    raise ConfigError(f"attn_only=True has no MLP, so {name}={getattr(self, name)!r} cannot act")

    @property
    def group_size(self) -> int:
        """Query heads per key/value head: query head h reads kv head ``h // group_size``."""
        return self.n_heads // self.n_kv_heads

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values, the inverse of ``from_dict``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build from plain values. Raises ConfigError on unknown or missing keys."""
        known = {field.name for field in fields(cls)}
        for key in values:
            if key not in known:
                raise ConfigError(f"{cls.__name__} has no field {key!r}{nearest(key, known)}")
        values = dict(values)
        try:
            if isinstance(values.get("rotary_scaling"), dict):
                values["rotary_scaling"] = RotaryScaling(**values["rotary_scaling"])
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{cls.__name__}: {error}") from None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A decoder-only transformer: ``n_layers`` causal blocks between an embedding and an unembedding.

    >>> cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, d_vocab=65, n_ctx=64)
    >>> cfg.d_head, cfg.d_mlp, cfg.group_size
    (16, 256, 2)
    """

    n_layers: int


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(StackConfig):
    """The 2017 Transformer: an encoder, and a decoder that also attends to the encoder's output.

    Source and target share one vocabulary of ``d_vocab`` tokens; ``tied`` shares one matrix between both embeddings
    and the unembedding, as in the paper (section 3.4). The paper's model is
    ``norm_position="post"``, ``positions="sinusoidal"``, ``act="relu"``, ``tied=True``, ``scale_embedding=True``.
    """

    n_encoder_layers: int
    n_decoder_layers: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parallel or self.attn_only or self.sliding_window is not None:
            raise ConfigError(
                "an encoder-decoder takes neither parallel nor attn_only nor sliding_window: "
                "its decoder block has three sublayers in sequence"
            )
