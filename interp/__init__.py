"""The tools that take the models apart."""

from interp.heads.find import find_heads
from interp.interventions import (
    AblationResult,
    AttributionComparison,
    AttributionResult,
    JointAblation,
    PatchingResult,
    PathPatchingResult,
    ablate,
    ablation_sweep,
    activation_patching,
    attribution_patching,
    path_patching,
    steer,
)
from interp.metrics import KL, Logit, LogitDifference, LogProbability, Loss, Metric, Probability, Rank
from interp.prompts import (
    PromptBatch,
    PromptPair,
    default_prompts,
    factual_prompts,
    greater_than_prompts,
    ioi_prompts,
    prompt_batch,
    repeated_token_prompts,
)
from interp.results import HeadReport
from interp.sites import Head, parse_head

__all__ = [
    "AblationResult",
    "AttributionComparison",
    "AttributionResult",
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
    "PathPatchingResult",
    "Probability",
    "PromptBatch",
    "PromptPair",
    "Rank",
    "ablate",
    "ablation_sweep",
    "activation_patching",
    "attribution_patching",
    "default_prompts",
    "factual_prompts",
    "find_heads",
    "greater_than_prompts",
    "ioi_prompts",
    "parse_head",
    "path_patching",
    "prompt_batch",
    "repeated_token_prompts",
    "steer",
]
