"""HookedEncoderDecoder: the 2017 Transformer (arXiv 1706.03762), hooked.

    memory = encoder(embed(source) + positions)            every source position sees every other
    logits = unembed(decoder(embed(target) + positions, memory))   causal, and attending to the memory

Target positions are shifted by the caller: logits at position i predict target token i + 1.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.config import EncoderDecoderConfig
from models.errors import ConfigError, InputError
from models.generate import check_sampling, sample
from models.hooks.module import HookedModule
from models.hooks.names import HookNames, encoder_decoder_hooks
from models.hooks.point import HookPoint
from models.parts.block import Block
from models.parts.embedding import Embedding, Unembedding
from models.parts.initialise import initialise
from models.parts.loss import next_token_loss
from models.parts.norm import make_final_norm
from models.parts.positions import PositionEmbedding, absolute_positions
from models.parts.read_only import read_only
from models.parts.step import Step
from models.parts.sublayer import Memory
from models.text import Ids, TextInterface, Tokenizer
from models.tokens import check_loss, check_mask, check_tokens

ReturnType = Literal["logits", "loss", "both"] | None


class HookedEncoderDecoder(HookedModule, TextInterface):
    """An encoder-decoder transformer whose forward pass is the map of its hooks.

    Args:
        cfg: what the model is made of.
        seed: of the fresh weights; the global random state is left alone.
        tokenizer: one for both languages, as in the paper.

    >>> cfg = EncoderDecoderConfig(n_encoder_layers=1, n_decoder_layers=1, d_model=16, n_heads=2, d_vocab=10, n_ctx=8,
    ...     positions="sinusoidal", norm_position="post", act="relu", tied=True, scale_embedding=True)
    >>> model = HookedEncoderDecoder(cfg)
    >>> logits, cache = model.run_with_cache(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]]))
    >>> logits.shape, cache["decoder.0.cross_attn.hook_pattern"].shape
    (torch.Size([1, 2, 10]), torch.Size([1, 2, 2, 3]))
    """

    stops_at_layer = False

    def __init__(self, cfg: EncoderDecoderConfig, *, seed: int = 0, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        if not isinstance(cfg, EncoderDecoderConfig):
            raise ConfigError(f"HookedEncoderDecoder takes an EncoderDecoderConfig, not {type(cfg).__name__}")
        self.cfg: EncoderDecoderConfig = cfg
        self.tokenizer = tokenizer
        self.embed_source = Embedding(cfg)
        self.embed_target = self.embed_source if cfg.tied else Embedding(cfg)
        self.hook_source_embed = HookPoint()
        self.hook_target_embed = HookPoint()
        self.pos_embed_source: PositionEmbedding | None = None
        self.pos_embed_target: PositionEmbedding | None = None
        if cfg.positions in ("learned", "sinusoidal"):
            self.pos_embed_source = PositionEmbedding(cfg)
            self.pos_embed_target = PositionEmbedding(cfg)
            self.hook_source_pos_embed = HookPoint()
            self.hook_target_pos_embed = HookPoint()
        self.encoder = nn.ModuleList(Block(cfg) for _ in range(cfg.n_encoder_layers))
        self.decoder = nn.ModuleList(Block(cfg, cross=True) for _ in range(cfg.n_decoder_layers))
        self.ln_final_encoder = make_final_norm(cfg)
        self.ln_final_decoder = make_final_norm(cfg)
        self.unembed = Unembedding(cfg, self.embed_target)
        self._name_hook_points()
        n_sublayers = 2 * cfg.n_encoder_layers + 3 * cfg.n_decoder_layers
        initialise(self, cfg, n_sublayers, torch.Generator().manual_seed(seed))

    def hook_names(self) -> HookNames:
        return encoder_decoder_hooks(self.cfg)

    # -- the forward pass ----------------------------------------------------------------------------------------

    def forward(
        self,
        source: Ids,
        target: Ids,
        return_type: ReturnType = "logits",
        *,
        source_mask: Bool[Tensor, "batch pos"] | None = None,
        target_mask: Bool[Tensor, "batch target_pos"] | None = None,
        loss_per_token: bool = False,
    ) -> Any:
        """Run both stacks.

        Args:
            source, target: token ids ``[batch, pos]``, a tensor, an array or lists; the same batch, any two lengths.
            return_type: ``logits`` ``[batch, target_pos, d_vocab]``, ``loss`` in nats over the target, ``both``, None.
            source_mask, target_mask: True at real tokens, False at padding, on either side.
            loss_per_token: give the loss as ``[batch, target_pos - 1]``, NaN at padding.

        Raises:
            InputError: ids outside the vocabulary, sequences beyond ``n_ctx``, batches or masks that do not fit.
        """
        if return_type not in ("logits", "loss", "both", None):
            raise InputError(f"return_type is {return_type!r}; expected 'logits', 'loss', 'both' or None")
        target = check_tokens(target, self.cfg, self.device, "target ids")
        real = check_mask(target_mask, target)
        if return_type in ("loss", "both") and not loss_per_token:
            check_loss(target, real)
        memory = self.encode(source, source_mask)
        if memory.states.shape[0] != target.shape[0]:
            raise InputError(f"the source is a batch of {memory.states.shape[0]}, the target one of {target.shape[0]}")
        logits = self.decode(target, memory, real)
        if return_type is None:
            return None
        if return_type == "logits":
            return logits
        loss = next_token_loss(logits, target, real, loss_per_token)
        return loss if return_type == "loss" else (logits, loss)

    def encode(self, source: Ids, source_mask: Bool[Tensor, "batch pos"] | None = None) -> Memory:
        """Run the encoder: one vector per source position, and which of them are real."""
        source = check_tokens(source, self.cfg, self.device, "source ids")
        real = check_mask(source_mask, source)
        step = self._step(source, real, causal=False)
        with self._at(step.positions):
            x = self.hook_source_embed(self.embed_source(source))
            if self.pos_embed_source is not None:
                x = x + self.hook_source_pos_embed(self.pos_embed_source(step.positions).expand_as(x))
            for block in self.encoder:
                x = block(x, step)
            return Memory(self.ln_final_encoder(x), step)

    def decode(
        self, target: Int[Tensor, "batch target_pos"], memory: Memory, real: Bool[Tensor, "batch target_pos"] | None
    ) -> Float[Tensor, "batch target_pos d_vocab"]:
        """Run the decoder against a memory."""
        step = self._step(target, real, causal=True)
        with self._at(step.positions):
            x = self.hook_target_embed(self.embed_target(target))
            if self.pos_embed_target is not None:
                x = x + self.hook_target_pos_embed(self.pos_embed_target(step.positions).expand_as(x))
            for block in self.decoder:
                x = block(x, step, memory=memory)
            return self.unembed(self.ln_final_decoder(x))

    def _step(self, tokens: Tensor, real: Tensor | None, *, causal: bool) -> Step:
        positions = absolute_positions(real, tokens.shape[1], tokens.device)
        if (last := int(positions.max())) >= self.cfg.n_ctx:
            raise InputError(f"the sequence reaches position {last}, but n_ctx is {self.cfg.n_ctx}; shorten it")
        return Step(positions, tokens.shape[1], real, causal)

    @torch.no_grad()
    def generate(
        self,
        source: Ids,
        start: int,
        max_new_tokens: int = 20,
        *,
        source_mask: Bool[Tensor, "batch pos"] | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Int[Tensor, "batch new"]:
        """Sample a target, beginning with the token ``start``; the encoder runs once, hooks stay live."""
        check_sampling(temperature, top_k, top_p, max_new_tokens)
        memory = self.encode(source, source_mask)
        target = torch.full((memory.states.shape[0], 1), start, device=self.device)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        for _ in range(max_new_tokens):
            logits = self.decode(target, memory, None)[:, -1]
            target = torch.cat([target, sample(logits, generator, temperature, top_k, top_p)], dim=1)
        return target

    # -- weights (each block's own are ``model.decoder[l].attn.W_Q`` ... ``model.decoder[l].cross_attn.W_O``) --------

    @property
    def device(self) -> torch.device:
        return self.embed_source.W_E.device

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        """The target's embedding (the source's too, when tied)."""
        return self.embed_target.W_E

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return self.unembed.weight.T

    @property
    def b_U(self) -> Float[Tensor, "d_vocab"]:
        bias = self.unembed.bias
        return read_only(self.embed_target.W_E.new_zeros(self.cfg.d_vocab)) if bias is None else bias
