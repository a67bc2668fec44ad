"""The logit lens (nostalgebraist 2020): unembed the stream at every depth and see what it would predict.

    lens_l = norm_final(x_l) W_U + b_U,     x_0 the embedding, x_l the stream after block l

The last row is the model's logits.

Known failures, which ``warnings`` name: early layers speak another basis, so one token may top every position or the
top guess be the input token itself; position 0 is often a sink and is left out of averages. A tuned lens
(``interp.readout.tuned_lens``) translates each depth first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.precision import at_least_float32
from interp.readout.lens_statistics import lens_statistics
from interp.results import Result, described
from models.errors import InputError
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Translator(Protocol):
    """What a tuned lens adds: a map of the stream at each depth, before the final norm."""

    def translate(self, depth: int, stream: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        """Return the stream of depth ``depth`` (0 the embedding) in the final basis."""
        ...


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

    def guess(self, row: int, batch: int = 0, pos: int = -1) -> tuple[str, float]:
        """Return the top guess at a depth, and its probability."""
        token = int(self.top_tokens[row, batch, pos, 0])
        return self.top_texts[token], float(self.top_probabilities[row, batch, pos, 0])

    def takeover(self, batch: int = 0, pos: int = -1) -> str | None:
        """Return the depth from which on the target is the top guess; None where it is not the model's guess."""
        if self.target_rank is None:
            return None
        rank = self.target_rank[:, batch, pos]
        if rank[-1] != 0:
            return None
        last_other = np.flatnonzero(rank != 0)
        return self.rows[0 if len(last_other) == 0 else int(last_other[-1]) + 1]

    def mean_over_positions(self, values: np.ndarray) -> np.ndarray:
        """Return ``[row]``: the mean of ``[row, batch, pos]`` over real positions but the first of each prompt."""
        counted = self.real.copy()
        first = counted.argmax(1)
        if counted.sum() > len(first):
            counted[np.arange(len(first)), first] = False
        mean: np.ndarray = values[:, counted].mean(1)
        return mean

    def to_frame(self, batch: int = 0, pos: int = -1) -> pd.DataFrame:
        """Return one row per depth for one position: guess, probability, entropy, KL, and the target's figures."""
        import pandas as pd

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
        values: dict[str, Any] = {"result": type(self).__name__, "schema_version": self.schema_version}
        for field in fields(self):
            value = getattr(self, field.name)
            values[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
        values["top_texts"] = {str(token): text for token, text in self.top_texts.items()}
        return values

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
        """Return the last position's trajectory as a table."""
        table: str = self.to_frame().to_html(index=False, float_format="{:.3g}".format)
        return f"<p>{self.lens} lens, last position</p>{table}"


def logit_lens(
    model: ResumableModel,
    tokens: Int[Tensor, "batch pos"] | str,
    *,
    target: int | str | Sequence[int] | None = None,
    at: Sequence[str] = ("resid_post",),
    top_k: int = 5,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    prepend_bos: bool | None = None,
    tuned: Translator | None = None,
    chunk: int | None = None,
) -> LensResult:
    """Read the stream at every depth through the final norm and the unembedding.

    Memory: the streams, rows x tokens x d_model numbers, twice; then the streams once, and six buffers of
    tokens x ``chunk``. So no ``[tokens, d_vocab]`` matrix is made, unless it is small.

    Args:
        tokens: prompts as ids, or one text.
        target: a token (id, or a text that is one token) whose probability, logit and rank are followed, or one
            per prompt.
        at: ``resid_post``, and ``resid_mid`` for rows between attention and MLP.
        top_k: how many guesses are kept.
        attention_mask: True at real tokens.
        prepend_bos: for text, see ``to_tokens``.
        tuned: a tuned lens.
        chunk: tokens of the vocabulary at a time; by default 2048, or as many as make tokens x chunk 2 million.

    Raises:
        InputError: an unknown row, a target outside the vocabulary, top_k out of range.
    """
    for name in at:
        if name not in ("resid_post", "resid_mid"):
            raise InputError(f"the lens reads resid_post and resid_mid, not {name!r}")
    if "resid_mid" in at and "blocks.0.hook_resid_mid" not in model.hook_names():
        raise InputError("this model's blocks have no resid_mid; use at=('resid_post',)")
    if not 1 <= top_k <= model.cfg.d_vocab:
        raise InputError(f"top_k is {top_k}; expected 1 to d_vocab = {model.cfg.d_vocab}")
    if chunk is not None and chunk < 1:
        raise InputError(f"chunk is {chunk}; expected at least one token of the vocabulary at a time")
    ids, real = model.prepare(tokens, attention_mask, prepend_bos)
    hooks = {"embed": "blocks.0.hook_resid_pre"}
    for layer in range(len(model.blocks)):
        if "resid_mid" in at:
            hooks[f"L{layer} mid"] = f"blocks.{layer}.hook_resid_mid"
        hooks[f"L{layer}"] = f"blocks.{layer}.hook_resid_post"
    with torch.inference_mode():
        _, cache = model.run_with_cache(ids, attention_mask=real, names_filter=list(hooks.values()), return_type=None)
        streams = torch.stack([at_least_float32(cache[name]) for name in hooks.values()])
        dtype = cache[hooks["embed"]].dtype
        del cache
        norms = torch.stack([stream.norm(dim=-1).flatten() for stream in streams])
        depths = [0 if name == "embed" else int(name.removeprefix("L").split()[0]) + 1 for name in hooks]
        for row, depth in enumerate(depths):  # in place: one stream at a time is read through the final norm
            stream = streams[row].to(dtype)
            if tuned is not None and row < len(depths) - 1:
                stream = tuned.translate(depth, stream)
            streams[row] = model.ln_final(stream)
        wanted = None if target is None else _target(model, target, ids)
        per_token = None if wanted is None else wanted.repeat_interleave(ids.shape[1])
        if chunk is None:
            chunk = max(2048, 2_000_000 // ids.numel())
        found = lens_statistics(model, streams.flatten(1, 2), top_k=top_k, target=per_token, chunk=chunk)
    return _result(model, tuple(hooks), ids, real, found, norms, wanted, "logit" if tuned is None else "tuned")


def _target(model: ResumableModel, target: int | str | Sequence[int], ids: Tensor) -> Int[Tensor, "batch"]:
    if isinstance(target, str):
        target = model.to_single_token(target)
    vector = torch.as_tensor(target, dtype=torch.long, device=ids.device).reshape(-1)
    if len(vector) not in (1, len(ids)):
        raise InputError(f"{len(vector)} targets for {len(ids)} prompts; give one, or one per prompt")
    if int(vector.min()) < 0 or int(vector.max()) >= model.cfg.d_vocab:
        outside = int(vector.min() if vector.min() < 0 else vector.max())
        raise InputError(f"target {outside} is outside this vocabulary, 0 to {model.cfg.d_vocab - 1}")
    return vector.expand(len(ids))


def _result(
    model: ResumableModel,
    rows: tuple[str, ...],
    ids: Tensor,
    real: Tensor | None,
    found: Any,
    norms: Tensor,
    target: Tensor | None,
    lens: str,
) -> LensResult:
    batch, width = ids.shape
    shown = tuple(tuple(model.to_str_tokens(row)) for row in ids)
    counted = np.ones((batch, width), dtype=bool) if real is None else real.cpu().numpy()

    def grid(values: Tensor) -> np.ndarray:
        array: np.ndarray = values.reshape(len(rows), batch, width, *values.shape[2:]).cpu().numpy()
        return array

    top = grid(found.top_tokens)
    first = top[..., 0]
    same = first == first[-1]
    stable = len(rows) - np.logical_and.accumulate(same[::-1], axis=0).sum(0)
    texts = dict(zip(np.unique(top).tolist(), model.to_str_tokens(np.unique(top).tolist()), strict=True))
    probabilities = None if target is None else grid((found.target_logit - found.log_normaliser).exp())
    return LensResult(
        rows=rows,
        tokens=shown,
        real=counted,
        top_tokens=top,
        top_probabilities=grid((found.top_logits - found.log_normaliser[..., None]).exp()),
        top_texts=texts,
        entropy=grid(found.entropy),
        kl=grid(found.kl),
        residual_norm=grid(norms),
        stable_from=stable,
        target=None if target is None else tuple(model.to_str_tokens(target)),
        target_tokens=None if target is None else target.cpu().numpy(),
        target_probability=probabilities,
        target_logit=None if target is None else grid(found.target_logit),
        target_rank=None if target is None else grid(found.target_rank),
        lens=lens,
        warnings=_warnings(rows, first, ids.cpu().numpy(), counted, texts),
        **described(model),
    )


def _warnings(
    rows: tuple[str, ...], first: np.ndarray, ids: np.ndarray, real: np.ndarray, texts: Mapping[int, str]
) -> tuple[str, ...]:
    """Name the depths whose guesses are the lens's failure rather than the model's belief."""
    one_token, copies = [], []
    if real.sum() >= 4:
        for row, name in enumerate(rows[:-1]):
            guesses = first[row][real]
            if len(np.unique(guesses)) == 1:
                one_token.append(f"{name} ({texts[int(guesses[0])]!r})")
            elif (guesses == ids[real]).mean() > 0.5:
                copies.append(name)
    warnings = []
    if one_token:
        warnings.append(f"One token tops every position at {', '.join(one_token)}: read nothing into these depths.")
    if copies:
        warnings.append(f"At {', '.join(copies)} the top guess is mostly the input token itself, not a prediction.")
    return tuple(warnings)
