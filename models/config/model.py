"""The configurations of whole models: their parts' options put together, and their depth."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from models.config.attention import AttentionConfig
from models.config.embedding import UnembeddingConfig
from models.config.mlp import MLPConfig
from models.config.norm import NormConfig
from models.errors import ConfigError

Init = Literal["gpt2", "fan_in", "torch"]


@dataclass(frozen=True, kw_only=True)
class StackConfig(MLPConfig, AttentionConfig, NormConfig, UnembeddingConfig):
    """What one stack of blocks is made of: the options of all its parts, see their classes.

    After construction none of them is ``None`` by default, except ``d_mlp`` with ``attn_only`` and ``rotary_dim``
    without rotary positions.

    Args:
        parallel: attention and MLP both read the block's input (GPT-J, GPT-NeoX); the MLP through its own norm.
        init: how fresh weights are drawn, see ``models.parts.initialise``.
    """

    parallel: bool = False
    init: Init = "gpt2"

    def _check(self) -> None:
        if self.parallel and self.norm_position == "post":
            raise ConfigError(
                "parallel blocks with norm_position='post' are not a known architecture; use norm_position='pre'"
            )
        if self.parallel and self.attn_only:
            raise ConfigError("attn_only=True has no MLP, so parallel=True cannot act")

    @property
    def has_resid_mid(self) -> bool:
        """Whether there is a stream between attention and MLP."""
        return not (self.parallel or self.attn_only)

    @property
    def by_layer(self) -> dict[str, int]:
        """The options that are given layer by layer, and for how many."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: len(value) for name, value in values.items() if isinstance(value, tuple)}


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(StackConfig):
    """A decoder-only transformer: ``n_layers`` causal blocks between an embedding and an unembedding.

    >>> cfg = DecoderConfig(n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, d_vocab=65, n_ctx=64)
    >>> cfg.d_head, cfg.d_mlp, cfg.group_size
    (16, 256, 2)
    """

    n_layers: int

    def _check(self) -> None:
        for name, given in self.by_layer.items():
            if given != self.n_layers:
                raise ConfigError(f"{name} has {given} values for {self.n_layers} layers; give one per layer")


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(StackConfig):
    """The 2017 Transformer: an encoder, and a decoder that also attends to the encoder's output.

    Source and target share one vocabulary of ``d_vocab`` tokens; ``tied`` shares one matrix between both embeddings
    and the unembedding, as in the paper (section 3.4). The paper's model is
    ``norm_position="post"``, ``positions="sinusoidal"``, ``act="relu"``, ``tied=True``, ``scale_embedding=True``.
    """

    n_encoder_layers: int
    n_decoder_layers: int

    def _check(self) -> None:
        if self.by_layer:
            raise ConfigError(
                f"{min(self.by_layer)} is given layer by layer, and an encoder-decoder has two stacks: give one value"
            )
        if self.parallel or self.attn_only or self.sliding_window is not None:
            raise ConfigError(
                "an encoder-decoder takes neither parallel nor attn_only nor sliding_window: "
                "its decoder block has three sublayers in sequence"
            )
