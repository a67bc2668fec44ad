"""HookedDecoder: tokens to logits, with every activation on the way at a hook point.

x = embed(tokens) (+ positions)        for each block: x = block(x)        logits = unembed(ln_final(x))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.config import DecoderConfig
from models.errors import CacheError, ConfigError, InputError
from models.hooks.module import HookedModule
from models.hooks.names import HookNames, decoder_hooks
from models.hooks.point import HookPoint
from models.parts.block import Block
from models.parts.embedding import Embedding, Unembedding
from models.parts.initialise import initialise
from models.parts.kv_cache import KVCache
from models.parts.loss import next_token_loss
from models.parts.norm import make_final_norm
from models.parts.positions import PositionEmbedding, absolute_positions
from models.parts.read_only import read_only
from models.parts.step import Step
from models.replaced import know, replaced_part
from models.text import ModelInput, TextInterface, Tokenizer
from models.tokens import check_loss

ReturnType = Literal["logits", "loss", "both"] | None


class HookedDecoder(HookedModule, TextInterface):
    """A decoder-only transformer whose forward pass is the map of its hooks.

    ``W_E``, ``W_pos``, ``W_U`` and each layer's ``model.blocks[l].attn.W_Q`` are the weights themselves: writing to
    one changes the model. ``W_Q``, ``b_Q`` and the others with a layer axis are stacked copies (``b_U`` of a model
    without one is zeros): they refuse to be written to.

    Args:
        cfg: what the model is made of.
        seed: of the fresh weights; the global random state is left alone.
        tokenizer: lets the model take text.

    >>> model = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=10, n_ctx=8))
    >>> logits, cache = model.run_with_cache(torch.tensor([[1, 2, 3]]), names_filter="blocks.0.attn.hook_pattern")
    >>> logits.shape, cache["pattern", 0].shape
    (torch.Size([1, 3, 10]), torch.Size([1, 2, 3, 3]))
    """

    def __init__(self, cfg: DecoderConfig, *, seed: int = 0, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        if not isinstance(cfg, DecoderConfig):
            raise ConfigError(f"HookedDecoder takes a DecoderConfig, not {type(cfg).__name__}")
        self.cfg: DecoderConfig = cfg
        self.tokenizer = tokenizer
        self.embed = Embedding(cfg)
        self.hook_embed = HookPoint()
        if cfg.positions in ("learned", "sinusoidal"):
            self.pos_embed: PositionEmbedding | None = PositionEmbedding(cfg)
            self.hook_pos_embed = HookPoint()
        else:
            self.pos_embed = None
        blocks = nn.ModuleList(Block(cfg, layer) for layer in range(cfg.n_layers))
        self.blocks: Sequence[Block] = cast(Sequence[Block], blocks)
        self.ln_final = make_final_norm(cfg)
        self.unembed = Unembedding(cfg, self.embed)
        self._name_hook_points()
        self.register_load_state_dict_pre_hook(_check_tie)
        if self.embed.W_E.device.type != "meta":
            initialise(self, cfg, 2 * cfg.n_layers, torch.Generator().manual_seed(seed))

    def hook_names(self) -> HookNames:
        return decoder_hooks(self.cfg)

    # -- the forward pass ----------------------------------------------------------------------------------------

    def forward(
        self,
        input: ModelInput,
        return_type: ReturnType = "logits",
        *,
        attention_mask: Bool[Tensor, "batch pos"] | None = None,
        prepend_bos: bool | None = None,
        loss_per_token: bool = False,
        stop_at_layer: int | None = None,
        kv_cache: KVCache | None = None,
    ) -> Any:
        """Run the model.

        Args:
            input: token ids ``[batch, pos]`` or ``[pos]`` (a tensor, an array or lists), a text, or several texts
                (padded on the right).
            return_type: ``logits`` ``[batch, pos, d_vocab]``, ``loss`` in nats, ``both``, or None.
            attention_mask: True (or 1) at real tokens, False at padding, on either side.
            prepend_bos: for text, see ``to_tokens``.
            loss_per_token: give the loss as ``[batch, pos - 1]``, NaN at padding.
            stop_at_layer: return the residual stream entering this layer and compute nothing beyond
                (``n_layers`` stops before the final norm; negative counts from the end).
            kv_cache: keys and values of the columns before these; it is extended in place.

        Raises:
            InputError: ids outside the vocabulary, a sequence longer than ``n_ctx``, a mask that does not fit.
        """
        if return_type not in ("logits", "loss", "both", None):
            raise InputError(f"return_type is {return_type!r}; expected 'logits', 'loss', 'both' or None")
        tokens, real = self.prepare(input, attention_mask, prepend_bos)
        if return_type in ("loss", "both") and not loss_per_token:
            check_loss(tokens, real)
        n_blocks = self._n_blocks(stop_at_layer)
        step = self.step(tokens, real, kv_cache)
        with self._at(step.positions):
            x = self.embedded(tokens, step)
            for layer, block in enumerate(self.blocks[:n_blocks]):
                x = block(x, step, None if kv_cache is None else kv_cache.layers[layer])
            if stop_at_layer is not None:
                return x
            final = self.ln_final(x)
            if return_type is None:
                return None
            logits = self.unembed(final)
        if return_type == "logits":
            return logits
        loss = next_token_loss(logits, tokens, real, loss_per_token)
        return loss if return_type == "loss" else (logits, loss)

    def embedded(self, tokens: Int[Tensor, "batch pos"], step: Step) -> Float[Tensor, "batch pos d_model"]:
        """Return the residual stream entering the first block."""
        x = self.hook_embed(self.embed(tokens))
        if self.pos_embed is None:
            return x
        return x + self.hook_pos_embed(self.pos_embed(step.positions).expand_as(x))

    def _n_blocks(self, stop_at_layer: int | None) -> int:
        n_layers = self.cfg.n_layers
        if stop_at_layer is None:
            return n_layers
        if not -n_layers <= stop_at_layer <= n_layers:
            raise InputError(f"stop_at_layer is {stop_at_layer}; this model has {n_layers} layers")
        return stop_at_layer if stop_at_layer >= 0 else n_layers + stop_at_layer

    def step(self, tokens: Tensor, real: Tensor | None, kv_cache: KVCache | None = None) -> Step:
        """Return where the columns stand and what they may see. Raises InputError beyond ``n_ctx``."""
        batch, n_new = tokens.shape
        n_past = 0
        if kv_cache is not None:
            if len(kv_cache.layers) != self.cfg.n_layers:
                raise CacheError(f"the KV cache has {len(kv_cache.layers)} layers, this model {self.cfg.n_layers}")
            n_past = kv_cache.length
            real = kv_cache.extend(real, batch, n_new)
        positions = absolute_positions(real, n_new, tokens.device, offset=n_past)
        if (last := int(positions.max())) >= self.cfg.n_ctx:
            raise InputError(f"the sequence reaches position {last}, but n_ctx is {self.cfg.n_ctx}; shorten it")
        return Step(positions, n_past + n_new, real)

    def generate(self, input: ModelInput, max_new_tokens: int = 20, **options: Any) -> Int[Tensor, "batch pos"]:
        """Sample a continuation; see ``models.generate.generate`` for the options."""
        from models.generate import generate

        return generate(self, input, max_new_tokens, **options)

    def replaced_part(self, *under: str) -> str | None:
        """Return what of this model is not what was built, such as ``"blocks.1.attn.o is an Adapter"``, or None.

        See ``models.replaced``; ``under`` names the parts that matter, all of them by default.
        """
        return replaced_part(self, under)

    # -- weights -------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.embed.W_E.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.W_E.dtype

    def _stacked(self, part: str, name: str) -> Tensor:
        if part == "mlp" and self.cfg.attn_only:
            raise ConfigError(f"{name} belongs to the MLP, and this model is attention-only")
        return read_only(torch.stack([getattr(getattr(block, part), name) for block in self.blocks]))

    def _stacked_bias(self, part: str, linear: str, width: int) -> Float[Tensor, "layer width"]:
        if part == "mlp" and self.cfg.attn_only:
            raise ConfigError("an attention-only model has no MLP biases")
        biases = [getattr(getattr(block, part), linear).bias for block in self.blocks]
        zero = self.embed.W_E.new_zeros(width)
        return read_only(torch.stack([zero if bias is None else bias for bias in biases]))

    def repeat_kv(self, stacked: Float[Tensor, "layer kv_head ..."]) -> Float[Tensor, "layer head ..."]:
        """Repeat each kv head of a stacked weight for every query head it serves."""
        return repeat(stacked, "layer kv_head ... -> layer (kv_head group) ...", group=self.cfg.group_size)

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        return self.embed.W_E

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]:
        if self.pos_embed is None:
            raise ConfigError(f"positions={self.cfg.positions!r} has no W_pos")
        return self.pos_embed.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return self.unembed.weight.T

    @property
    def b_U(self) -> Float[Tensor, "d_vocab"]:
        bias = self.unembed.bias
        return read_only(self.embed.W_E.new_zeros(self.cfg.d_vocab)) if bias is None else bias

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        return self._stacked("attn", "W_Q")

    @property
    def W_K(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        return self._stacked("attn", "W_K")

    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        return self._stacked("attn", "W_V")

    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]:
        return self._stacked("attn", "W_O")

    @property
    def W_in(self) -> Float[Tensor, "layer d_model d_mlp"]:
        return self._stacked("mlp", "W_in")

    @property
    def W_gate(self) -> Float[Tensor, "layer d_model d_mlp"]:
        if not self.cfg.gated:
            raise ConfigError("this model's MLP is not gated, so it has no W_gate")
        return self._stacked("mlp", "W_gate")

    @property
    def W_out(self) -> Float[Tensor, "layer d_mlp d_model"]:
        return self._stacked("mlp", "W_out")

    @property
    def b_Q(self) -> Float[Tensor, "layer head d_head"]:
        return self._stacked_bias("attn", "q", self.cfg.n_heads * self.cfg.d_head).unflatten(1, (-1, self.cfg.d_head))

    @property
    def b_K(self) -> Float[Tensor, "layer kv_head d_head"]:
        width = self.cfg.n_kv_heads * self.cfg.d_head
        return self._stacked_bias("attn", "k", width).unflatten(1, (-1, self.cfg.d_head))

    @property
    def b_V(self) -> Float[Tensor, "layer kv_head d_head"]:
        width = self.cfg.n_kv_heads * self.cfg.d_head
        return self._stacked_bias("attn", "v", width).unflatten(1, (-1, self.cfg.d_head))

    @property
    def b_O(self) -> Float[Tensor, "layer d_model"]:
        return self._stacked_bias("attn", "o", self.cfg.d_model)

    @property
    def b_in(self) -> Float[Tensor, "layer d_mlp"]:
        return self._stacked_bias("mlp", "inp", cast(int, self.cfg.d_mlp))

    @property
    def b_out(self) -> Float[Tensor, "layer d_model"]:
        return self._stacked_bias("mlp", "out", self.cfg.d_model)


def _check_tie(model: HookedDecoder, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """Refuse two different matrices for the one that a tied model has; ``assign=True`` gives it both, and unties it."""
    names = (f"{prefix}embed.W_E", f"{prefix}unembed.weight")
    if not model.cfg.tied or metadata.get("assign_to_params_buffers") or not all(name in state for name in names):
        return
    if not torch.equal(*(state[name] for name in names)):
        raise ConfigError(
            "this model is tied, and the state has one matrix for the embedding and another for the unembedding, of "
            "which one would be lost: load it into a model with tied=False, or with assign=True"
        )


know(HookedDecoder)
