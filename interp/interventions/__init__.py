"""Changing activations and measuring what follows."""

from interp.interventions.ablation import ablate, ablation_sweep
from interp.interventions.ablation_result import AblationResult, JointAblation
from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.attribution_result import AttributionComparison, AttributionResult
from interp.interventions.patching_result import PatchingResult
from interp.interventions.path_patching import path_patching
from interp.interventions.path_result import PathPatchingResult
from interp.interventions.steer import steer

__all__ = [
    "AblationResult",
    "AttributionComparison",
    "AttributionResult",
    "JointAblation",
    "PatchingResult",
    "PathPatchingResult",
    "ablate",
    "ablation_sweep",
    "activation_patching",
    "attribution_patching",
    "path_patching",
    "steer",
]
