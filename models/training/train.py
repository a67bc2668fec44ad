"""A training loop for decoders: AdamW, warm-up, gradient clipping, phases with their own data and schedule.

``train`` runs any decoder on any stream of batches. A stream is a function of the step, so that an interrupted run
resumes with the same data and ends with the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch

from models.decoder import HookedDecoder
from models.errors import ConfigError, NonFiniteError
from models.training.batch import Batch
from models.training.checkpoint import RunState, load_checkpoint, save_checkpoint
from models.training.penalty import HeadPenalty, head_writes

Figures = Mapping[str, float]
History = Sequence[Figures]


@dataclass(frozen=True, kw_only=True)
class Optimiser:
    """AdamW and what surrounds it.

    Args:
        lr: learning rate after warm-up.
        betas, weight_decay: AdamW's own; decay applies to every parameter.
        warmup: steps over which the rate rises linearly to ``lr``.
        clip: largest norm of the gradient, None for no clipping.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    warmup: int = 0
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.warmup < 0 or (self.clip is not None and self.clip <= 0):
            raise ConfigError(
                f"lr {self.lr}, warmup {self.warmup}, clip {self.clip}; expected lr > 0, warmup >= 0, clip > 0 or None"
            )


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of training with one stream of data.

    Args:
        batches: the stream, a function of the phase's step, from 0.
        steps: the length, or with ``until`` the longest.
        schedule: ``constant``, or ``linear``: the rate falls from ``lr`` to 0 over ``steps``.
        until: ends the phase early; asked after every evaluation, with the history so far.
        penalty: a price on what heads write, added to the loss that is minimised; not to the one recorded.
        anew: begin with a new optimiser: no moments, and the warm-up again.
    """

    batches: Callable[[int], Batch]
    steps: int
    schedule: Literal["constant", "linear"] = "constant"
    until: Callable[[History], bool] | None = None
    penalty: HeadPenalty | None = None
    anew: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"a phase has {self.steps} steps; expected at least 1")
        if self.schedule not in ("constant", "linear"):
            raise ConfigError(f"schedule is {self.schedule!r}; expected 'constant' or 'linear'")

    def rate(self, step_of_phase: int) -> float:
        """Return the factor on the learning rate."""
        return 1.0 if self.schedule == "constant" else 1.0 - step_of_phase / self.steps


@dataclass(frozen=True)
class Progress:
    """What a progress callback is told after each step.

    Attributes:
        step: steps done.
        at_most: steps the run takes if no phase ends early from here on.
        loss: of this step, nats.
        figures: the latest of ``evaluate``, empty without it.
    """

    step: int
    at_most: int
    loss: float
    figures: Figures


@dataclass(frozen=True)
class TrainingRecord:
    """What was trained, how, and how it went.

    Attributes:
        config: of the model, as plain values.
        optimiser: as plain values.
        seed: as the caller gave it.
        steps: taken in each phase.
        losses: of each step's batch before that step's update, in nats.
        history: rows of ``step`` (steps done) and what ``evaluate`` gave, from the untrained model to the trained one;
            empty without ``evaluate``.
    """

    config: Mapping[str, Any]
    optimiser: Mapping[str, Any]
    seed: int
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    history: tuple[Figures, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values."""
        return asdict(self)


