"""Direct logit attribution: which write raised an answer's logit, and by how much.

    logit_t = norm(sum_c write_c) . W_U[:, t] + b_U[t]  =  sum_c write_c . r_t  +  constants

with r_t the unembedding's column pulled back through the final norm, whose scale is *frozen* at this run (post-norm:
through all norms on the way). All attributions and the constants add up to the logit.

Frozen means: a write's attribution counts what it adds directly, not how it changes the norm, nor what later layers
make of it. On GPT-2 small that is off by about half of the true direct effect; an ablation measures the whole effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any, Self

import torch
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.checks import Followed, followed_tokens
from interp.finite import check_computed, check_model
from interp.precision import at_least_float32
from interp.readout.writes import By, NormStep, Write, hooks_needed, norm_step, steps
from interp.results import Result, described, plain_fields
from interp.sites import Head, parse_head
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.parts.norm import Norm
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogitAttribution(Result):
    """The parts of a logit, or of a difference of two, with frozen norms.

    Attributes:
        tokens: the prompts, one string per token, without padding.
        answer: the text of each prompt's answer; of a difference ``"' Paris' - ' Rome'"``.
        labels: components as in ``ResidualWrites``, then ``ln_final bias`` and ``unembed bias``.
        values: ``[component, batch]``, in logits; positive raises the answer.
        logit: the model's own logit or difference, ``[batch]``; the values add up to it.
        columns: where each example's logit was read, ``[batch]``.
        by: ``component``, ``head`` or ``neuron``.
        model, config, versions: what computed this.
    """

    tokens: tuple[tuple[str, ...], ...]
    answer: tuple[str, ...]
    labels: tuple[str, ...]
    values: Float[Tensor, "component batch"]
    logit: Float[Tensor, "batch"]
    columns: Int[Tensor, "batch"]
    by: By
    model: str
    config: dict[str, Any]
    versions: dict[str, str]

    @property
    def what(self) -> str:
        """What was attributed, in a few words."""
        return self.answer[0] if len(set(self.answer)) == 1 else "each prompt's answer"

    def remainder(self) -> Float[Tensor, "batch"]:
        """Return the logit minus the sum of all values: rounding only."""
        return self.logit - self.values.sum(0)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per component with its mean over the batch, the largest magnitude first."""
        import pandas as pd

        frame = pd.DataFrame({"component": self.labels, "logits": self.values.mean(1).tolist()})
        return frame.sort_values("logits", key=abs, ascending=False, ignore_index=True, kind="stable")

    def headline(self) -> str:
        mean = float(self.logit.mean())
        return f"{self.what} in {self.model}, {mean:.3f} logits from {len(self.labels)} parts (by {self.by})"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw the largest parts; see ``interp.plots.plot_logit_attribution``."""
        from interp.plots import plot_logit_attribution

        return plot_logit_attribution(self, dark=dark)

    def summary_html(self) -> str:
        """Return the largest parts as a table."""
        table: str = self.to_frame().head(10).to_html(index=False, float_format="{:.3g}".format)
        return f"<p>What wrote {escape(self.what)}, norms frozen</p>{table}"

    def to_dict(self) -> dict[str, Any]:
        return plain_fields(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        read = {field.name: values[field.name] for field in fields(cls)}
        read |= {name: tuple(values[name]) for name in ("answer", "labels")}
        read |= {name: torch.tensor(values[name]) for name in ("values", "logit", "columns")}
        return cls(**read | {"tokens": tuple(map(tuple, values["tokens"]))})


@dataclass(frozen=True, eq=False)
class SourceAttribution:
    """A head's attribution by the position it attends to.

    Attributes:
        head: which head.
        values: ``[batch, key_pos]``, in logits: pattern x (v . W_O . direction); they add up to the head's own.
        pattern: the attention they come with, ``[batch, key_pos]``.
    """

    head: Head
    values: Float[Tensor, "batch key_pos"]
    pattern: Float[Tensor, "batch key_pos"]


@torch.no_grad()
def logit_attribution(
    model: ResumableModel,
    tokens: Int[Tensor, "batch pos"],
    answer: Followed,
    wrong: Followed | None = None,
    *,
    by: By = "head",
    position: int | None = None,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
) -> LogitAttribution:
    """Attribute an answer's logit, or logit(answer) - logit(wrong), to what was written to the stream.

    Args:
        model: a ``HookedDecoder``.
        tokens: prompts, ids or text.
        answer, wrong: a token id, a text that is one token, or one of these per example.
        by: ``component`` (sublayers), ``head`` (attention by head), ``neuron`` (MLPs by neuron too).
        position: the column whose logit is meant; by default each example's last real token.
        attention_mask: True at real tokens.

    Peak memory: a cache of what was written (per token and layer d_model, n_heads x d_head or d_mlp numbers), and the
    logits of one position per example.

    Raises:
        InputError: ids, a position or a ``by`` that do not fit.
        NonFiniteError: NaN or inf, with the first hook at which it appears.

    >>> from models import DecoderConfig, HookedDecoder
    >>> model = HookedDecoder(DecoderConfig(n_layers=1, d_model=16, n_heads=2, d_vocab=10, n_ctx=8))
    >>> found = logit_attribution(model, torch.tensor([[1, 2, 3]]), answer=4, wrong=5)
    >>> found.labels
    ('embed', 'pos_embed', 'L0H0', 'L0H1', 'L0 attn bias', 'L0 mlp', 'ln_final bias', 'unembed bias')
    >>> bool(found.remainder().abs() < 1e-5)
    True
    """
    run = _Run.of(model, tokens, answer, wrong, by, position, attention_mask)
    labels: list[tuple[str, ...]] = []
    values: list[Float[Tensor, "component batch"]] = []
    for step, direction in run.backwards():
        if isinstance(step, Write):
            labels.append(step.labels)
            values.append(step.along(direction).squeeze(-1))
        elif step.bias is not None:
            labels.append((step.label,))
            values.append((direction * step.bias).sum(-1).T)
    named = tuple(label for group in reversed(labels) for label in group)
    constants = [value[None] for value in run.constants.values()]
    return LogitAttribution(
        tokens=run.tokens,
        answer=run.answer,
        labels=(*named, *run.constants),
        values=torch.cat([*reversed(values), *constants]),
        logit=run.logit,
        columns=run.columns,
        by=by,
        **described(model),
    )


@torch.no_grad()
def source_attribution(
    model: ResumableModel,
    tokens: Int[Tensor, "batch pos"],
    head: str | tuple[int, int] | Head,
    answer: Followed,
    wrong: Followed | None = None,
    *,
    position: int | None = None,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
) -> SourceAttribution:
    """Split one head's attribution by source position, through its pattern.

    Args:
        head: ``L5H1``, ``5.1`` or ``(5, 1)``; the others are those of ``logit_attribution``.

    Raises:
        InputError: a head out of range, ids or a position that do not fit.
    """
    name = parse_head(head, model.cfg)
    own = [f"blocks.{name.layer}.attn.{hook}" for hook in ("hook_pattern", "hook_v")]
    run = _Run.of(model, tokens, answer, wrong, "head", position, attention_mask, extra=own)
    direction = next(
        direction for step, direction in run.backwards() if isinstance(step, Write) and str(name) in step.labels
    )
    pattern, v = (at_least_float32(run.cache[hook]) for hook in own)
    pattern = pattern[torch.arange(len(pattern), device=pattern.device), name.head, run.columns]
    W_O = at_least_float32(model.blocks[name.layer].attn.W_O[name.head])
    read = einsum(direction.squeeze(1), W_O, "batch d_model, d_head d_model -> batch d_head")
    written = einsum(v[:, :, name.head // model.cfg.group_size], read, "batch key d_head, batch d_head -> batch key")
    return SourceAttribution(name, pattern * written, pattern)


@dataclass(frozen=True, eq=False)
class _Run:
    """One cached run, the columns that predict, and the answer's direction in the last stream.

    Attributes:
        cache: of the whole run.
        direction: what of the stream leaving the last block raises the logit, the final norm frozen.
        constants: what the logit has beside the stream's part, by label, ``[batch]``.
        tokens, answer: as in ``LogitAttribution``.
    """

    model: ResumableModel
    cache: ActivationCache
    by: By
    columns: Int[Tensor, "batch"]
    direction: Float[Tensor, "batch 1 d_model"]
    constants: dict[str, Float[Tensor, "batch"]]
    logit: Float[Tensor, "batch"]
    tokens: tuple[tuple[str, ...], ...]
    answer: tuple[str, ...]

    @staticmethod
    def of(
        model: ResumableModel,
        tokens: Tensor,
        answer: Followed,
        wrong: Followed | None,
        by: By,
        position: int | None,
        attention_mask: Tensor | None,
        extra: Sequence[str] = (),
    ) -> _Run:
        needed = hooks_needed(model, by)
        tokens, real = model.prepare(tokens, attention_mask)
        columns = _columns(tokens, real, position)
        check_model(model, tokens, real=real)
        signed = [(1.0, _ids(model, answer, tokens))]
        if wrong is not None:
            signed.append((-1.0, _ids(model, wrong, tokens)))
        last = f"blocks.{len(model.blocks) - 1}.hook_resid_post"
        names = [name for name in needed if "resid" not in name or name == last]
        _, cache = model.run_with_cache(tokens, attention_mask=real, names_filter=[*names, *extra], return_type=None)
        rows = torch.arange(len(tokens), device=tokens.device)
        logits = at_least_float32(model.unembed(model.ln_final(cache[last][rows, columns])))

        check_computed(model, tokens, real=real, computed={"the logits": logits})

        def of_ids(pick: Float[Tensor, "..."]) -> Float[Tensor, "batch ..."]:
            return torch.stack([sign * at_least_float32(pick[ids]) for sign, ids in signed]).sum(0)

        logit = torch.stack([sign * logits[rows, ids] for sign, ids in signed]).sum(0)
        direction, constants = of_ids(model.W_U.T)[:, None], {"unembed bias": of_ids(model.b_U)}
        if isinstance(norm := model.ln_final, Norm):
            final = norm_step(norm, "ln_final bias", cache["ln_final.hook_scale"][rows, columns][:, None])
            if final.bias is not None:
                constants = {final.label: (direction * final.bias).sum(-1).squeeze(1)} | constants
            direction = final.pull_back(direction)
        rows_shown = [row if real is None else row[real[i]] for i, row in enumerate(tokens)]
        texts = [[repr(text) for text in model.to_str_tokens(ids)] for _, ids in signed]
        return _Run(
            model,
            cache,
            by,
            columns,
            direction,
            constants,
            logit,
            tuple(tuple(model.to_str_tokens(row)) for row in rows_shown),
            tuple(" - ".join(pair) for pair in zip(*texts, strict=True)),
        )

    def backwards(self) -> Iterator[tuple[Write | NormStep, Float[Tensor, "batch 1 d_model"]]]:
        """Give every write and norm, the last first, with the answer's direction in the stream right after it."""
        rows = torch.arange(len(self.columns), device=self.columns.device)
        at_columns = ActivationCache(
            {
                name: value[rows, self.columns][:, None]
                for name, value in self.cache.items()
                if not name.endswith(("hook_pattern", "attn.hook_v"))
            }
        )
        direction = self.direction
        for step in reversed(list(steps(self.model, at_columns, self.by, len(self.model.blocks)))):
            yield step, direction
            if isinstance(step, NormStep):
                direction = step.pull_back(direction)


def _columns(tokens: Tensor, real: Tensor | None, position: int | None) -> Int[Tensor, "batch"]:
    """Return each example's column: the one asked for, or that of the last real token."""
    batch, width = tokens.shape
    columns = torch.arange(width, device=tokens.device).expand(batch, -1)
    if position is None:
        return columns.amax(1) if real is None else torch.where(real, columns, -1).amax(1)
    if not -width <= position < width:
        raise InputError(f"position is {position}; these prompts have columns 0 to {width - 1}")
    chosen = columns[:, position % width]
    if real is not None and not real[:, position].all():
        raise InputError(
            f"position is {position}, which is padding in some of these prompts; leave it out for the last token"
        )
    return chosen


def _ids(model: ResumableModel, given: Followed, tokens: Tensor) -> Int[Tensor, "batch"]:
    return torch.tensor(followed_tokens(model, given, len(tokens), "token id"), device=tokens.device)
