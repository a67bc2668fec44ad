"""PathPatchingResult: the metric of every (sender, receiver) path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interp.interventions.metric_result import MetricResult
from models.errors import InputError, nearest


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PathPatchingResult(MetricResult):
    """What path patching found; ``values [sender, receiver, batch]``.

    Attributes:
        senders: ``L5H1`` or ``mlp5``.
        receivers: ``L9H6.q``, ``L9.q``, ``mlp9`` or ``logits``; those that received together are joined by ``+``.
        freeze_mlps: whether MLPs between sender and receiver were frozen too.
    """

    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    freeze_mlps: bool

    def labels(self, axis: str) -> Sequence[str]:
        return self.senders if axis == "sender" else self.receivers

    def by_head(self, receiver: str | None = None, metric: str | None = None) -> np.ndarray:
        """Return the change that each head makes through one receiver, ``[layer, head]``; NaN for heads not sending.

        Args:
            receiver: as in ``receivers``; may be left out where there is only one.
            metric: may be left out where there is only one.
        """
        if receiver is None and len(self.receivers) > 1:
            raise InputError(f"this result has several receivers; name one of {', '.join(self.receivers)}")
        name = self.receivers[0] if receiver is None else receiver
        if name not in self.receivers:
            raise InputError(
                f"no receiver {name!r}{nearest(str(name), self.receivers)}; this result has {', '.join(self.receivers)}"
            )
        grid = np.full((self.config["n_layers"], self.config["n_heads"]), np.nan)
        for sender, change in zip(self.senders, self.change(metric)[:, self.receivers.index(name)], strict=True):
            if not sender.startswith("mlp"):
                layer, head = sender.removeprefix("L").split("H")
                grid[int(layer), int(head)] = change
        return grid

    @property
    def title(self) -> str:
        mlps = "frozen" if self.freeze_mlps else "recomputed"
        return f"path patching of {self.model}, {self.direction}, MLPs on the way {mlps}"
