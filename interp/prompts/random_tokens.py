"""Sequences to run a model on.

Random tokens make attention readable: nothing in them is predictable except what is repeated.

    repeated:  [BOS] t_1 ... t_N t_1 ... t_N
    control:   [BOS] t_1 ... t_N u_1 ... u_N          all t and u distinct

Given the same N everywhere, "look N - 1 back" and "copy what followed" are one and the same. So N can be mixed, and
where the first copy begins as well; every sequence is as long as the others:

    mixed:     [BOS] u_1 ... u_R t_1 ... t_N t_1 ... t_N v_1 v_2 ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.errors import InputError
from models.protocol import HookedModel

DEFAULT_LENGTH = 50
MIXED_LENGTH = 40
MIN_LENGTH = 5
_BIG_VOCABULARY = 1000


@dataclass(frozen=True)
class RepeatedTokens:
    """Sequences in which a block comes twice, and for each a control in which nothing repeats.

    Attributes:
        repeated: ids ``[batch, pos]``.
        control: the same but for the second copy, in whose place are fresh tokens.
        lengths: N of each sequence, the longest first.
        starts: the column at which the second copy begins, of each sequence.
        n_prepended: 1 where a BOS leads, else 0.
    """

    repeated: Int[Tensor, "batch pos"]
    control: Int[Tensor, "batch pos"]
    lengths: tuple[int, ...]
    starts: tuple[int, ...]
    n_prepended: int

    @property
    def length(self) -> int:
        """The longest N, which is every N where they are not mixed."""
        return self.lengths[0]

    @property
    def again(self) -> Bool[Tensor, "batch pos"]:
        """The columns of the second copy."""
        column = torch.arange(self.repeated.shape[1], device=self.repeated.device)
        start = torch.tensor(self.starts, device=column.device)[:, None]
        return (column >= start) & (column < start + torch.tensor(self.lengths, device=column.device)[:, None])

    def some(self, rows: slice) -> RepeatedTokens:
        """Return some of the sequences."""
        return RepeatedTokens(
            self.repeated[rows], self.control[rows], self.lengths[rows], self.starts[rows], self.n_prepended
        )


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
        raise _too_short(length, model.cfg.d_vocab, n_ctx, min(len(ids), n_ctx - n_prepended) // 2)
    return _drawn(model, [length] * n_sequences, [0] * n_sequences, n_prepended + 2 * length, seed)


def mixed_repeats(
    model: HookedModel, n_sequences: int, longest: int | None = None, *, at_end: bool = False, seed: int = 0
) -> RepeatedTokens:
    """Draw sequences of one width whose blocks differ in length and in place; all else in them is distinct.

    Lengths go down evenly from ``longest`` to half of it, at least 5. The first sequence, with the longest block,
    begins with it; the others' places are spread evenly over what they leave.

    Args:
        model: gives vocabulary, context and BOS.
        n_sequences: how many.
        longest: N of the first sequence, at least 5; by default 40, or two fifths of a context or vocabulary too small
            for that. Sequences are five halves of it wide.
        at_end: let every second copy end in the last column; sequences are then twice the longest block wide.
        seed: of the tokens.

    Raises:
        InputError: the vocabulary or the context is too small for blocks of 5.
    """
    n_prepended = 0 if bos_of(model) is None else 1
    room = min(model.cfg.n_ctx - n_prepended, len(ordinary_ids(model)))
    fits = max(2 * room // 5, min(MIN_LENGTH, room // 2))
    longest = min(MIXED_LENGTH if longest is None else longest, fits)
    if longest < MIN_LENGTH:
        raise _too_short(longest, model.cfg.d_vocab, model.cfg.n_ctx, room // 2)
    width = min(room, 2 * longest if at_end else 5 * longest // 2 + 1)
    shortest = max(MIN_LENGTH, longest // 2)
    lengths = np.linspace(longest, shortest, n_sequences).round().astype(int).tolist()
    before = [(1.0 if at_end else _spread(i)) * (width - 2 * length) for i, length in enumerate(lengths)]
    return _drawn(model, lengths, [round(n) for n in before], n_prepended + width, seed)


def _spread(i: int) -> float:
    """Return the i-th number of van der Corput's sequence 0, 1/2, 1/4, 3/4, 1/8, ..., even however far one goes."""
    return sum((i >> bit & 1) / 2 ** (bit + 1) for bit in range(i.bit_length()))


def _drawn(model: HookedModel, lengths: Sequence[int], before: Sequence[int], width: int, seed: int) -> RepeatedTokens:
    """Draw blocks of ``lengths`` with ``before`` fresh tokens before each, in sequences of ``width``."""
    ids, bos = ordinary_ids(model), bos_of(model)
    lead = [] if bos is None else [bos]
    rng = np.random.default_rng(seed)
    n_fresh = width - len(lead)
    control = torch.tensor(np.stack([[*lead, *rng.choice(ids, n_fresh, replace=False)] for _ in lengths])).long()
    repeated = control.clone()
    starts = [len(lead) + r + n for r, n in zip(before, lengths, strict=True)]
    for row, start, n in zip(repeated, starts, lengths, strict=True):
        row[start : start + n] = row[start - n : start].clone()
    return RepeatedTokens(repeated.to(model.device), control.to(model.device), tuple(lengths), tuple(starts), len(lead))


def _too_short(length: int, d_vocab: int, n_ctx: int, most: int) -> InputError:
    return InputError(
        f"length {length} is too short: expected at least {MIN_LENGTH}, because on fewer tokens uniform attention "
        f"scores like a head. Vocabulary {d_vocab} and n_ctx {n_ctx} allow up to {most}"
    )


def bos_of(model: HookedModel) -> int | None:
    """Return the id that may lead a sequence, or None."""
    return None if model.tokenizer is None else model.tokenizer.bos_token_id
