"""Linear layers whose weights ``models.parts.initialise`` draws; torch's own draw moves the global random state."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """``y = x W^T + b`` with the memory of its weights allocated and not yet written."""

    def reset_parameters(self) -> None:
        """Draw nothing."""
