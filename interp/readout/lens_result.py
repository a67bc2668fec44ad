"""LensResult: what each depth of a model would predict, as a value with named axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from interp.checks import whole_number
from interp.results import Result, plain_fields
from models.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LensResult(Result):
    """What each depth would predict.

    Attributes:
        rows: names of the depths: ``embed``, ``L0``, ``L0 mid``, ... ; the last row is the model's output.
        tokens: the prompts, ``[batch][pos]`` strings.
        real: ``[batch, pos]``, False at padding.
        top_tokens, top_probabilities: ``[row, batch, pos, k]``, best first.
        top_texts: text of every token in ``top_tokens``.
        entropy, kl: ``[row, batch, pos]``, nats; kl is KL(final || row).
        residual_norm: ``[row, batch, pos]``, length of the stream.
        stable_from: ``[batch, pos]``, the first row from which on the top guess is the model's.
        target: the target's text per example, or None.
        target_tokens: ``[batch]``.
        target_probability, target_logit, target_rank: ``[row, batch, pos]``; rank 0 is the top guess.
        lens: ``logit`` or ``tuned``.
        warnings: what a reader must know.
        model, config, versions: what computed this.
    """

    rows: tuple[str, ...]
    tokens: tuple[tuple[str, ...], ...]
    real: np.ndarray
    top_tokens: np.ndarray
    top_probabilities: np.ndarray
    top_texts: Mapping[int, str]
    entropy: np.ndarray
    kl: np.ndarray
    residual_norm: np.ndarray
    stable_from: np.ndarray
    target: tuple[str, ...] | None
    target_tokens: np.ndarray | None
    target_probability: np.ndarray | None
    target_logit: np.ndarray | None
    target_rank: np.ndarray | None
    lens: str
    warnings: tuple[str, ...]
    model: str
    config: dict[str, Any]
    versions: dict[str, str]

    def place(self, batch: int = 0, pos: int | None = None) -> tuple[int, int]:
        """Return a prompt and a column of it, both counted from 0.

        Args:
            batch: which prompt; negative numbers count from the last.
            pos: which column; by default the prompt's last real token. Negative numbers count from the last column,
                which is padding where a prompt is padded on the right.

        Raises:
            InputError: no such prompt or column, or one that is padding.
        """
        n_prompts, width = self.real.shape
        batch = _counted("batch", batch, n_prompts)
        if pos is None:
            return batch, int(np.flatnonzero(self.real[batch])[-1])
        column = _counted("pos", pos, width)
        if not self.real[batch, column]:
            columns = np.flatnonzero(self.real[batch])
            raise InputError(
                f"pos is {pos}, which is padding in prompt {batch}: its tokens are in columns {columns[0]} to "
                f"{columns[-1]}; leave pos out for the last of them"
            )
        return batch, column

    def guess(self, row: int, batch: int = 0, pos: int | None = None) -> tuple[str, float]:
        """Return the top guess at a depth, and its probability; ``row`` -1 is the output. See ``place``."""
        batch, pos = self.place(batch, pos)
        row = _counted("row", row, len(self.rows))
        token = int(self.top_tokens[row, batch, pos, 0])
        return self.top_texts[token], float(self.top_probabilities[row, batch, pos, 0])

    def takeover(self, batch: int = 0, pos: int | None = None) -> str | None:
        """Return the depth from which on the target is the top guess; None where it is not the model's guess."""
        batch, pos = self.place(batch, pos)
        if self.target_rank is None:
            return None
        rank = self.target_rank[:, batch, pos]
        if rank[-1] != 0:
            return None
        last_other = np.flatnonzero(rank != 0)
        return self.rows[0 if len(last_other) == 0 else int(last_other[-1]) + 1]

    def mean_over_positions(self, values: np.ndarray) -> np.ndarray:
        """Return ``[row]``: the mean of ``[row, batch, pos]`` over real positions but the first of each prompt."""
        counted = after_first(self.real)
        if not counted.any():
            counted = self.real
        mean: np.ndarray = values[:, counted].mean(1)
        return mean

    def to_frame(self, batch: int = 0, pos: int | None = None) -> pd.DataFrame:
        """Return one row per depth for one position: guess, probability, entropy, KL, and the target's figures."""
        import pandas as pd

        batch, pos = self.place(batch, pos)
        guesses = [self.guess(row, batch, pos) for row in range(len(self.rows))]
        frame = pd.DataFrame(
            {
                "depth": self.rows,
                "guess": [guess for guess, _ in guesses],
                "probability": [probability for _, probability in guesses],
                "entropy": self.entropy[:, batch, pos],
                "kl": self.kl[:, batch, pos],
            }
        )
        if self.target_rank is not None and self.target_probability is not None and self.target_logit is not None:
            frame["target_probability"] = self.target_probability[:, batch, pos]
            frame["target_logit"] = self.target_logit[:, batch, pos]
            frame["target_rank"] = self.target_rank[:, batch, pos]
        return frame

    def to_dict(self) -> dict[str, Any]:
        return plain_fields(self) | {"top_texts": {str(token): text for token, text in self.top_texts.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read: dict[str, Any] = {field.name: values[field.name] for field in fields(cls)}
        for field in fields(cls):
            if "ndarray" in str(field.type) and read[field.name] is not None:
                read[field.name] = np.array(read[field.name])
        read["rows"], read["warnings"] = tuple(read["rows"]), tuple(read["warnings"])
        read["tokens"] = tuple(tuple(row) for row in read["tokens"])
        read["target"] = None if read["target"] is None else tuple(read["target"])
        read["top_texts"] = {int(token): text for token, text in read["top_texts"].items()}
        return cls(**read)

    def headline(self) -> str:
        n_prompts, width = self.real.shape
        return f"{self.lens} lens of {self.model}, {len(self.rows)} depths × {n_prompts} prompts × {width} tokens"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw the first prompt's top guesses by depth and position; see ``interp.plots.plot_lens_grid``."""
        from interp.plots import plot_lens_grid

        return plot_lens_grid(self, dark=dark)

    def summary_html(self) -> str:
        """Return the trajectory of the first prompt's last token as a table."""
        table: str = self.to_frame().to_html(index=False, float_format="{:.3g}".format)
        return f"<p>{self.lens} lens, last token</p>{table}"


def after_first(real: np.ndarray) -> np.ndarray:
    """Return ``[batch, pos]``: the real positions but the first of each prompt, which is often a sink."""
    counted = real.copy()
    counted[np.arange(len(real)), real.argmax(1)] = False
    return counted


def _counted(name: str, number: int, count: int) -> int:
    """Return an index counted from 0. Raises InputError where it is none, or out of range."""
    whole_number(number, name, None)
    if not -count <= number < count:
        raise InputError(f"{name} is {number}; this result has 0 to {count - 1}, and -{count} to -1 from the end")
    return int(number) % count
