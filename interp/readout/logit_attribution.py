"""Direct logit attribution: which write raised an answer's logit, and by how much.

    logit_t = norm(sum_c write_c) . W_U[:, t] + b_U[t] = sum_c write_c . r_t + constants

with r_t the unembedding's column pulled back through the final norm, whose scale is frozen at this run. *Frozen* means:
a write's share counts what it adds directly, not how it would change the norm or what later layers make of it; on GPT-2
small that is about half of the true direct effect. All attributions and the constants add up to the logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.readout.writes import By, NormStep, Write, hooks_needed, norm_step, steps
from interp.sites import Head, parse_head
from interp.weights.factored import at_least_float32
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd

Ids = int | Sequence[int] | Tensor


@dataclass(frozen=True, eq=False)
class LogitAttribution:
    """The parts of a logit (or a difference of two), with frozen norms.

    Attributes:
        labels: components as in ``ResidualWrites``, norm biases and ``unembed bias``.
        values: ``[component, batch]``, in logits.
        logit: the model's own logit or difference, ``[batch]``; the values add up to it.
        position: the column of each example, ``[batch]``.
        by: what the labels are.
    """

    labels: tuple[str, ...]
    values: Float[Tensor, "component batch"]
    logit: Float[Tensor, "batch"]
    position: Int[Tensor, "batch"]
    by: str

    def remainder(self) -> Float[Tensor, "batch"]:
        """Return logit minus the sum of values: rounding only."""
        return self.logit - self.values.sum(0)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per component, the largest mean attribution first."""
        import pandas as pd

        frame = pd.DataFrame({"component": self.labels, "logits": self.values.mean(1).tolist()})
        return frame.reindex(frame["logits"].abs().sort_values(ascending=False).index).reset_index(drop=True)


@dataclass(frozen=True, eq=False)
class SourceAttribution:
    """A head's attribution by the position it attends to.

    Attributes:
        head: which head.
        values: ``[batch, key_pos]``, in logits: pattern x (value . W_O . direction); they add up to the head's own.
        pattern: the attention they come from, ``[batch, key_pos]``.
    """

    head: Head
    values: Float[Tensor, "batch key_pos"]
    pattern: Float[Tensor, "batch key_pos"]


def logit_attribution(
    model: ResumableModel,
    tokens: Int[Tensor, "batch pos"],
    answer: Ids,
    wrong: Ids | None = None,
    *,
    by: By = "head",
    position: int | None = None,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
) -> LogitAttribution:
    """Attribute an answer's logit, or logit(answer) - logit(wrong).

    Args:
        tokens: prompts, ``[batch, pos]``.
        answer, wrong: a token id, or one per example.
        by: ``component``, ``head`` or ``neuron``.
        position: the column that predicts; None for each example's last real token.
        attention_mask: True at real tokens.

    Raises:
        InputError: ids or a position that do not fit.
    """
    run = _Run.of(model, tokens, answer, wrong, by, position, attention_mask)
    labels: list[str] = []
    parts: list[Tensor] = []
    for label, part in run.parts():
        labels += label
        parts.append(part)
    return LogitAttribution(tuple(labels), torch.cat(parts), run.logit, run.columns, by)


