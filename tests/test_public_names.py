"""The public names, pinned: adding one is deliberate, losing one breaks somebody's notebook."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "models": [
        "ActivationCache",
        "DecoderConfig",
        "EncoderDecoderConfig",
        "HookNames",
        "HookPoint",
        "HookedDecoder",
        "HookedEncoderDecoder",
        "RotaryScaling",
    ],
    "models.hooks": [
        "ActivationCache",
        "HookNames",
        "HookPoint",
        "HookSpec",
        "HookedModule",
        "decoder_hooks",
        "encoder_decoder_hooks",
    ],
    "interp": [
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
    ],
    "interp.interventions": [
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
    ],
    "interp.prompts": [
        "PromptBatch",
        "PromptPair",
        "RepeatedTokens",
        "default_prompts",
        "factual_prompts",
        "greater_than_prompts",
        "ioi_prompts",
        "ordinary_ids",
        "prompt_batch",
        "repeated_token_prompts",
        "repeated_tokens",
    ],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package):
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