def train(
    model: HookedDecoder,
    phases: Sequence[Phase],
    optimiser: Optimiser,
    *,
    seed: int = 0,
    evaluate: Callable[[HookedDecoder], Figures] | None = None,
    evaluate_every: int = 10,
    progress: Callable[[Progress], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 50,
) -> tuple[HookedDecoder, TrainingRecord]:
    """Train ``model`` in place.

    Args:
        model: any decoder, on any device.
        phases: one after another; the optimiser's state carries over, except to one that begins anew.
        optimiser: learning rate and the like.
        seed: for the record; the loop itself draws nothing.
        evaluate: figures to follow: before the first step, every ``evaluate_every`` steps and at the end of a phase.
        progress: called after every step.
        checkpoint: a file for the state of the run, rewritten every ``checkpoint_every`` steps, always as a whole.
            Where it exists the run goes on from it, to the same result; at the end it is removed.

    Returns:
        The model, trained, and the record.

    Raises:
        ConfigError: no phases, ``until`` without ``evaluate``, or a checkpoint of another run.
        NonFiniteError: the loss became NaN or inf.

    >>> from models.config import DecoderConfig
    >>> model = HookedDecoder(DecoderConfig(n_layers=1, d_model=8, n_heads=1, d_vocab=4, n_ctx=8))
    >>> data = Batch(torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]]))
    >>> model, record = train(model, [Phase(batches=lambda step: data, steps=20)], Optimiser(lr=1e-2))
    >>> record.steps, record.losses[-1] < record.losses[0]
    ((20,), True)
    """
    _check(model, phases, evaluate, evaluate_every, checkpoint_every)
    adam = torch.optim.AdamW(
        model.parameters(), lr=optimiser.lr, betas=optimiser.betas, weight_decay=optimiser.weight_decay
    )
    run: dict[str, Any] = {
        "config": model.cfg.to_dict(),
        "optimiser": asdict(optimiser),
        "seed": seed,
        "phases": [[phase.steps, phase.schedule, repr(phase.penalty), phase.anew] for phase in phases],
    }
    if checkpoint is not None and checkpoint.exists():
        state = load_checkpoint(checkpoint, run, model, adam)
    else:
        state = RunState(history=[] if evaluate is None else [{"step": 0, **evaluate(model)}])

    while state.phase < len(phases):
        phase, step_of_phase = phases[state.phase], state.step - sum(state.steps)
        if phase.anew and step_of_phase == 0:
            adam.state.clear()
        warm = min(1.0, (state.step - _begun(phases, state) + 1) / max(optimiser.warmup, 1))
        for group in adam.param_groups:
            group["lr"] = optimiser.lr * warm * phase.rate(step_of_phase)
        state.losses.append(_step(model, phase, step_of_phase, adam, optimiser.clip))
        state.step += 1

        ends = step_of_phase + 1 == phase.steps
        if evaluate is not None and (ends or state.step % evaluate_every == 0):
            state.history.append({"step": state.step, **evaluate(model)})
            ends = ends or (phase.until is not None and phase.until(state.history))
        if ends:
            state.steps.append(step_of_phase + 1)
        if checkpoint is not None and state.step % checkpoint_every == 0:
            save_checkpoint(checkpoint, run, state, model, adam)
        if progress is not None:
            at_most = sum(state.steps) + sum(phase.steps for phase in phases[state.phase :])
            progress(Progress(state.step, at_most, state.losses[-1], state.history[-1] if state.history else {}))

    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return model, TrainingRecord(
        config=run["config"],
        optimiser=run["optimiser"],
        seed=seed,
        steps=tuple(state.steps),
        losses=tuple(state.losses),
        history=tuple(state.history),
    )


def _begun(phases: Sequence[Phase], state: RunState) -> int:
    """Return the step at which the optimiser in use began."""
    begins = [0, *accumulate(state.steps)]
    return max(begins[phase] for phase in range(state.phase + 1) if phase == 0 or phases[phase].anew)


def _step(
    model: HookedDecoder, phase: Phase, step_of_phase: int, adam: torch.optim.Optimizer, clip: float | None
) -> float:
    """Take one step and return the loss before it."""
    batch = phase.batches(step_of_phase)
    if phase.penalty is None:
        loss = minimised = batch.loss(model)
    else:
        with head_writes(model) as writes:
            loss = batch.loss(model)
        minimised = loss + phase.penalty.at(step_of_phase, writes)
    value = loss.item()
    if not math.isfinite(value):
        raise NonFiniteError(f"the loss became {value}; lower lr, set clip, or find the hook with model.check_finite()")
    adam.zero_grad()
    minimised.backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    adam.step()
    return value


def _check(
    model: HookedDecoder, phases: Sequence[Phase], evaluate: object, evaluate_every: int, checkpoint_every: int
) -> None:
    if not phases or evaluate_every < 1 or checkpoint_every < 1:
        raise ConfigError(
            f"{len(phases)} phases, evaluate_every {evaluate_every}, checkpoint_every {checkpoint_every}; "
            "expected at least 1 of each"
        )
    if evaluate is None and any(phase.until is not None for phase in phases):
        raise ConfigError("a phase with until needs evaluate: until is asked after every evaluation")
    for phase in phases:
        if phase.penalty is not None:
            phase.penalty.check(model)
