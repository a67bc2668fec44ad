"""Prompts as users give them, made into ids of one shape and their mask; pairs that do not align are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from interp.checks import as_ids
from interp.decoders import is_resumable
from interp.prompts.pairs import describe_misalignment
from models.errors import InputError
from models.protocol import HookedModel
from models.tokens import as_mask, texts_in

Prompts = Int[Tensor, "batch pos"] | np.ndarray | str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]


def aligned(
    model: HookedModel, clean: Any, corrupted: Any, attention_mask: Tensor | None
) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """Return both prompts as ids of one shape, and their mask.

    Raises InputError where they do not align: both tokenisations are shown and the first difference is marked.
    """
    clean, corrupted = (_ids_or_text(side, what) for side, what in ((clean, "clean"), (corrupted, "corrupted")))
    if attention_mask is not None:
        attention_mask = as_mask(attention_mask)
    if not (isinstance(clean, Tensor) and isinstance(corrupted, Tensor)):
        if attention_mask is not None:
            raise InputError("attention_mask goes with token ids; texts make their own")
        rows = [_rows(model, side) for side in (clean, corrupted)]
        _check_pairs(model, *rows)
        clean, corrupted = (pad_sequence(side, batch_first=True) for side in rows)
        columns = torch.arange(clean.shape[1], device=clean.device)
        attention_mask = columns < torch.tensor([len(row) for row in rows[0]], device=clean.device)[:, None]
    pair = (_batched(clean), _batched(corrupted))
    if pair[0].shape != pair[1].shape:
        _check_pairs(model, *(list(side) for side in pair))
    if is_resumable(model):
        (first, real), (second, _) = (model.prepare(side, attention_mask) for side in pair)
        return (first, second), real
    hides = attention_mask is not None and not bool(attention_mask.all())
    return pair, attention_mask.bool() if attention_mask is not None and hides else None


def _ids_or_text(side: Any, what: str) -> Tensor | list[str]:
    """Return ids as a tensor, texts as a list."""
    texts = texts_in(side)
    if texts is not None:
        if not texts:
            raise InputError("no prompts were given; give ids [batch, pos], a text or texts")
        return texts
    ids = as_ids(side, f"the {what} prompts")
    if ids.ndim not in (1, 2):
        raise InputError(f"the {what} prompts have shape {tuple(ids.shape)}; expected ids [batch, pos]")
    return ids


def _batched(ids: Tensor) -> Int[Tensor, "batch pos"]:
    return ids[None] if ids.ndim == 1 else ids


def _rows(model: HookedModel, side: Tensor | Sequence[str]) -> list[Int[Tensor, "pos"]]:
    if isinstance(side, Tensor):
        return list(_batched(side))
    return [model.to_tokens(text)[0] for text in side]


def _check_pairs(model: HookedModel, clean: Sequence[Tensor], corrupted: Sequence[Tensor]) -> None:
    """Raise InputError at the first pair whose lengths differ."""
    if len(clean) != len(corrupted) or not clean:
        raise InputError(f"{len(clean)} clean prompts and {len(corrupted)} corrupted ones; they go in pairs")
    for number, pair in enumerate(zip(clean, corrupted, strict=True)):
        if len(pair[0]) != len(pair[1]):
            which = f" of pair {number}" if len(clean) > 1 else ""
            raise InputError(describe_misalignment(model, *pair, which))
