"""A small text that comes with the toolkit, for what random tokens do not show.

Chapter I of Lewis Carroll, *Alice's Adventures in Wonderland* (1865, public domain), from the Canterbury corpus
(``alice29.txt``, Project Gutenberg's Millennium Fulcrum edition 2.9): 11,216 characters, 2,141 words. Lines are joined
into paragraphs, rows of stars left out, and opening quotation marks made straight.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from interp.prompts.random_tokens import bos_of
from models.errors import InputError
from models.protocol import HookedModel

_SAMPLE = 500  # characters that a vocabulary must give back


@cache
def alice() -> str:
    """Return the text.

    >>> alice()[:35], len(alice()), len(alice().split())
    ('Alice was beginning to get very tir', 11216, 2141)
    """
    return (Path(__file__).parent / "alice.txt").read_text(encoding="ascii")


def text_sequences(model: HookedModel, n_sequences: int, width: int) -> Int[Tensor, "batch pos"]:
    """Return stretches of the text, evenly spread over it, after BOS where the tokenizer has one.

    Args:
        model: gives the tokenizer and BOS.
        n_sequences: how many.
        width: tokens in each, BOS included; less where the context is shorter.

    Raises:
        InputError: the model has no tokenizer, its vocabulary does not have this text, or the text is too short.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so that it can read no text")
    try:
        sample = tokenizer.decode(tokenizer.encode(alice()[:_SAMPLE]))
    except InputError as error:
        raise InputError(f"its vocabulary does not have the text: {error}") from None
    if _letters(sample) != _letters(alice()[:_SAMPLE]):
        raise InputError(f"its vocabulary does not have the text: of it comes back {sample[:40]!r}")
    bos = bos_of(model)
    lead = [] if bos is None else [bos]
    width = min(width, model.cfg.n_ctx)
    ids, n_own = tokenizer.encode(alice()), width - len(lead)
    if n_sequences * n_own > len(ids):
        raise InputError(f"{n_sequences} sequences of {n_own} tokens, but the text has {len(ids)}; ask for fewer")
    step = len(ids) // n_sequences
    rows = [[*lead, *ids[i * step : i * step + n_own]] for i in range(n_sequences)]
    return torch.tensor(rows, dtype=torch.long, device=model.device)


def _letters(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())
