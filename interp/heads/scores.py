"""Measuring: one pass over the repeated sequences and one over their controls, reduced head by head on the way.

Each layer's pattern is reduced to a number per sequence and head as it passes, so that no pattern is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from einops import repeat
from jaxtyping import Bool, Float
from torch import Tensor

from interp.head_evidence import HeadKind
from interp.heads import duplicate_token, induction, previous_token, sink
from interp.heads.cells import Rows
from interp.prompts import RepeatedTokens
from models.errors import NonFiniteError
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel

BATCH = 8

PerHead = Float[np.ndarray, "sequence layer head"]
Thirds = Float[np.ndarray, "layer head third"]


@dataclass(frozen=True)
class Measured:
    """What the two passes leave behind.

    Attributes:
        scores, nulls: per kind, ``[sequence, layer, head]``; of sinks, whether the head is one on this sequence.
        thirds: per kind, the score of the queries in each third of the columns; NaN where there are none.
        alpha: attention to the first token, over 64 tokens in which nothing repeats.
        dormant, active: attention of the second copy's queries to the first token, without and with a repeat.
        value_ratio: norm of the first token's value over the mean norm of the others'; 0 where it is 0.
        mean_z: mean over sequences and positions of each head's z.
        loss: next-token loss on the repeated sequences, in nats.
    """

    scores: dict[HeadKind, PerHead]
    nulls: dict[HeadKind, PerHead]
    thirds: dict[HeadKind, Thirds]
    alpha: PerHead
    dormant: PerHead
    active: PerHead
    value_ratio: Float[np.ndarray, "layer head"]
    mean_z: Float[Tensor, "layer head d_head"]
    loss: Float[np.ndarray, "sequence pos-1"]

    def mean(self, kind: HeadKind) -> Float[np.ndarray, "layer head"]:
        """Return the scores of one kind, mean over sequences."""
        return self.scores[kind].mean(0)

    def best_first(self, kind: HeadKind) -> Float[np.ndarray, "layer head"]:
        """Return what heads of a kind are ranked by: the score, among sinks of the same share their attention."""
        return self.mean(kind) + (1e-6 * self.alpha.mean(0) if kind == "sink" else 0.0)


def measure(model: HookedModel, prompts: RepeatedTokens, tick: Callable[[], None]) -> Measured:
    """Run the model on all sequences, and score every head for every kind.

    Args:
        model: a decoder.
        prompts: the sequences.
        tick: called after every batch.

    Raises:
        NonFiniteError: NaN or inf in the model, with the first hook at which it appears.
    """
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for i in range(0, len(prompts.repeated), BATCH):
        some = prompts.some(slice(i, i + BATCH))
        for one_pass in (_repeated_pass, _control_pass):
            for name, value in one_pass(model, some).items():
                parts[name].append(value)
            tick()
    whole = {name: torch.cat(values).double().cpu().numpy() for name, values in parts.items()}
    # A head whose values are all 0 writes as little there as elsewhere; its first value is as long as the others.
    drained = whole["value_first"].mean(0) == 0
    longer = np.where(whole["value_others"].mean(0) > 0, whole["value_others"].mean(0), 1.0)
    return Measured(
        scores={
            "previous_token": whole["previous_token"],
            "sink": sink.rests(whole["alpha"]),
            "induction": whole["induction"],
            "duplicate_token": whole["duplicate_token"],
        },
        nulls={
            "previous_token": whole["previous_token_null"],
            "sink": np.zeros_like(whole["alpha"]),
            "induction": np.maximum(whole["induction_null"], whole["induction_control"]),
            "duplicate_token": np.maximum(whole["duplicate_token_null"], whole["duplicate_token_control"]),
        },
        thirds={
            kind: _by_third(whole[f"{kind}_sums"], whole[f"{kind}_counts"])
            for kind in ("previous_token", "sink", "induction", "duplicate_token")
        },
        alpha=whole["alpha"],
        dormant=whole["dormant"],
        active=whole["active"],
        value_ratio=np.where(drained, 0.0, whole["value_first"].mean(0) / longer),
        mean_z=torch.cat(parts["z"]).mean(0),
        loss=whole["loss"],
    )


def _by_third(sums: np.ndarray, counts: np.ndarray) -> Thirds:
    total, n = sums.sum(0), counts.sum(0)
    return np.divide(total, n, out=np.full_like(total, np.nan), where=n > 0)


def _repeated_pass(model: HookedModel, prompts: RepeatedTokens) -> dict[str, Tensor]:
    read: dict[str, list[Tensor]] = defaultdict(list)
    n_heads, tokens, again = model.cfg.n_heads, prompts.repeated, prompts.again

    def add(kind: HeadKind, rows: Rows, null: Tensor) -> None:
        read[kind].append(rows.mean())
        read[f"{kind}_null"].append(null)
        _add_thirds(read, kind, rows)

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        pattern = pattern.float()
        lead = prompts.n_prepended
        add("previous_token", previous_token.rows(pattern, lead), previous_token.null(pattern, lead))
        add("induction", induction.rows(pattern, tokens), induction.neighbours(pattern, tokens))
        add("duplicate_token", duplicate_token.rows(pattern, tokens), duplicate_token.neighbours(pattern, tokens))
        read["active"].append(_resting(pattern, again))

    def values(v: Float[Tensor, "batch pos kv_head d_head"], hook: HookPoint) -> None:
        norms = repeat(v.float().norm(dim=-1), "batch pos kv -> batch pos (kv group)", group=n_heads // v.shape[2])
        read["value_first"].append(norms[:, 0])
        read["value_others"].append(norms[:, 1:].mean(1))

    def outputs(z: Float[Tensor, "batch pos head d_head"], hook: HookPoint) -> None:
        read["z"].append(z.float().mean(1))

    hooks = _on_all_layers(model, hook_pattern=patterns, hook_v=values, hook_z=outputs)
    loss = model.run_with_hooks(tokens, fwd_hooks=hooks, return_type="loss", loss_per_token=True)
    return _checked(model, tokens, {name: torch.stack(value, 1) for name, value in read.items()} | {"loss": loss})


def _control_pass(model: HookedModel, prompts: RepeatedTokens) -> dict[str, Tensor]:
    """Read the control's patterns on the cells where the repeated sequence has its matches."""
    read: dict[str, list[Tensor]] = defaultdict(list)
    repeated, again = prompts.repeated, prompts.again
    everywhere = torch.ones_like(again)

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        pattern = pattern.float()
        read["alpha"].append(sink.alpha(pattern))
        _add_thirds(read, "sink", Rows(pattern[..., 0], everywhere))
        read["induction_control"].append(induction.score(pattern, repeated))
        read["duplicate_token_control"].append(duplicate_token.score(pattern, repeated))
        read["dormant"].append(_resting(pattern, again))

    hooks = _on_all_layers(model, hook_pattern=patterns)
    model.run_with_hooks(prompts.control, fwd_hooks=hooks, stop_at_layer=n_layers(model))
    return _checked(model, prompts.control, {name: torch.stack(value, 1) for name, value in read.items()})


