"""What ablation found: of every cell of a grid, or of a set of parts together and one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from interp.interventions.cell_result import CellResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class _Ablated(CellResult):
    """What both results share.

    Attributes:
        method: ``zero``, ``mean``, ``mean_per_position`` or ``resample``.
        intact: per metric, the untouched run, ``[batch]``.
        tokens: the prompts, one string per token, ``batch`` of them.
        n_reference: examples that the replacements come from; 0 for zeros, the batch's own number without a reference.
        frozen_attention: whether attention patterns were held to the untouched run's.
        renormalised: whether patterns were made to sum to 1 again.
        seed: of ``resample``.
    """

    method: str
    intact: Mapping[str, np.ndarray]
    tokens: tuple[tuple[str, ...], ...]
    n_reference: int
    frozen_attention: bool
    renormalised: bool
    seed: int

    def into(self, metric: str | None = None) -> np.ndarray:
        """Return the metric of the untouched run, ``[batch]``."""
        return self.intact[self.metric(metric)]

    def prompts(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        return (self.tokens,)

    def _how(self) -> str:
        notes = [self.method.replace("_", " ")]
        notes += ["attention frozen"] if self.frozen_attention else []
        notes += ["renormalised"] if self.renormalised else []
        return ", ".join(notes)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AblationResult(_Ablated):
    """The metric with each cell of a grid ablated, ``values [*axes, batch]``, beside the untouched run's.

    Attributes:
        site: the activation ablated.
        block_tokens, naive_block_tokens: (token, block) pairs computed for the cells, and those of one run per cell.
        resumed: False where every cell took a whole run.
    """

    site: str
    block_tokens: int
    naive_block_tokens: int
    resumed: bool

    @property
    def title(self) -> str:
        return f"{self.site} ablation of {self.model} ({self._how()})"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class JointAblation(_Ablated):
    """The metric without a set of parts, beside that without each of them alone, ``values [part, batch]``.

    Attributes:
        parts: their names.
        joint: per metric, the run without any of them, ``[batch]``.
        chosen_from: how many cells the parts are the largest of, on these same prompts; 0 where they were named before.
    """

    schema_version: ClassVar[int] = 2

    parts: tuple[str, ...]
    joint: Mapping[str, np.ndarray]
    chosen_from: int = 0

    def labels(self, axis: str) -> Sequence[str]:
        return self.parts

    @property
    def untestable(self) -> str:
        if not self.chosen_from:
            return ""
        return (
            f"the parts were chosen on these prompts, the largest of {self.chosen_from} cells, which alone makes their "
            "changes large; the grid's own p-values count that choice, and so do other prompts"
        )

    def joint_change(self, metric: str | None = None) -> float:
        """Return the change that taking out all parts together makes, mean over examples."""
        name = self.metric(metric)
        return float((self.joint[name] - self.intact[name]).mean())

    def sum_of_singles(self, metric: str | None = None) -> float:
        """Return the sum of the changes that taking out each part alone makes.

        A joint change that is larger, with the same sign, says that parts stand in for each other (self-repair); a
        smaller one, that they do the same work in sequence; one of the opposite sign, that what a part does depends on
        the others.
        """
        return float(self.change(metric).sum())

    @property
    def title(self) -> str:
        chosen = f", parts chosen on these prompts: largest of {self.chosen_from} cells" if self.chosen_from else ""
        return f"joint ablation in {self.model} ({self._how()}){chosen}"

    def plot(self, metric: str | None = None, *, dark: bool = False) -> Figure:
        """Draw singles, their sum and the joint change; see ``interp.plots.plot_joint_ablation``."""
        from interp.plots import plot_joint_ablation

        return plot_joint_ablation(self, metric, dark=dark)

    def summary_html(self) -> str:
        """Return singles, their sum and the joint change, as a table."""
        name = self.metrics[0]
        changes = [*zip(self.parts, self.change(name), strict=True)]
        changes += [("sum of singles", self.sum_of_singles(name)), ("joint", self.joint_change(name))]
        rows = "".join(f"<tr><td>{escape(part)}</td><td>{change:.4g}</td></tr>" for part, change in changes)
        header = f"<tr><th>part</th><th>change in {escape(name)}</th></tr>"
        return f"<p>{escape(self.title)}</p><table>{header}{rows}</table>"
