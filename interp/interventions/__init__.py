"""Changing activations and measuring what follows."""

from interp.interventions.ablation import ablate, ablation_sweep
from interp.interventions.ablation_result import AblationResult, JointAblation
from interp.interventions.activation_patching import activation_patching
from interp.interventions.patching_result import PatchingResult
from interp.interventions.steer import steer

__all__ = [
    "AblationResult",
    "JointAblation",
    "PatchingResult",
    "ablate",
    "ablation_sweep",
    "activation_patching",
    "steer",
]
