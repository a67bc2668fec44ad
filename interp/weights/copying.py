"""Does a head copy: does attending to a token raise that token's own logit?

Elhage et al. 2021:  sum(lambda) / sum(|lambda|) over the eigenvalues of W_E W_OV W_U, in [-1, 1]; 1 copies. That
matrix is d_vocab x d_vocab, its eigenvalues those of a d_head x d_head one. Random weights give 0 +- .10 at (d_model
64, d_head 16) and 0 +- .025 at (768, 64).

Olsson et al. 2022:  25 random tokens; what the head writes when it attends to one, through the unembedding,
mean-centred, ReLU; the share of that raise which goes to the attended token, from [0, 1] to [-1, 1].
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.weights.factored import FactoredMatrix, at_least_float32
from interp.weights.head_circuits import final_directions, normalised_embeddings, ov_circuit, stacked_ov
from models.errors import InputError
from models.protocol import ResumableModel

_CHUNK = 4096  # tokens at a time: d_vocab x d_model is never copied whole


def eigenvalue_copying_scores(model: ResumableModel) -> Float[Tensor, "layer head"]:
    """Return sum(lambda) / sum(|lambda|) of W_E OV W_U for every head.

    The final norm's gain is folded into W_U; embeddings are taken as they are. Peak memory: d_model x d_model, and
    4096 rows of the vocabulary.
    """
    vocabulary = torch.arange(model.cfg.d_vocab, device=model.device)
    d_model = model.cfg.d_model
    from_logits_to_stream = torch.zeros(d_model, d_model, device=model.device)
    for tokens in vocabulary.split(_CHUNK):
        from_logits_to_stream += final_directions(model, tokens).T @ at_least_float32(model.W_E[tokens])
    ov = stacked_ov(model)
    eigenvalues = FactoredMatrix(ov.A, ov.B @ from_logits_to_stream).eigenvalues()
    return eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)


def output_copying_scores(model: ResumableModel, *, n_tokens: int = 25, seed: int = 0) -> Float[Tensor, "layer head"]:
    """Return the share of each head's raise that goes to the attended token, rescaled to [-1, 1].

    A random head gives about 2 / n_tokens - 1. Raises InputError where the vocabulary has fewer tokens.
    """
    if n_tokens > model.cfg.d_vocab:
        raise InputError(f"{n_tokens} distinct tokens are wanted; this vocabulary has {model.cfg.d_vocab}")
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(model.cfg.d_vocab, generator=generator)[:n_tokens].to(model.device)
    directions = final_directions(model, tokens)
    scores = torch.empty(len(model.blocks), model.cfg.n_heads)
    for layer in range(len(model.blocks)):
        vectors = normalised_embeddings(model, layer, tokens)
        for head in range(model.cfg.n_heads):
            logits = ov_circuit(model, layer, head).write(vectors) @ directions.T
            raised = (logits - logits.mean(-1, keepdim=True)).relu()
            share = raised.diagonal() / raised.sum(-1).clamp(min=1e-12)
            scores[layer, head] = 2 * share.mean() - 1
    return scores
