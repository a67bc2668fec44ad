"""Repeated random tokens, of which one side is changed: what followed this token last time?

    clean              [BOS] a b c d e f g h   a b c d   -> e
    corrupted, answer  [BOS] a b c d x f g h   a b c d   -> x       what is copied is another
    corrupted, cue     [BOS] a b c g e f d h   a b c d   -> h       it is copied from elsewhere: d and g changed places

A model that copies gives the other answer. ``answer`` is about what a head writes (values), ``cue`` about where it
looks (keys, made by previous-token heads). No text is needed: this works on toys, and without a tokenizer.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch

from interp.checks import whole_number
from interp.prompts.pairs import PromptBatch
from interp.prompts.random_tokens import bos_of, ordinary_ids
from models.errors import InputError
from models.protocol import HookedModel

DEFAULT_LENGTH = 10
Corruption = Literal["answer", "cue"]


def repeated_token_prompts(
    model: HookedModel,
    n: int = 8,
    *,
    corruption: Corruption = "answer",
    length: int = DEFAULT_LENGTH,
    seed: int = 0,
) -> PromptBatch:
    """Draw pairs of ``length`` distinct random tokens, of which the first half comes again.

    Args:
        model: gives vocabulary, context and BOS.
        n: how many pairs.
        corruption: ``answer`` or ``cue``.
        length: N, at least 6.
        seed: of the draw.

    Returns:
        Pairs with the positions ``before`` (the first occurrence of the last token), ``copied`` (the answer, one
        after it), ``end``, and for ``cue`` ``other`` (the corrupted run's answer).

    Raises:
        InputError: the vocabulary or the context is too small.
    """
    ids, bos = ordinary_ids(model), bos_of(model)
    lead = [] if bos is None else [bos]
    if corruption not in get_args(Corruption):
        raise InputError(f"corruption is {corruption!r}; expected 'answer' or 'cue'")
    n, length, seed = whole_number(n, "n", 1), whole_number(length, "length", 6), whole_number(seed, "seed")
    again = length // 2
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
    first, fresh = torch.from_numpy(drawn[:, :-1]).long(), torch.from_numpy(drawn[:, -1]).long()
    front = torch.tensor(lead, dtype=torch.long).expand(n, -1)
    clean = torch.cat([front, first, first[:, :again]], dim=1)
    corrupted = clean.clone()
    copied = len(lead) + again
    columns = {"before": copied - 1, "copied": copied, "end": clean.shape[1] - 1}
    if corruption == "answer":
        corrupted[:, copied] = wrong = fresh
    else:
        columns["other"] = other = len(lead) + length - 1
        corrupted[:, [copied - 1, other - 1]] = clean[:, [other - 1, copied - 1]]
        wrong = clean[:, other]
    device = model.device
    return PromptBatch(
        clean.to(device),
        corrupted.to(device),
        clean[:, copied].to(device),
        wrong.to(device),
        {label: torch.full((n,), column, device=device) for label, column in columns.items()},
        about=f"repeated random tokens, the {corruption} exchanged",
    )
