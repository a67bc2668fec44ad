"""Repeated random tokens with one token exchanged: what followed this token last time?

    clean       [BOS] a b c d e f   a b c   -> d
    corrupted   [BOS] a b c x e f   a b c   -> x

The pair differs where the answer stands, so a model that copies it gives the other answer. No text is needed: this
works on toys, and on models without a tokenizer.
"""

from __future__ import annotations

import numpy as np
import torch

from interp.prompts.pairs import PromptBatch
from interp.prompts.random_tokens import bos_of, ordinary_ids
from models.errors import InputError
from models.protocol import HookedModel

DEFAULT_LENGTH = 10


def repeated_token_prompts(
    model: HookedModel, n: int = 8, *, length: int = DEFAULT_LENGTH, seed: int = 0
) -> PromptBatch:
    """Draw pairs of ``length`` distinct random tokens, of which the first half comes again.

    Args:
        model: gives vocabulary, context and BOS.
        n: how many pairs.
        length: N, at least 4.
        seed: of the draw.

    Returns:
        Pairs with the positions ``before`` (the first occurrence of the last token), ``copied`` (the answer, one
        after it) and ``end``.

    Raises:
        InputError: the vocabulary or the context is too small.
    """
    ids, bos = ordinary_ids(model), bos_of(model)
    lead = [] if bos is None else [bos]
    again = length // 2
    if n < 1 or length < 4:
        raise InputError(f"n is {n} and length {length}; expected at least 1 pair and 4 tokens")
    if length + 1 > len(ids):
        raise InputError(
            f"{length} distinct tokens and one to exchange need {length + 1} ordinary tokens; this vocabulary has "
            f"{len(ids)} of {model.cfg.d_vocab}: use length {len(ids) - 1} or less"
        )
    if len(lead) + length + again > model.cfg.n_ctx:
        raise InputError(
            f"length {length} makes prompts of {len(lead) + length + again} tokens, but n_ctx is {model.cfg.n_ctx}: "
            f"use length {2 * (model.cfg.n_ctx - len(lead)) // 3} or less"
        )
    rng = np.random.default_rng(seed)
    drawn = np.stack([rng.choice(ids, length + 1, replace=False) for _ in range(n)])
    first, exchanged = torch.from_numpy(drawn[:, :-1]).long(), torch.from_numpy(drawn[:, -1]).long()
    front = torch.tensor(lead, dtype=torch.long).expand(n, -1)
    clean = torch.cat([front, first, first[:, :again]], dim=1)
    copied = len(lead) + again
    corrupted = clean.clone()
    corrupted[:, copied] = exchanged
    columns = {"before": copied - 1, "copied": copied, "end": clean.shape[1] - 1}
    device = model.device
    return PromptBatch(
        clean.to(device),
        corrupted.to(device),
        first[:, again].to(device),
        exchanged.to(device),
        {label: torch.full((n,), column, device=device) for label, column in columns.items()},
        about="repeated random tokens, the copied one exchanged",
    )
