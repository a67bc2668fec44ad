"""Where the model learns the order of its tokens: vectors added to the embedding, or turns of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.part import PartConfig, PerLayer, is_number, values_of
from models.errors import ConfigError

Positions = Literal["learned", "rotary", "sinusoidal", "none"]
RotaryLayout = Literal["half", "interleaved"]


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
            if not is_number(value := getattr(self, name)) or value <= 0:
                raise ConfigError(f"rotary scaling {name} is {value!r}; expected a positive number")
        if self.kind == "llama3" and not self.low_freq < self.high_freq:
            raise ConfigError(f"low_freq {self.low_freq} must be below high_freq {self.high_freq}")


@dataclass(frozen=True, kw_only=True)
class PositionsConfig(PartConfig):
    """The options of positions.

    Args:
        positions: ``learned`` and ``sinusoidal`` are added to the embedding, ``rotary`` turns queries and keys.
        rotary_layout: planes from dimensions (i, i + rotary_dim/2) (``half``, as in Llama) or (2i, 2i+1)
            (``interleaved``, as in the RoPE paper and GPT-J).
        rotary_dim: how many of a head's dimensions are rotated; by default ``d_head``.
        rotary_base: the base of the frequencies, 10000 in the paper; one number, or one per layer.
        rotary_scaling: frequency scaling for longer contexts; one, or one per layer.
    """

    positions: Positions = "learned"
    rotary_layout: RotaryLayout = "half"
    rotary_dim: int | None = None
    rotary_base: PerLayer[float] = 10_000.0
    rotary_scaling: PerLayer[RotaryScaling | None] = None

    def _check(self) -> None:
        if self.positions == "rotary":
            if any(base <= 1 for base in values_of(self.rotary_base)):
                raise ConfigError(f"rotary_base is {self.rotary_base}; expected a number above 1, such as 10000")
        elif self.rotary_dim is not None or any(values_of(self.rotary_scaling)):
            raise ConfigError(
                f"rotary_dim and rotary_scaling belong to positions='rotary', not to positions={self.positions!r}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ConfigError(f"sinusoidal positions need an even d_model, not {self.d_model}")
