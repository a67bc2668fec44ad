"""Embedding and unembedding: the vocabulary, and the way in and out."""

from __future__ import annotations

from dataclasses import dataclass

from models.config.part import PartConfig


@dataclass(frozen=True, kw_only=True)
class EmbeddingConfig(PartConfig):
    """The options of the embedding.

    Args:
        d_vocab: number of tokens.
        scale_embedding: multiply embeddings by sqrt(d_model) (2017).
        tied: the unembedding is the transposed embedding.
    """

    d_vocab: int
    scale_embedding: bool = False
    tied: bool = False


@dataclass(frozen=True, kw_only=True)
class UnembeddingConfig(EmbeddingConfig):
    """The options of the unembedding.

    Args:
        unembed_bias: whether the logits have a bias.
    """

    unembed_bias: bool = False
