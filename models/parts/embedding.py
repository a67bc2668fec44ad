"""Tokens to vectors and back.

x_i = W_E[t_i]  (times sqrt(d_model) where the config says so)          logits = x W_U + b_U
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from models.config import EmbeddingConfig, UnembeddingConfig
from models.parts.linear import linear


class Embedding(nn.Module):
    """The table of token vectors."""

    def __init__(self, cfg: EmbeddingConfig) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(cfg.d_vocab, cfg.d_model))
        self.multiplier = cfg.d_model**0.5 if cfg.scale_embedding else 1.0

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        vectors = F.embedding(tokens, self.W_E)
        return vectors if self.multiplier == 1.0 else vectors * self.multiplier


class Unembedding(nn.Module):
    """The map to logits; with ``tied`` its matrix is the embedding's own parameter."""

    def __init__(self, cfg: UnembeddingConfig, embedding: Embedding) -> None:
        super().__init__()
        self.weight = embedding.W_E if cfg.tied else nn.Parameter(torch.empty(cfg.d_vocab, cfg.d_model))
        self.bias = nn.Parameter(torch.zeros(cfg.d_vocab)) if cfg.unembed_bias else None

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_vocab"]:
        return linear(x, self.weight, self.bias)

    def of_tokens(
        self, x: Float[Tensor, "cell batch read d_model"], vocabulary: Int[Tensor, "batch token"]
    ) -> Float[Tensor, "cell batch read token"]:
        """Return the logits of some tokens alone, for each example its own."""
        logits = torch.einsum("nbrd,btd->nbrt", x, self.weight[vocabulary])
        return logits if self.bias is None else logits + self.bias[vocabulary][:, None]
