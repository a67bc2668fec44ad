"""Token ids and masks as users give them, made into tensors or refused, before any forward pass.

A float or a bool is never an id: PyTorch would round ``3.9`` to 3 and take ``True`` for 1 in silence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.config import StackConfig
from models.errors import InputError


def texts_in(given: Any) -> list[str] | None:
    """Return the texts that a model was given, None where it was given ids. Raises InputError where it is neither."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, (list, tuple)):
        texts = [one for one in given if isinstance(one, str)]
        if len(texts) == len(given):
            return texts
        if texts:
            raise InputError(f"the input mixes texts and ids: {shown(given)}; give one kind")
    elif not isinstance(given, (Tensor, np.ndarray, np.generic, int, range)):
        raise InputError(f"expected token ids or text, got {type(given).__name__}; give ids [batch, pos], or texts")
    return None


def as_ids(given: Any, what: str) -> Int[Tensor, "..."]:
    """Return whole numbers as a tensor of int64.

    Args:
        given: an int, or a list, tuple, range, array or tensor of ints, of any depth.
        what: its name in messages.

    Raises:
        InputError: floats, bools, text, rows of different length, or something else.

    >>> as_ids([[1, 2], [3, 4]], "ids").shape, as_ids(np.int64(3), "ids").item()
    (torch.Size([2, 2]), 3)
    """
    if isinstance(given, Tensor):
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise InputError(f"{what}: got a tensor of {given.dtype}; expected integers")
        return given.long()
    array = _array(given, what)
    if array.size and (array.dtype.kind not in "iu" or _holds_a_bool(given)):
        raise InputError(f"{what} is {shown(given)}; expected integers")
    return torch.from_numpy(array.astype(np.int64))


def _array(given: Any, what: str) -> np.ndarray:
    expected = "expected an int, or a list, array or tensor of ints"
    if not isinstance(given, (int, float, bool, np.generic, np.ndarray, list, tuple, range)):
        raise InputError(f"{what} is {shown(given)}; {expected}")
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):  # rows of different length, tensors of another device
        raise InputError(f"{what} is {shown(given)}; {expected}, with rows of equal length") from None


def _holds_a_bool(given: Any) -> bool:
    """Return whether a bool hides among ints: NumPy makes ``[True, 2]`` whole numbers without a word."""
    if isinstance(given, (list, tuple)):
        return any(_holds_a_bool(one) for one in given)
    return isinstance(given, (bool, np.bool_)) or getattr(given, "dtype", None) in (torch.bool, np.dtype(bool))


def shown(given: Any) -> str:
    """Return a value for a message: itself where it is short, else its type."""
    text = repr(given)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(given).__name__}"


def check_tokens(
    tokens: Any, cfg: StackConfig, device: torch.device, what: str = "token ids"
) -> Int[Tensor, "batch pos"]:
    """Return ids as ``[batch, pos]`` on ``device``. Raises InputError on another shape, type or range."""
    tokens = as_ids(tokens, what)
    if tokens.ndim == 1:
        tokens = tokens[None]
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise InputError(f"{what} have shape {tuple(tokens.shape)}; expected [batch, pos], neither of them 0")
    return _in_vocabulary(tokens, cfg, device, what)


def check_sample(tokens: Any, cfg: StackConfig, device: torch.device, what: str = "tokens") -> Int[Tensor, "token"]:
    """Return some tokens of the vocabulary as ``[token]`` on ``device``. Raises InputError like ``check_tokens``."""
    tokens = as_ids(tokens, what)
    if tokens.ndim != 1 or not len(tokens):
        raise InputError(f"{what} have shape {tuple(tokens.shape)}; expected [token], at least one")
    return _in_vocabulary(tokens, cfg, device, what)


def _in_vocabulary(ids: Int[Tensor, "..."], cfg: StackConfig, device: torch.device, what: str) -> Int[Tensor, "..."]:
    ids = ids.to(device)
    if ids.is_inference() and not torch.is_inference_mode_enabled():
        ids = ids.clone()  # made under inference_mode, they could not be part of a graph
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= cfg.d_vocab:
        raise InputError(f"{what} reach from {low} to {high}; this vocabulary is 0 to {cfg.d_vocab - 1}")
    return ids


def as_mask(mask: Any) -> Tensor:
    """Return a mask given as lists, an array or a tensor as a tensor. Raises InputError on anything else."""
    if isinstance(mask, (Tensor, list, tuple, np.ndarray)):
        try:
            return torch.as_tensor(mask)
        except (TypeError, ValueError, RuntimeError):  # rows of different length, texts
            pass
    raise InputError(
        f"attention_mask is {shown(mask)}; expected True at real tokens and False at padding, [batch, pos]"
    )


def check_mask(mask: Any, tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"] | None:
    """Return a mask as bool, or None where it hides nothing. Raises InputError where it does not fit."""
    if mask is None:
        return None
    mask = as_mask(mask)
    if mask.ndim == 1:
        mask = mask[None]
    if mask.shape != tokens.shape:
        raise InputError(f"attention_mask has shape {tuple(mask.shape)}; the tokens have {tuple(tokens.shape)}")
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise InputError("attention_mask must be bool, or 1 at real tokens and 0 at padding")
    real = mask.to(tokens.device, torch.bool)
    if not real.any(1).all():
        raise InputError("attention_mask hides every token of some row; drop that row")
    return None if real.all() else real


def check_loss(tokens: Int[Tensor, "batch pos"], real: Bool[Tensor, "batch pos"] | None) -> None:
    """Raise InputError where no token has a next token, so that a mean loss would be NaN."""
    if tokens.shape[1] < 2 or (real is not None and not (real[:, :-1] & real[:, 1:]).any()):
        raise InputError("a loss needs a token and its next one; give at least two real tokens side by side")
