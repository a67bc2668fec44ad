"""A price on what heads write, which leaves few of them at work.

    penalty = sum over layers l of lambda_l * sum over heads h of (mean over rows and columns of |z_h W_O,h|)^power

A head whose job another one does as well then falls silent, so that a small model has one previous-token head and a
few induction heads rather than a job spread over all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from models.decoder import HookedDecoder
from models.errors import ConfigError
from models.hooks.module import Hook
from models.hooks.point import HookPoint

TINY = 1e-12  # keeps the root's gradient finite for a head that writes nothing


@dataclass(frozen=True, kw_only=True)
class HeadPenalty:
    """How dear a head's writing is, by layer, in nats.

    Args:
        by_layer: lambda of each layer.
        begin: share of it at a phase's first step.
        ramp: steps after which it is whole.
        power: below 1 little writing is dearer per unit, so that weak heads fall silent and strong ones take over.
    """

    by_layer: tuple[float, ...]
    begin: float = 0.0
    ramp: int = 0
    power: float = 1.0

    def __post_init__(self) -> None:
        shares = 0 <= self.begin <= 1 and self.ramp >= 0 and self.power > 0
        if not self.by_layer or min(self.by_layer) < 0 or not shares:
            raise ConfigError(
                f"by_layer {self.by_layer}, begin {self.begin}, ramp {self.ramp}, power {self.power}; expected a price "
                "of at least 0 for each layer, a share, a number of steps, and a power above 0"
            )

    def check(self, model: HookedDecoder) -> None:
        """Raise ConfigError where the model has another number of layers."""
        if len(self.by_layer) != model.cfg.n_layers:
            raise ConfigError(
                f"a penalty for {len(self.by_layer)} layers, a model of {model.cfg.n_layers}; give one value per layer"
            )

    def at(self, step_of_phase: int, writes: list[Float[Tensor, "head"]]) -> Float[Tensor, ""]:
        """Return the penalty of what ``head_writes`` collected, one value per layer."""
        share = 1.0 if step_of_phase >= self.ramp else self.begin + (1 - self.begin) * step_of_phase / self.ramp
        prices = zip(self.by_layer, writes, strict=True)
        return share * torch.stack([price * write.pow(self.power).sum() for price, write in prices]).sum()


@contextmanager
def head_writes(model: HookedDecoder) -> Iterator[list[Float[Tensor, "head"]]]:
    """Collect, in a run inside the block, the mean norm of what each head writes, layer by layer.

    >>> from models.config import DecoderConfig
    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=4, n_ctx=8))
    >>> with head_writes(model) as writes:
    ...     _ = model(torch.tensor([[0, 1, 2]]))
    >>> len(writes)
    2
    """
    writes: list[Tensor] = []

    def collect(z: Float[Tensor, "batch pos head d_head"], hook: HookPoint) -> None:
        assert hook.layer is not None
        W_O = model.blocks[hook.layer].attn.W_O
        gram = einsum(W_O, W_O, "head i d_model, head j d_model -> head i j")  # |z W|^2 = z W W^T z^T, d_model-free
        square = einsum(z, gram, z, "batch pos head i, head i j, batch pos head j -> batch pos head")
        writes.append((square.clamp(min=0) + TINY).sqrt().mean((0, 1)))

    hooks: list[Hook] = [(f"blocks.{layer}.attn.hook_z", collect) for layer in range(model.cfg.n_layers)]
    with model.hooks(hooks):
        yield writes
