"""Where a head looks by position alone.

    learned, sinusoidal:  p_q QK p_k, with p the normalised position vectors
    rotary:               s QK(q - k) s, with s one stream that queries and keys share

A previous-token head shows as the diagonal one below the main one. The softmax of the scores is the pattern that the
head would have if streams carried nothing but their position.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from interp.decoders import check_parts
from interp.precision import at_least_float32
from interp.sites import parse_head
from interp.weights.token_circuits import normalised_embeddings, vocabulary_chunks
from models.errors import InputError
from models.parts.step import Step
from models.protocol import ResumableModel


@torch.no_grad()
def positional_qk(
    model: ResumableModel,
    layer: int,
    head: int,
    *,
    n_positions: int = 64,
    stream: Float[Tensor, "d_model"] | None = None,
) -> Float[Tensor, "query_pos key_pos"]:
    """Return the attention scores that positions alone give.

    Args:
        model: a ``HookedDecoder`` with positions.
        layer, head: a query head.
        n_positions: how many positions, at most n_ctx.
        stream: for rotary models, the normalised stream that both sides read, such as the mean of
            ``ln1.hook_normalized`` over a corpus; by default the mean normalised embedding.

    Returns:
        Scores before the softmax; -inf where a query sees no key, above the diagonal and beyond a sliding window.

    Raises:
        InputError: a head out of range, a model without positions, a ``stream`` for a model that adds positions.
    """
    check_parts(model)
    name = parse_head((layer, head), model.cfg)
    n = min(n_positions, model.cfg.n_ctx)
    positions = torch.arange(n, device=model.device)
    if model.blocks[layer].attn.rotary is not None:
        read = (_mean_embedding(model, layer) if stream is None else stream.to(model.device)).expand(n, -1)
    elif "hook_pos_embed" not in model.hook_names():
        raise InputError("this model has no positions, so no scores that come of them")
    elif stream is not None:
        raise InputError("this model's positions are vectors in the stream; leave stream out")
    else:
        read = model.blocks[layer].attention.norm_in.normalised(at_least_float32(model.W_pos[:n]))
    attn, norm, step = model.blocks[layer].attn, model.blocks[layer].attention.norm_in, Step(positions[None], n)
    read = norm.affine(read).to(attn.q.weight.dtype)[None]
    q, k = attn.queries(attn.project(attn.q, read), step), attn.keys(attn.project(attn.k, read), step)
    scores: Tensor = step.mask(attn.window).apply(attn.scores(q, k))
    return scores[0, name.head]


def _mean_embedding(model: ResumableModel, layer: int) -> Float[Tensor, "d_model"]:
    sums = [normalised_embeddings(model, layer, tokens).sum(0) for tokens in vocabulary_chunks(model)]
    return torch.stack(sums).sum(0) / model.cfg.d_vocab
