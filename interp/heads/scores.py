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
from jaxtyping import Float
from torch import Tensor

from interp.heads import duplicate_token, induction, previous_token, sink
from interp.heads.knockout import BATCH, token_loss
from interp.prompts import RepeatedTokens
from interp.results import HeadKind
from models.errors import NonFiniteError
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel

PerHead = Float[np.ndarray, "sequence layer head"]


@dataclass(frozen=True)
class Measured:
    """What the two passes leave behind.

    Attributes:
        scores, nulls: per kind, ``[sequence, layer, head]``.
        sink_alpha: attention to the first token, over 64 tokens in which nothing repeats.
        dormant, active: attention of the second half's queries to the first token, without and with a repeat.
        value_ratio: norm of the first token's value over the mean norm of the others'; 1 where all values are 0.
        mean_z: mean over sequences and positions of each head's z.
        loss: next-token loss on the repeated sequences, in nats.
    """

    scores: dict[HeadKind, PerHead]
    nulls: dict[HeadKind, PerHead]
    sink_alpha: PerHead
    dormant: PerHead
    active: PerHead
    value_ratio: Float[np.ndarray, "layer head"]
    mean_z: Float[Tensor, "layer head d_head"]
    loss: Float[np.ndarray, "sequence pos-1"]

    def mean(self, kind: HeadKind) -> Float[np.ndarray, "layer head"]:
        """Return the scores of one kind, mean over sequences."""
        return self.scores[kind].mean(0)


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
    for repeated, control in zip(prompts.repeated.split(BATCH), prompts.control.split(BATCH), strict=True):
        for name, value in _repeated_pass(model, repeated, prompts).items():
            parts[name].append(value)
        tick()
        for name, value in _control_pass(model, control, repeated, prompts).items():
            parts[name].append(value)
        tick()
    whole = {name: torch.cat(values).double().cpu().numpy() for name, values in parts.items()}
    return Measured(
        scores={kind: whole[kind] for kind in ("previous_token", "sink", "induction", "duplicate_token")},
        nulls={
            "previous_token": whole["previous_token_null"],
            "sink": np.full_like(whole["sink"], sink.uniform(prompts.repeated.shape[1])),
            "induction": whole["induction_null"],
            "duplicate_token": whole["duplicate_token_null"],
        },
        sink_alpha=whole["sink_alpha"],
        dormant=whole["dormant"],
        active=whole["active"],
        value_ratio=_ratio(whole["value_first"].mean(0), whole["value_others"].mean(0)),
        mean_z=torch.cat(parts["z"]).mean(0),
        loss=whole["loss"],
    )


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.ones_like(part), where=whole > 0)


def _repeated_pass(model: HookedModel, tokens: Tensor, prompts: RepeatedTokens) -> dict[str, Tensor]:
    read: dict[str, list[Tensor]] = defaultdict(list)
    n_heads = model.cfg.n_heads

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        pattern = pattern.float()
        read["previous_token"].append(previous_token.score(pattern, prompts.n_prepended))
        read["previous_token_null"].append(previous_token.null(pattern, prompts.n_prepended))
        read["induction"].append(induction.score(pattern, tokens))
        read["duplicate_token"].append(duplicate_token.score(pattern, tokens))
        read["sink"].append(sink.score(pattern))
        read["active"].append(sink.resting(pattern, prompts.second_half))

    def values(v: Float[Tensor, "batch pos kv_head d_head"], hook: HookPoint) -> None:
        norms = repeat(v.float().norm(dim=-1), "batch pos kv -> batch pos (kv group)", group=n_heads // v.shape[2])
        read["value_first"].append(norms[:, 0])
        read["value_others"].append(norms[:, 1:].mean(1))

    def outputs(z: Float[Tensor, "batch pos head d_head"], hook: HookPoint) -> None:
        read["z"].append(z.float().mean(1))

    hooks = _on_all_layers(model, hook_pattern=patterns, hook_v=values, hook_z=outputs)
    loss = token_loss(model.run_with_hooks(tokens, fwd_hooks=hooks), tokens)
    return _checked(model, tokens, {name: torch.stack(value, 1) for name, value in read.items()} | {"loss": loss})


def _control_pass(model: HookedModel, control: Tensor, repeated: Tensor, prompts: RepeatedTokens) -> dict[str, Tensor]:
    """Read the control's patterns on the cells where the repeated sequence has its matches."""
    read: dict[str, list[Tensor]] = defaultdict(list)

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        pattern = pattern.float()
        read["sink_alpha"].append(sink.windowed(pattern))
        read["induction_null"].append(induction.score(pattern, repeated))
        read["duplicate_token_null"].append(duplicate_token.score(pattern, repeated))
        read["dormant"].append(sink.resting(pattern, prompts.second_half))

    hooks = _on_all_layers(model, hook_pattern=patterns)
    model.run_with_hooks(control, fwd_hooks=hooks, stop_at_layer=n_layers(model))
    return _checked(model, control, {name: torch.stack(value, 1) for name, value in read.items()})


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
