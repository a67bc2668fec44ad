"""Sequences to run a model on.

Random tokens make attention readable: nothing in them is predictable except what is repeated.

    repeated:  [BOS] t_1 ... t_N t_1 ... t_N
    control:   [BOS] t_1 ... t_N u_1 ... u_N          all t and u distinct
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from models.errors import InputError
from models.protocol import HookedModel

DEFAULT_LENGTH = 50
MIN_LENGTH = 5
_BIG_VOCABULARY = 1000


@dataclass(frozen=True)
class RepeatedTokens:
    """Sequences with a repeated half, and for each a control in which nothing repeats.

    Attributes:
        repeated: ids ``[batch, pos]``, pos = n_prepended + 2 * length.
        control: the same first half, then fresh tokens.
        length: N, distinct tokens per half.
        n_prepended: 1 where a BOS leads, else 0.
    """

    repeated: Int[Tensor, "batch pos"]
    control: Int[Tensor, "batch pos"]
    length: int
    n_prepended: int

    @property
    def second_half(self) -> slice:
        """The columns of the second half."""
        return slice(self.n_prepended + self.length, None)


def ordinary_ids(model: HookedModel) -> Int[np.ndarray, "n"]:
    """Return the ids to draw from: all but BOS; of a big vocabulary the middle, without the special tokens at its ends.

    Vocabularies keep control tokens and single bytes at the beginning and added or unused tokens at the end, so from
    1000 ids on the first 100 and the last 2 % are left out.
    """
    n = model.cfg.d_vocab
    ids = np.arange(100, int(0.98 * n)) if n >= _BIG_VOCABULARY else np.arange(n)
    return ids[ids != bos_of(model)]


def repeated_tokens(model: HookedModel, n_sequences: int, length: int | None = None, seed: int = 0) -> RepeatedTokens:
    """Draw sequences of ``length`` distinct random tokens given twice, after BOS where the tokenizer has one.

    Args:
        model: gives vocabulary, context and BOS.
        n_sequences: how many.
        length: N; by default 50, or two fifths of a context too short for that, or what the vocabulary allows.
        seed: of the draw; the global random state is left alone.

    Raises:
        InputError: the vocabulary has fewer than 2 N ordinary tokens, the context is shorter than the sequence, or N
            is below 5, where even uniform attention would score like a head.
    """
    ids, bos, n_ctx = ordinary_ids(model), bos_of(model), model.cfg.n_ctx
    n_prepended = 0 if bos is None else 1
    if n_sequences < 1:
        raise InputError(f"n_sequences is {n_sequences}; expected at least 1")
    if length is None:
        fits = n_prepended + 2 * DEFAULT_LENGTH <= n_ctx
        length = min(DEFAULT_LENGTH if fits else 2 * n_ctx // 5, len(ids) // 2)
    if 2 * length > len(ids):
        raise InputError(
            f"{length} distinct tokens and {length} others for the control need {2 * length} ordinary tokens; this "
            f"vocabulary has {len(ids)} of {model.cfg.d_vocab}: use length {len(ids) // 2} or less"
        )
    if n_prepended + 2 * length > n_ctx:
        raise InputError(
            f"length {length} makes sequences of {n_prepended + 2 * length} tokens, but n_ctx is {n_ctx}: "
            f"use length {(n_ctx - n_prepended) // 2} or less"
        )
    if length < MIN_LENGTH:
        raise InputError(
            f"length {length} is too short: expected at least {MIN_LENGTH}, because on fewer tokens uniform attention "
            f"scores like a head. Vocabulary {model.cfg.d_vocab} and n_ctx {n_ctx} allow up to "
            f"{min(len(ids), n_ctx - n_prepended) // 2}"
        )
    rng = np.random.default_rng(seed)
    drawn = np.stack([rng.choice(ids, 2 * length, replace=False) for _ in range(n_sequences)])
    control = torch.from_numpy(drawn).long()
    repeated = torch.cat([control[:, :length]] * 2, dim=1)
    if bos is not None:
        lead = torch.full((n_sequences, 1), bos)
        control, repeated = torch.cat([lead, control], dim=1), torch.cat([lead, repeated], dim=1)
    return RepeatedTokens(repeated.to(model.device), control.to(model.device), length, n_prepended)


def bos_of(model: HookedModel) -> int | None:
    """Return the id that may lead a sequence, or None."""
    return None if model.tokenizer is None else model.tokenizer.bos_token_id