def source_attribution(
    model: ResumableModel,
    tokens: Int[Tensor, "batch pos"],
    head: str | tuple[int, int] | Head,
    answer: Ids,
    wrong: Ids | None = None,
    *,
    position: int | None = None,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
) -> SourceAttribution:
    """Split one head's attribution by source position, through its pattern. Arguments as in ``logit_attribution``."""
    name = parse_head(head, model.cfg)
    run = _Run.of(model, tokens, answer, wrong, "head", position, attention_mask, extra=_pattern_hooks(name.layer))
    direction = run.direction_at(name.layer)
    attn = model.blocks[name.layer].attn
    rows = torch.arange(len(run.columns), device=run.columns.device)
    pattern = at_least_float32(run.cache[f"blocks.{name.layer}.attn.hook_pattern"])[rows, name.head, run.columns]
    v = at_least_float32(run.cache[f"blocks.{name.layer}.attn.hook_v"])[:, :, name.head // model.cfg.group_size]
    read = einsum(direction, at_least_float32(attn.W_O[name.head]), "batch d, e d -> batch e")
    values = pattern * einsum(v, read, "batch key e, batch e -> batch key")
    return SourceAttribution(name, values, pattern)


def _pattern_hooks(layer: int) -> list[str]:
    return [f"blocks.{layer}.attn.hook_pattern", f"blocks.{layer}.attn.hook_v"]


@dataclass(frozen=True, eq=False)
class _Run:
    """One cached run, the column that predicts, and the direction of the answer behind the last block."""

    model: ResumableModel
    cache: ActivationCache
    by: By
    columns: Int[Tensor, "batch"]
    direction: Float[Tensor, "batch 1 d_model"]
    constants: dict[str, Float[Tensor, "batch"]]
    logit: Float[Tensor, "batch"]

    @staticmethod
    def of(
        model: ResumableModel,
        tokens: Tensor,
        answer: Ids,
        wrong: Ids | None,
        by: By,
        position: int | None,
        attention_mask: Tensor | None,
        extra: Sequence[str] = (),
    ) -> _Run:
        tokens, real = model.prepare(tokens, attention_mask)
        columns = _columns(tokens, real, position)
        names = [*hooks_needed(model, by), *extra]
        with torch.inference_mode():
            logits, cache = model.run_with_cache(tokens, attention_mask=real, names_filter=names)
        rows = torch.arange(len(tokens), device=tokens.device)
        at_column = logits[rows, columns]
        W_U, b_U = at_least_float32(model.W_U.T), at_least_float32(model.b_U)
        ids = [_ids(answer, tokens, model.cfg.d_vocab)]
        ids += [] if wrong is None else [_ids(wrong, tokens, model.cfg.d_vocab)]
        signs = (1.0, -1.0)
        direction = sum(sign * W_U[i] for sign, i in zip(signs, ids, strict=False))
        assert isinstance(direction, Tensor)
        logit = sum(sign * at_least_float32(at_column)[rows, i] for sign, i in zip(signs, ids, strict=False))
        constant = sum(sign * b_U[i] for sign, i in zip(signs, ids, strict=False))
        assert isinstance(logit, Tensor)
        assert isinstance(constant, Tensor)
        constants = {"unembed bias": constant}
        direction = direction[:, None]
        if model.cfg.norm != "none" and model.cfg.norm_position == "pre":
            final = norm_step(model.ln_final, "ln_final bias", cache["ln_final.hook_scale"][rows, columns][:, None])
            if final.bias is not None:
                constants[final.label] = (direction * final.bias).sum(-1).squeeze(1)
            direction = final.pull_back(direction)
        return _Run(model, cache, by, columns, direction, constants, logit)

    def parts(self) -> list[tuple[tuple[str, ...], Float[Tensor, "component batch"]]]:
        """Return every component's attribution, in the order of the forward pass."""
        found: list[tuple[tuple[str, ...], Tensor]] = []
        direction = self.direction
        small = _select(self.cache, self.columns)
        for step in reversed(list(steps(self.model, small, self.by, len(self.model.blocks)))):
            if isinstance(step, Write):
                found.append((step.labels, step.along(direction).squeeze(-1)))
                continue
            if step.bias is not None:
                found.append(((step.label,), (direction * step.bias).sum(-1).squeeze(1)[None]))
            direction = step.pull_back(direction)
        return [*reversed(found), *(((label,), value[None]) for label, value in self.constants.items())]

    def direction_at(self, layer: int) -> Float[Tensor, "batch d_model"]:
        """Return the answer's direction where ``layer``'s attention writes."""
        direction = self.direction
        small = _select(self.cache, self.columns)
        for step in reversed(list(steps(self.model, small, self.by, len(self.model.blocks)))):
            if isinstance(step, Write) and step.labels[0].startswith(f"L{layer}H"):
                break
            if isinstance(step, NormStep):
                direction = step.pull_back(direction)
        return direction.squeeze(1)


def _select(cache: ActivationCache, columns: Int[Tensor, "batch"]) -> ActivationCache:
    """Return the cache at one column per example, the position axis kept with length 1."""
    rows = torch.arange(len(columns), device=columns.device)
    return ActivationCache(
        {name: value[rows, columns][:, None] for name, value in cache.items() if "hook_pattern" not in name}
    )


def _columns(tokens: Tensor, real: Tensor | None, position: int | None) -> Int[Tensor, "batch"]:
    batch, width = tokens.shape
    if position is not None:
        if not -width <= position < width:
            raise InputError(f"position is {position}; these prompts have columns 0 to {width - 1}")
        return torch.full((batch,), position % width, device=tokens.device)
    columns = torch.arange(width, device=tokens.device)
    return columns.expand(batch, -1).amax(1) if real is None else torch.where(real, columns, -1).amax(1)


def _ids(ids: Ids, tokens: Tensor, d_vocab: int) -> Int[Tensor, "batch"]:
    vector = torch.as_tensor(ids, dtype=torch.long, device=tokens.device).reshape(-1)
    if len(vector) not in (1, len(tokens)):
        raise InputError(f"{len(vector)} token ids for {len(tokens)} prompts; give one, or one per prompt")
    if int(vector.min()) < 0 or int(vector.max()) >= d_vocab:
        raise InputError(f"token id {int(vector.max())} is outside this vocabulary, 0 to {d_vocab - 1}")
    return vector.expand(len(tokens))
