"""Norms: of which kind, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from models.config.part import PartConfig
from models.errors import ConfigError

NormKind = Literal["layer", "rms", "none"]
NormPosition = Literal["pre", "post"]


@dataclass(frozen=True, kw_only=True)
class NormConfig(PartConfig):
    """The options of norms.

    Args:
        norm: LayerNorm, RMSNorm or none.
        norm_eps: added to the mean square (or variance).
        norm_bias: LayerNorm's additive bias.
        norm_position: ``pre`` reads a normalised stream, ``post`` normalises after the addition (2017).
    """

    norm: NormKind = "layer"
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_position: NormPosition = "pre"

    def _check(self) -> None:
        if self.norm_eps <= 0:
            raise ConfigError(f"norm_eps is {self.norm_eps}; expected a small positive number such as 1e-5")
        if self.norm != "layer" and self.norm_bias:
            self._set("norm_bias", False)  # only LayerNorm has one; the default must not force a flag on everyone
        if self.norm == "none" and self.norm_position == "post":
            raise ConfigError("norm_position='post' needs a norm; use norm='layer' or 'rms'")
