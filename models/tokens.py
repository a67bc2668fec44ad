"""Checks of token ids and masks, before any forward pass."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.config import StackConfig
from models.errors import InputError


def check_tokens(tokens: Tensor, cfg: StackConfig, device: torch.device) -> Int[Tensor, "batch pos"]:
    """Return ids as ``[batch, pos]`` on ``device``. Raises InputError on another shape, type or range."""
    if tokens.ndim == 1:
        tokens = tokens[None]
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise InputError(f"token ids have shape {tuple(tokens.shape)}; expected [batch, pos], neither of them 0")
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise InputError(f"token ids are {tokens.dtype}; expected integers")
    tokens = tokens.to(device, torch.long)
    if tokens.is_inference() and not torch.is_inference_mode_enabled():
        tokens = tokens.clone()  # made under inference_mode, they could not be part of a graph
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= cfg.d_vocab:
        raise InputError(f"token ids reach from {low} to {high}; this vocabulary is 0 to {cfg.d_vocab - 1}")
    return tokens


def check_mask(mask: Tensor | None, tokens: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch pos"] | None:
    """Return a mask as bool, or None where it hides nothing. Raises InputError where it does not fit."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise InputError(f"attention_mask is a {type(mask).__name__}; expected a tensor [batch, pos]")
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
