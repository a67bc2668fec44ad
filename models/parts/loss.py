"""The next-token loss: -log p(t_{i+1} | t_1 ... t_i), in nats."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def next_token_loss(
    logits: Float[Tensor, "batch pos d_vocab"],
    tokens: Int[Tensor, "batch pos"],
    real: Bool[Tensor, "batch pos"] | None = None,
    per_token: bool = False,
) -> Float[Tensor, ""] | Float[Tensor, "batch pos-1"]:
    """Return the mean over all real (token, next token) pairs, or each pair's loss, at least in float32.

    Args:
        real: False where a column is padding; a pair counts where both its tokens are real.
        per_token: return ``[batch, pos - 1]``, NaN for pairs that do not count.
    """
    logits = logits[:, :-1].flatten(0, 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none")
    loss = loss.view(tokens.shape[0], -1)
    if real is None:
        return loss if per_token else loss.mean()
    counts = real[:, :-1] & real[:, 1:]
    return loss.masked_fill(~counts, torch.nan) if per_token else loss[counts].mean()
