"""What each write to the stream does to the guess: the logit lens of increments.

    increment_c = write_c . norm_final' . W_U,       norm_final' the final norm, its scale frozen at this run

An increment is taken relative to its mean over the vocabulary, which no softmax feels. All increments, the final norm's
bias and the unembedding's add up to the model's logits, less their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks import Followed, followed_tokens, whole_number
from interp.decoders import check_parts
from interp.finite import check_computed, check_model
from interp.precision import at_least_float32
from interp.readout.decompose import residual_writes
from interp.readout.lens_statistics import unembedding_chunks
from interp.readout.writes import By, hooks_needed, norm_step
from interp.results import Result, described, plain_fields
from models.errors import InputError
from models.parts.norm import Norm
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class IncrementsResult(Result):
    """The tokens that every write raises and lowers, at one position of one prompt.

    Attributes:
        labels: the writes, as in ``ResidualWrites``; ``ln_final bias`` and ``unembed bias`` where the model has them.
        tokens: the prompt, one string per token.
        position: the column that predicts.
        raised, lowered: ``[write, k]`` tokens, the most changed first.
        raised_by, lowered_by: ``[write, k]``, logits relative to the mean over the vocabulary.
        texts: of every token in ``raised`` and ``lowered``.
        target: the followed token's text, or None.
        target_by: ``[write]``, what each write adds to the target, in the same unit.
        model, config, versions: what computed this.
    """

    labels: tuple[str, ...]
    tokens: tuple[str, ...]
    position: int
    raised: np.ndarray
    raised_by: np.ndarray
    lowered: np.ndarray
    lowered_by: np.ndarray
    texts: Mapping[int, str]
    target: str | None
    target_by: np.ndarray | None
    model: str
    config: dict[str, Any]
    versions: dict[str, str]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per write: what it raises and lowers most, and what it adds to the target."""
        import pandas as pd

        frame = pd.DataFrame(
            {
                "write": self.labels,
                "raises": [self.texts[int(row[0])] for row in self.raised],
                "by": self.raised_by[:, 0],
                "lowers": [self.texts[int(row[0])] for row in self.lowered],
                "lowers_by": self.lowered_by[:, 0],
            }
        )
        if self.target_by is not None:
            frame["target_by"] = self.target_by
        return frame

    def to_dict(self) -> dict[str, Any]:
        return plain_fields(self) | {"texts": {str(token): text for token, text in self.texts.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read = {field.name: values[field.name] for field in fields(cls)}
        for name in ("raised", "raised_by", "lowered", "lowered_by", "target_by"):
            read[name] = None if read[name] is None else np.array(read[name])
        read["labels"], read["tokens"] = tuple(read["labels"]), tuple(read["tokens"])
        read["texts"] = {int(token): text for token, text in read["texts"].items()}
        return cls(**read)

    def headline(self) -> str:
        towards = "" if self.target is None else f", towards {self.target!r}"
        return f"what {len(self.labels)} writes of {self.model} say at position {self.position}{towards}"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw the largest increments; see ``interp.plots.plot_increments``."""
        from interp.plots import plot_increments

        return plot_increments(self, dark=dark)

    def summary_html(self) -> str:
        """Return what every write raises most, as a table."""
        table: str = self.to_frame().to_html(index=False, float_format="{:.3g}".format)
        return table


def lens_increments(
    model: ResumableModel,
    tokens: Int[Tensor, "pos"] | str,
    *,
    target: Followed | None = None,
    by: By = "component",
    position: int = -1,
    top_k: int = 5,
    chunk: int = 2048,
) -> IncrementsResult:
    """Unembed every write to the stream at one position.

    Args:
        tokens: one prompt, ids or text.
        target: a token (id, or a text that is one token) to follow.
        by: ``component``, ``head`` or ``neuron``.
        position: the column that predicts.
        top_k: tokens to keep on either side.
        chunk: tokens of the vocabulary at a time.

    Raises:
        InputError: several prompts, a position or target out of range, a model that is no ``HookedDecoder``.
        NonFiniteError: NaN or inf, with the first hook at which it appears.
    """
    check_parts(model)
    ids, real = model.prepare(tokens)
    if len(ids) != 1 or real is not None:
        raise InputError(f"increments are of one prompt; got {len(ids)}")
    width, d_vocab = ids.shape[1], model.cfg.d_vocab
    for name, number in (("position", position), ("top_k", top_k), ("chunk", chunk)):
        whole_number(number, name, None)
    if not -width <= position < width:
        raise InputError(f"position is {position}; this prompt has columns 0 to {width - 1}")
    if not 1 <= top_k <= d_vocab:
        raise InputError(f"top_k is {top_k}; expected 1 to d_vocab = {d_vocab}")
    if chunk < 1:
        raise InputError(f"chunk is {chunk}; expected at least one token of the vocabulary at a time")
    followed = None if target is None else followed_tokens(model, target, 1)[0]
    hooks_needed(model, by)  # refuses another ``by``
    check_model(model, ids)
    column = position % width
    with torch.inference_mode():
        labels, vectors = _writes(model, ids, by, column)
        mean = vectors @ torch.cat([at_least_float32(model.W_U).mean(1), at_least_float32(model.b_U).mean()[None]])
        found = _Extremes(len(labels), top_k, vectors)
        for first, W, b in unembedding_chunks(model, chunk):
            found.add(vectors @ torch.cat([W, b[None]]) - mean[:, None], first)
        target_by = None
        if followed is not None:
            along = torch.cat([at_least_float32(model.W_U[:, followed]), at_least_float32(model.b_U[followed])[None]])
            target_by = (vectors @ along - mean).cpu().numpy()
        computed = {"increments": torch.cat([values.flatten() for values in found.values])}
        check_computed(model, ids, computed=computed)
    return _result(model, ids, column, labels, found, followed, target_by)


def _writes(
    model: ResumableModel, ids: Tensor, by: By, column: int
) -> tuple[tuple[str, ...], Float[Tensor, "write d_model+1"]]:
    """Return the writes at one column behind the final norm; the last entry of each multiplies b_U.

    The norm's bias and the unembedding's are writes too.
    """
    norm = model.ln_final
    names = [*hooks_needed(model, by), *(["ln_final.hook_scale"] if isinstance(norm, Norm) else [])]
    _, cache = model.run_with_cache(ids, names_filter=names, return_type=None, pos_slice=slice(column, column + 1))
    writes = residual_writes(model, cache, by=by)
    labels, vectors = list(writes.labels), writes.values[:, 0, 0]
    if isinstance(norm, Norm):
        final = norm_step(norm, "ln_final bias", cache["ln_final.hook_scale"][0, 0])
        vectors = final.linear(vectors)
        if final.bias is not None:
            labels.append(final.label)
            vectors = torch.cat([vectors, final.bias[None]])
    vectors = torch.nn.functional.pad(vectors, (0, 1))
    if model.unembed.bias is not None:
        labels.append("unembed bias")
        vectors = torch.nn.functional.pad(vectors, (0, 0, 0, 1))
        vectors[-1, -1] = 1
    return tuple(labels), vectors


class _Extremes:
    """The k largest and smallest increments of every write, over the chunks seen so far."""

    def __init__(self, n_writes: int, k: int, like: Tensor) -> None:
        self.k = k
        self.values = [like.new_full((n_writes, k), -torch.inf) for _ in range(2)]
        self.tokens = [torch.zeros((n_writes, k), dtype=torch.long, device=like.device) for _ in range(2)]

    def add(self, increments: Float[Tensor, "write chunk"], first: int) -> None:
        for side, signed in enumerate((increments, -increments)):
            best = signed.topk(min(self.k, signed.shape[1]))
            both = torch.cat([self.values[side], best.values], 1).topk(self.k)
            tokens = torch.cat([self.tokens[side], best.indices + first], 1)
            self.values[side], self.tokens[side] = both.values, tokens.gather(1, both.indices)


def _result(
    model: ResumableModel,
    ids: Tensor,
    column: int,
    labels: tuple[str, ...],
    found: _Extremes,
    target: int | None,
    target_by: np.ndarray | None,
) -> IncrementsResult:
    raised, lowered = (tokens.cpu().numpy() for tokens in found.tokens)
    distinct = np.unique(np.concatenate([raised, lowered])).tolist()
    return IncrementsResult(
        labels=labels,
        tokens=tuple(model.to_str_tokens(ids[0])),
        position=column,
        raised=raised,
        raised_by=found.values[0].cpu().numpy(),
        lowered=lowered,
        lowered_by=-found.values[1].cpu().numpy(),
        texts=dict(zip(distinct, model.to_str_tokens(distinct), strict=True)),
        target=None if target is None else model.to_str_tokens([target])[0],
        target_by=target_by,
        **described(model),
    )
