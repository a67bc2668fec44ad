"""What becomes of a write on its way to a reader, as one matrix written out."""

from __future__ import annotations

import torch
from torch import Tensor

from models import HookedDecoder


def path(model: HookedDecoder, layer: int, to: int) -> Tensor:
    """Return the map from what attention of ``layer`` writes to what of it layer ``to`` can read, up to a factor.

    Pre-norm there is one norm that reads, post-norm there are those that stand behind every sublayer on the way.
    """
    d, dtype = model.cfg.d_model, model.W_E.dtype
    centring = torch.eye(d, dtype=dtype) - (1 / d if model.cfg.norm == "layer" else 0)
    if model.cfg.norm == "none" or model.cfg.norm_position == "pre":
        return centring
    matrix = torch.eye(d, dtype=dtype)
    for block in list(model.blocks)[layer:to]:
        for norm in (block.ln1,) if model.cfg.attn_only else (block.ln1, block.ln2):
            matrix = matrix @ centring @ torch.diag(norm.w.detach())
    return matrix