def _add_thirds(read: dict[str, list[Tensor]], kind: HeadKind, rows: Rows) -> None:
    sums, counts = rows.by_third()
    read[f"{kind}_sums"].append(sums)
    read[f"{kind}_counts"].append(counts[:, None].expand_as(sums))


def _resting(pattern: Tensor, queries: Bool[Tensor, "batch pos"]) -> Float[Tensor, "batch head"]:
    """Return the mean attention of ``queries`` to the first token."""
    return Rows(pattern[..., 0], queries).mean()


def sink_alpha(model: HookedModel, tokens: Tensor) -> PerHead:
    """Return every head's attention to the first token, on any sequences."""
    read: list[Tensor] = []

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        read.append(sink.alpha(pattern.float()))

    model.run_with_hooks(tokens, fwd_hooks=_on_all_layers(model, hook_pattern=patterns), stop_at_layer=n_layers(model))
    return torch.stack(read, 1).double().cpu().numpy()


def shown_patterns(
    model: HookedModel, tokens: Tensor, layers: Sequence[int]
) -> dict[int, Float[np.ndarray, "head query_pos key_pos"]]:
    """Return the patterns of some layers on one sequence."""
    patterns: dict[int, np.ndarray] = {}

    def keep(pattern: Tensor, hook: HookPoint) -> None:
        patterns[cast(int, hook.layer)] = pattern[0].double().cpu().numpy()

    hooks: list[Hook] = [(f"blocks.{layer}.attn.hook_pattern", keep) for layer in layers]
    model.run_with_hooks(tokens[None], fwd_hooks=hooks, stop_at_layer=max(layers) + 1)
    return patterns


def n_layers(model: HookedModel) -> int:
    """Return how many blocks a decoder has."""
    return cast(Any, model.cfg).n_layers


def _on_all_layers(model: HookedModel, **functions: Callable[..., None]) -> list[Hook]:
    return [
        (f"blocks.{layer}.attn.{name}", function)
        for layer in range(n_layers(model))
        for name, function in functions.items()
    ]


def _checked(model: HookedModel, tokens: Tensor, read: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what was read. Raises NonFiniteError where any of it is NaN or inf."""
    bad = [name for name, value in read.items() if not value.isfinite().all()]
    if bad:
        model.check_finite(tokens)
        raise NonFiniteError(f"{', '.join(bad)} of some heads are NaN or inf, though every hook is finite")
    return read
