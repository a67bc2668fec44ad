"""The state of an unfinished training run on disk: written as a whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.errors import ConfigError, LoadError


@dataclass
class RunState:
    """How far a run has come.

    Attributes:
        step: steps done.
        steps: taken in each finished phase.
        losses: of every step.
        history: rows of figures.
    """

    step: int = 0
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def phase(self) -> int:
        """Index of the phase in progress."""
        return len(self.steps)


def save_checkpoint(
    path: Path, run: dict[str, Any], state: RunState, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write weights, optimiser state and ``state``; a file that was there before stays until the new one is complete.

    Args:
        run: what identifies the run, plain values; ``load_checkpoint`` compares it.
    """
    unfinished = path.with_name(path.name + ".part")
    content = {"run": run, "state": vars(state), "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    try:
        torch.save(content, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_checkpoint(path: Path, run: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> RunState:
    """Restore weights and optimiser in place, and return the state.

    Raises:
        LoadError: the file is not a checkpoint.
        ConfigError: it belongs to another run.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        saved = content["run"]
    except Exception as error:
        raise LoadError(f"{path} is not a checkpoint of a training run ({error}); delete it to start anew") from None
    differing = [key for key in run if saved.get(key) != run[key]]
    if differing:
        raise ConfigError(
            f"{path} belongs to another run: {', '.join(differing)} differ; delete it, or give another path"
        )
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return RunState(**content["state"])
