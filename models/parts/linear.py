"""Linear maps: ``y = x W^T + b``.

torch hands float32 products on a CPU to a BLAS. Its oneDNN kernel, which ``torch.compile`` would choose, is 1.1 to 2
times faster on large weights (``benchmarks/forward.py`` shows what that makes of a forward pass) but records no graph
and carries no tangent: it is taken where neither is wanted.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models.parts.transforms import in_transform

_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_LARGE = 1 << 18  # of weights; on smaller ones its start costs more than it saves


def linear(
    x: Float[Tensor, "*any inputs"], weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, "outputs"] | None
) -> Float[Tensor, "*any outputs"]:
    """Return ``x W^T + b``, by the faster kernel."""
    recorded = torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    )
    on_cpu = x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    fits = on_cpu and weight.is_contiguous()  # on a slice of columns oneDNN is a thousand times slower
    if _ONEDNN is None or recorded or not fits or weight.numel() < _LARGE or in_transform():
        return F.linear(x, weight, bias)
    product: Tensor = _ONEDNN(x, weight, bias, "none", [], "")
    return product


class Linear(nn.Linear):
    """A linear layer that ``models.parts.initialise`` draws: torch's own draw moves the global random state."""

    def reset_parameters(self) -> None:
        """Leave the memory of the weights allocated and not yet written."""

    def forward(self, x: Float[Tensor, "*any inputs"]) -> Float[Tensor, "*any outputs"]:
        return linear(x, self.weight, self.bias)
