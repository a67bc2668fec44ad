"""Measuring: one pass over the repeated sequences and one over their controls, reduced head by head on the way.

Each layer's pattern is reduced to a number per sequence and head as it passes, so that no pattern is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.prompts import RepeatedTokens
from models.errors import NonFiniteError
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.protocol import HookedModel

if TYPE_CHECKING:
    from interp.detectors.detector import Detector, Reading

BATCH = 8

PerHead = Float[np.ndarray, "sequence layer head"]
Thirds = Float[np.ndarray, "layer head third"]


@dataclass(frozen=True)
class Measured:
    """What the two passes leave behind.

    Attributes:
        scores, nulls: per kind, ``[sequence, layer, head]``.
        thirds: per kind, the mean of the queries in each third of the columns; NaN where there are none.
        extra: description by name, ``[sequence, layer, head]``.
        mean_z: mean over sequences and positions of each head's z.
        loss: next-token loss on the repeated sequences, in nats.
    """

    scores: dict[str, PerHead]
    nulls: dict[str, PerHead]
    thirds: dict[str, Thirds]
    extra: dict[str, PerHead]
    mean_z: Float[Tensor, "layer head d_head"]
    loss: Float[np.ndarray, "sequence pos-1"]

    def mean(self, kind: str) -> Float[np.ndarray, "layer head"]:
        """Return the scores of one kind, mean over sequences."""
        return self.scores[kind].mean(0)


def measure(
    model: HookedModel, prompts: RepeatedTokens, detectors: Iterable[Detector], tick: Callable[[], None]
) -> Measured:
    """Run the model on all sequences, and let every detector read every head.

    Args:
        model: a decoder.
        prompts: the sequences.
        detectors: what is looked for.
        tick: called after every batch.

    Raises:
        NonFiniteError: NaN or inf in the model, with the first hook at which it appears.
    """
    detectors = list(detectors)
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for i in range(0, len(prompts.repeated), BATCH):
        some = prompts.some(slice(i, i + BATCH))
        for one_pass in (_repeated_pass, _control_pass):
            for name, value in one_pass(model, some, detectors).items():
                parts[name].append(value)
            tick()
    whole = {name: torch.cat(values).double().cpu().numpy() for name, values in parts.items()}

    def starting(start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): value for name, value in whole.items() if name.startswith(start)}

    scores = {one.name: one.of_sequences(whole[f"score {one.name}"]) for one in detectors}
    nulls: dict[str, PerHead] = {}
    for one in detectors:
        of_passes = [whole[name] for name in (f"null {one.name}", f"null of control {one.name}") if name in whole]
        nulls[one.name] = np.max(of_passes, axis=0) if of_passes else np.zeros_like(scores[one.name])
    return Measured(
        scores=scores,
        nulls=nulls,
        thirds={one.name: _by_third(whole[f"sums {one.name}"], whole[f"counts {one.name}"]) for one in detectors},
        extra=starting("extra "),
        mean_z=torch.cat(parts["z"]).mean(0),
        loss=whole["loss"],
    )


def _by_third(sums: np.ndarray, counts: np.ndarray) -> Thirds:
    total, n = sums.sum(0), counts.sum(0)
    return np.divide(total, n, out=np.full_like(total, np.nan), where=n > 0)


def _repeated_pass(model: HookedModel, prompts: RepeatedTokens, detectors: Sequence[Detector]) -> dict[str, Tensor]:
    read: dict[str, list[Tensor]] = defaultdict(list)
    n_heads, tokens = model.cfg.n_heads, prompts.repeated

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        for one in detectors:
            _keep(read, one, one.on_repeated(pattern.float(), prompts), "null")

    def values(v: Float[Tensor, "batch pos kv_head d_head"], hook: HookPoint) -> None:
        of_heads = v.float().repeat_interleave(n_heads // v.shape[2], dim=2)
        for one in detectors:
            for name, value in one.on_values(of_heads).items():
                read[f"extra {name}"].append(value)

    def outputs(z: Float[Tensor, "batch pos head d_head"], hook: HookPoint) -> None:
        read["z"].append(z.float().mean(1))

    hooks = _on_all_layers(model, hook_pattern=patterns, hook_v=values, hook_z=outputs)
    loss = model.run_with_hooks(tokens, fwd_hooks=hooks, return_type="loss", loss_per_token=True)
    return _checked(model, tokens, {name: torch.stack(value, 1) for name, value in read.items()} | {"loss": loss})


def _control_pass(model: HookedModel, prompts: RepeatedTokens, detectors: Sequence[Detector]) -> dict[str, Tensor]:
    """Read the control's patterns; its cells are those where the repeated sequence has its matches."""
    read: dict[str, list[Tensor]] = defaultdict(list)

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        for one in detectors:
            _keep(read, one, one.on_control(pattern.float(), prompts), "null of control")

    hooks = _on_all_layers(model, hook_pattern=patterns)
    model.run_with_hooks(prompts.control, fwd_hooks=hooks, stop_at_layer=n_layers(model))
    return _checked(model, prompts.control, {name: torch.stack(value, 1) for name, value in read.items()})


def _keep(read: dict[str, list[Tensor]], detector: Detector, reading: Reading, null: str) -> None:
    kind = detector.name
    if reading.rows is not None:
        sums, counts = reading.rows.by_third()
        read[f"sums {kind}"].append(sums)
        read[f"counts {kind}"].append(counts[:, None].expand_as(sums))
        read[f"score {kind}"].append(reading.rows.mean() if reading.score is None else reading.score)
    if reading.null is not None:
        read[f"{null} {kind}"].append(reading.null)
    for name, value in reading.extra.items():
        read[f"extra {name}"].append(value)


def each_pattern(
    model: HookedModel,
    tokens: Tensor,
    of: Callable[[Float[Tensor, "batch head query_pos key_pos"]], Float[Tensor, "batch head"]],
) -> PerHead:
    """Return a number of every head's pattern, on any sequences."""
    read: list[Tensor] = []

    def patterns(pattern: Tensor, hook: HookPoint) -> None:
        read.append(of(pattern.float()))

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
