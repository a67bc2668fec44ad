"""A head's OV circuit as a few directions: what it reads and what it writes, as tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from interp.weights.factored import at_least_float32
from interp.weights.head_circuits import final_directions, ov_circuit
from models.protocol import ResumableModel

_CHUNK = 4096


@dataclass(frozen=True)
class SingularDirection:
    """One singular direction of an OV circuit.

    Attributes:
        value: the singular value; signs of both sides are chosen together.
        reads: the tokens whose embeddings lie along what is read, with dot products.
        writes: the tokens whose logits rise with what is written, with dot products.
    """

    value: float
    reads: tuple[tuple[str, float], ...]
    writes: tuple[tuple[str, float], ...]


def singular_directions(
    model: ResumableModel, layer: int, head: int, *, n_directions: int = 5, n_tokens: int = 8
) -> tuple[SingularDirection, ...]:
    """Return the strongest directions of a head's OV circuit as tokens.

    Peak memory: d_vocab x n_directions, and 4096 rows of the vocabulary.
    """
    u, s, v = ov_circuit(model, layer, head).matrix.svd()
    n = min(n_directions, len(s))
    vocabulary = torch.arange(model.cfg.d_vocab, device=model.device).split(_CHUNK)
    reads = torch.cat([at_least_float32(model.W_E[tokens]) @ u[:, :n] for tokens in vocabulary])
    writes = torch.cat([final_directions(model, tokens) @ v[:, :n] for tokens in vocabulary])

    def texts(scores: torch.Tensor) -> tuple[tuple[str, float], ...]:
        best = scores.topk(min(n_tokens, len(scores)))
        names = model.to_str_tokens(best.indices.tolist())
        return tuple((name, float(score)) for name, score in zip(names, best.values, strict=True))

    return tuple(SingularDirection(float(s[i]), texts(reads[:, i]), texts(writes[:, i])) for i in range(n))
