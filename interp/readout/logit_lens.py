"""The logit lens (nostalgebraist 2020): unembed the stream at every depth and see what it would predict.

    lens_l = norm_final(x_l) W_U + b_U,     x_0 the embedding, x_l the stream after block l

The last row is the model's logits.

Known failures, which ``warnings`` name: early layers speak another basis, so one token may top every position or the
top guess be the input token itself; position 0 is often a sink and is left out of averages. A tuned lens
(``interp.readout.tuned_lens``) translates each depth first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.checks import Followed, followed_tokens, whole_number
from interp.decoders import READ_BY_A_LENS, check_parts
from interp.finite import check_computed, check_model
from interp.precision import at_least_float32
from interp.readout.lens_result import LensResult, after_first
from interp.readout.lens_statistics import lens_statistics
from interp.results import described
from models.errors import InputError
from models.protocol import ResumableModel


class Translator(Protocol):
    """What a tuned lens adds: a map of the stream at each depth, before the final norm."""

    def translate(self, depth: int, stream: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        """Return the stream of depth ``depth`` (0 the embedding) in the final basis."""
        ...

    def check(self, model: ResumableModel) -> None:
        """Raise InputError where the map was made for another model."""
        ...


def logit_lens(
    model: ResumableModel,
    tokens: Int[Tensor, "batch pos"] | str,
    *,
    target: Followed | None = None,
    at: str | Sequence[str] = ("resid_post",),
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
        InputError: an unknown row, a target outside the vocabulary, top_k out of range, a tuned lens of another
            model, a model that is no ``HookedDecoder``.
        NonFiniteError: NaN or inf, with the first hook at which it appears.
    """
    check_parts(model, *READ_BY_A_LENS)
    at = _rows_read(model, at, tuned)
    whole_number(top_k, "top_k", None)
    if not 1 <= top_k <= model.cfg.d_vocab:
        raise InputError(f"top_k is {top_k}; expected 1 to d_vocab = {model.cfg.d_vocab}")
    if chunk is not None:
        whole_number(chunk, "chunk", None)
        if chunk < 1:
            raise InputError(f"chunk is {chunk}; expected at least one token of the vocabulary at a time")
    if tuned is not None:
        tuned.check(model)
    ids, real = model.prepare(tokens, attention_mask, prepend_bos)
    wanted = None if target is None else torch.tensor(followed_tokens(model, target, len(ids)), device=ids.device)
    check_model(model, ids, real=real)
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
        per_token = None if wanted is None else wanted.repeat_interleave(ids.shape[1])
        if chunk is None:
            chunk = max(2048, 2_000_000 // ids.numel())
        found = lens_statistics(model, streams.flatten(1, 2), top_k=top_k, target=per_token, chunk=chunk)
        computed = {
            "the streams' lengths": norms,
            "KL": found.kl,
            "entropy": found.entropy,
            "top logits": found.top_logits,
        }
        check_computed(model, ids, real=real, computed=computed)
    return _result(model, tuple(hooks), ids, real, found, norms, wanted, "logit" if tuned is None else "tuned")


def _rows_read(model: ResumableModel, at: str | Sequence[str], tuned: Translator | None) -> tuple[str, ...]:
    """Return the streams that are read at every depth. Raises InputError where they cannot be."""
    names = (at,) if isinstance(at, str) else at
    if not isinstance(names, (list, tuple)) or not names:
        raise InputError(f"at is {at!r}; expected 'resid_post', or ('resid_mid', 'resid_post')")
    for name in names:
        if name not in ("resid_post", "resid_mid"):
            raise InputError(f"the lens reads resid_post and resid_mid, not {name!r}")
    if "resid_mid" in names and "blocks.0.hook_resid_mid" not in model.hook_names():
        raise InputError("this model's blocks have no resid_mid; use at=('resid_post',)")
    if "resid_mid" in names and tuned is not None:
        raise InputError(
            "a tuned lens has translators of resid_post alone, and none of resid_mid; leave out at=, or the tuned lens"
        )
    return tuple(names)


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
    rest = after_first(real)  # position 0 sees nothing but itself, and often stands out as a sink
    if real.sum() >= 4:
        for row, name in enumerate(rows[:-1]):
            guesses = first[row]
            if rest.sum() >= 3 and len(np.unique(guesses[rest])) == 1:
                one_token.append(f"{name} ({texts[int(guesses[rest][0])]!r})")
            elif (guesses[real] == ids[real]).mean() > 0.5:
                copies.append(name)
    warnings = []
    if one_token:
        warnings.append(
            f"One token tops every position but the first at {', '.join(one_token)}: read nothing into these depths."
        )
    if copies:
        warnings.append(f"At {', '.join(copies)} the top guess is mostly the input token itself, not a prediction.")
    return tuple(warnings)
