"""The next-token distribution of one prompt, kept small: its largest logits, and all others as one sum.

    p_w(T) = exp(z_w / T) / (sum over kept exp(z / T) + rest(T)),      rest(T) = sum over the others exp(z / T)

With rest(T) stored for a grid of temperatures, probabilities at these are exact, whatever was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.checks import whole_number
from interp.decoders import check_decoder
from interp.finite import check_computed, check_model
from interp.precision import at_least_float32
from interp.results import Result, described
from models.errors import InputError
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TEMPERATURES = tuple(round(0.05 * step, 2) for step in range(1, 41))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NextTokenResult(Result):
    """What may come next.

    Attributes:
        tokens: the prompt, one string per token.
        top_tokens, top_texts, top_logits: the kept tokens, ``[k]``, most likely first.
        temperatures: at which ``rest`` is known, ``[temperature]``.
        rest: log of the summed exp(logit / T) of all other tokens, ``[temperature]``; None where all are kept.
        n_rest: how many others there are.
        model, config, versions: what computed this.
    """

    tokens: tuple[str, ...]
    top_tokens: np.ndarray
    top_texts: tuple[str, ...]
    top_logits: np.ndarray
    temperatures: tuple[float, ...]
    rest: np.ndarray | None
    n_rest: int
    model: str
    config: dict[str, Any]
    versions: dict[str, str]

    def probabilities(self, temperature: float = 1.0) -> np.ndarray:
        """Return the kept tokens' probabilities. Raises InputError at a temperature whose rest is not known."""
        if temperature not in self.temperatures:
            raise InputError(
                f"temperature {temperature} is not on the grid of this result: {self.temperatures[0]} to "
                f"{self.temperatures[-1]} in steps of {self.temperatures[1] - self.temperatures[0]:.2g}"
            )
        scaled = self.top_logits / temperature
        total = np.logaddexp.reduce(scaled)
        if self.rest is not None:
            total = np.logaddexp(total, self.rest[self.temperatures.index(temperature)])
        found: np.ndarray = np.exp(scaled - total)
        return found

    def to_frame(self) -> pd.DataFrame:
        """Return one row per kept token: id, text, logit, and probability at temperature 1."""
        import pandas as pd

        columns = {"token": self.top_tokens, "text": self.top_texts, "logit": self.top_logits}
        return pd.DataFrame({**columns, "probability": self.probabilities()})

    def headline(self) -> str:
        text, chance = self.top_texts[0], self.probabilities()[0]
        return f"{self.model} after {self.tokens[-1]!r}: {text!r} {chance:.3f}"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw the most likely tokens; see ``interp.plots.plot_next_token``."""
        from interp.plots import plot_next_token

        return plot_next_token(self, dark=dark)

    def summary_html(self) -> str:
        """Return the most likely tokens as a table."""
        table: str = self.to_frame().head(10).to_html(index=False, float_format="{:.3g}".format)
        return table

    def to_dict(self) -> dict[str, Any]:
        return {
            "result": type(self).__name__,
            "schema_version": self.schema_version,
            "tokens": list(self.tokens),
            "top_tokens": self.top_tokens.tolist(),
            "top_texts": list(self.top_texts),
            "top_logits": self.top_logits.tolist(),
            "temperatures": list(self.temperatures),
            "rest": None if self.rest is None else self.rest.tolist(),
            "n_rest": self.n_rest,
            "model": self.model,
            "config": self.config,
            "versions": self.versions,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read = {name: values[name] for name in ("n_rest", "model", "config", "versions")}
        return cls(
            tokens=tuple(values["tokens"]),
            top_tokens=np.array(values["top_tokens"]),
            top_texts=tuple(values["top_texts"]),
            top_logits=np.array(values["top_logits"]),
            temperatures=tuple(values["temperatures"]),
            rest=None if values["rest"] is None else np.array(values["rest"]),
            **read,
        )


def next_token(
    model: ResumableModel, tokens: Int[Tensor, "pos"] | str, *, keep: int = 500, prepend_bos: bool | None = None
) -> NextTokenResult:
    """Return the distribution after the last token of one prompt.

    Args:
        tokens: one prompt, ids or text.
        keep: how many tokens are kept by name.
        prepend_bos: for text, see ``to_tokens``.

    Raises:
        InputError: several prompts, nothing to keep, a model that is no ``HookedDecoder``.
        NonFiniteError: NaN or inf, with the first hook at which it appears.
    """
    check_decoder(model)
    whole_number(keep, "keep", None)
    if keep < 1:
        raise InputError(f"keep is {keep}; expected at least 1")
    ids, real = model.prepare(tokens, None, prepend_bos)
    if len(ids) != 1 or real is not None:
        raise InputError(f"the next token is of one prompt; got {len(ids)}")
    check_model(model, ids)
    with torch.inference_mode():
        logits = at_least_float32(model(ids)[0, -1]).double()
    check_computed(model, ids, computed={"the logits": logits})
    best = logits.topk(min(keep, len(logits)))
    others = logits.scatter(0, best.indices, -torch.inf)
    n_rest = len(logits) - len(best.indices)
    temperatures = torch.tensor(TEMPERATURES, dtype=torch.float64, device=logits.device)
    rest = (others / temperatures[:, None]).logsumexp(-1).cpu().numpy() if n_rest else None
    return NextTokenResult(
        tokens=tuple(model.to_str_tokens(ids[0])),
        top_tokens=best.indices.cpu().numpy(),
        top_texts=tuple(model.to_str_tokens(best.indices)),
        top_logits=best.values.cpu().numpy(),
        temperatures=TEMPERATURES,
        rest=rest,
        n_rest=n_rest,
        **described(model),
    )
