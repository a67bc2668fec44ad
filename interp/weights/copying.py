"""Does a head copy: does attending to a token raise that token's own logit?

Elhage et al. 2021:  sum(lambda) / sum(|lambda|) over the eigenvalues of W_E OV W_U, in [-1, 1]; 1 is copying. That
matrix is d_vocab x d_vocab, its eigenvalues those of a d_head x d_head one. W_U is taken without its mean over the
vocabulary, of which no softmax knows. Random weights give 0 +- .10 at (d_model
64, d_head 16) and 0 +- .025 at (768, 64).

Olsson et al. 2022:  25 random tokens; what the head writes when it attends to one (not its bias, which it writes
whatever it attends to, and which might as well be the sublayer's), through the unembedding to those 25, mean-centred,
ReLU; the share of that raise which goes to the attended token, from [0, 1] to [-1, 1].

A real induction head can score low on the second.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.decoders import check_parts
from interp.precision import at_least_float32
from interp.weights.factored import FactoredMatrix
from interp.weights.head_circuits import carried, ov_circuit, stacked_ov
from interp.weights.token_circuits import final_directions, normalised_embeddings, vocabulary_chunks
from models.errors import InputError
from models.protocol import ResumableModel


@torch.no_grad()
def eigenvalue_copying_scores(model: ResumableModel) -> Float[Tensor, "layer head"]:
    """Return sum(lambda) / sum(|lambda|) of W_E OV W_U for every head, in [-1, 1].

    The norms' gains and centring are folded in; embeddings are taken as they are. Peak memory: all heads' factors,
    d_model x d_model, and 4096 rows of the vocabulary.
    """
    ov = stacked_ov(model)
    n_layers, d_model = len(model.blocks), model.cfg.d_model
    ov = FactoredMatrix(ov.A, torch.stack([carried(model, B, layer, n_layers) for layer, B in enumerate(ov.B)]))
    logits_to_stream = ov.B.new_zeros(d_model, d_model)  # W_U W_E
    direction, embedding = ov.B.new_zeros(2, d_model)
    for tokens in vocabulary_chunks(model):
        directions, embeddings = final_directions(model, tokens), at_least_float32(model.W_E[tokens])
        logits_to_stream += directions.T @ embeddings
        direction, embedding = direction + directions.sum(0), embedding + embeddings.sum(0)
    logits_to_stream -= torch.outer(direction, embedding) / model.cfg.d_vocab
    eigenvalues = (ov @ logits_to_stream).eigenvalues()
    return eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)


@torch.no_grad()
def output_copying_scores(model: ResumableModel, *, n_tokens: int = 25, seed: int = 0) -> Float[Tensor, "layer head"]:
    """Return the share of each head's raise that goes to the attended token, rescaled to [-1, 1].

    A head that raises tokens at random gives about 2 / n_tokens - 1.

    Args:
        n_tokens: distinct random tokens.
        seed: of their draw.

    Raises:
        InputError: more tokens than the vocabulary has, or fewer than two.
    """
    check_parts(model)
    if not 2 <= n_tokens <= model.cfg.d_vocab:
        raise InputError(f"n_tokens is {n_tokens}; expected 2 to {model.cfg.d_vocab}, the size of this vocabulary")
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(model.cfg.d_vocab, generator=generator)[:n_tokens].to(model.device)
    directions = final_directions(model, tokens)
    scores = []
    for layer in range(len(model.blocks)):
        vectors = normalised_embeddings(model, layer, tokens)
        for head in range(model.cfg.n_heads):
            written = ov_circuit(model, layer, head).matrix.apply(vectors)
            logits = carried(model, written, layer, len(model.blocks)) @ directions.T
            raised = (logits - logits.mean(-1, keepdim=True)).relu()
            share = raised.diagonal() / raised.sum(-1).clamp(min=torch.finfo(raised.dtype).tiny)
            scores.append(2 * share.mean() - 1)
    return torch.stack(scores).unflatten(0, (-1, model.cfg.n_heads))
