"""Is a function transform in play? Fast kernels that know none of them ask here."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def in_transform() -> bool:
    """Return whether ``torch.func`` (``grad``, ``jvp``, ``vmap``, ...) or forward-mode differentiation is in play.

    >>> in_transform()
    False
    >>> torch.func.vmap(lambda x: x * in_transform())(torch.ones(2))
    tensor([1., 1.])
    """
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None
