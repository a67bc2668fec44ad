"""A head's OV circuit as a few directions: what it reads and what it writes, as tokens.

    OV = sum_i s_i u_i v_i^T,     s_1 >= s_2 >= ...

Reading along u_i writes s_i v_i: of what the head writes, that which can be read, without the mean where norms take it.
The sign of a pair (u_i, v_i) is arbitrary, but shared: tokens at the negative ends belong together as those at the
positive ends do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from interp.precision import at_least_float32
from interp.weights.factored import FactoredMatrix
from interp.weights.head_circuits import carried, ov_circuit
from interp.weights.token_circuits import final_directions, top_texts, vocabulary_chunks
from models.errors import InputError
from models.protocol import ResumableModel

Texts = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class SingularDirection:
    """One singular direction of an OV circuit.

    Attributes:
        value: the singular value.
        reads, reads_against: the tokens whose embeddings lie most along what is read, and against it, with dot
            products.
        writes, writes_against: the tokens whose logits rise, and fall, most with what is written for these.
    """

    value: float
    reads: Texts
    writes: Texts
    reads_against: Texts
    writes_against: Texts


@torch.no_grad()
def singular_directions(
    model: ResumableModel, layer: int, head: int, *, n_directions: int = 5, n_tokens: int = 8
) -> tuple[SingularDirection, ...]:
    """Return the strongest directions of a head's OV circuit as tokens, strongest first.

    Peak memory: d_vocab x n_directions twice, and 4096 rows of the vocabulary.

    Raises:
        InputError: a head out of range, or no directions or tokens asked for.
    """
    if n_directions < 1 or n_tokens < 1:
        raise InputError(f"got n_directions {n_directions} and n_tokens {n_tokens}; expected 1 or more of each")
    ov = ov_circuit(model, layer, head).matrix
    u, s, v = FactoredMatrix(ov.A, carried(model, ov.B, layer, len(model.blocks))).svd()
    u, s, v = u[:, :n_directions], s[:n_directions], v[:, :n_directions]
    chunks = list(vocabulary_chunks(model))
    reads = torch.cat([at_least_float32(model.W_E[tokens]) @ u for tokens in chunks])
    writes = torch.cat([final_directions(model, tokens) @ v for tokens in chunks])
    return tuple(
        SingularDirection(
            value=float(s[i]),
            reads=top_texts(model, reads[:, i], n_tokens),
            writes=top_texts(model, writes[:, i], n_tokens),
            reads_against=top_texts(model, reads[:, i], n_tokens, largest=False),
            writes_against=top_texts(model, writes[:, i], n_tokens, largest=False),
        )
        for i in range(len(s))
    )
