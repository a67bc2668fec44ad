"""The tools that take the models apart."""

from interp.heads.find import find_heads
from interp.interventions import (
    AblationResult,
    JointAblation,
    PatchingResult,
    ablate,
    ablation_sweep,
    activation_patching,
    steer,
)
from interp.metrics import KL, Logit, LogitDifference, LogProbability, Loss, Metric, Probability, Rank
from interp.results import HeadReport
from interp.sites import Head, parse_head

__all__ = [
    "AblationResult",
    "Head",
    "HeadReport",
    "JointAblation",
    "KL",
    "LogProbability",
    "Logit",
    "LogitDifference",
    "Loss",
    "Metric",
    "PatchingResult",
    "Probability",
    "Rank",
    "ablate",
    "ablation_sweep",
    "activation_patching",
    "find_heads",
    "parse_head",
    "steer",
]
