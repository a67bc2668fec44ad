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
    ],
    "interp.interventions": [
        "AblationResult",
        "JointAblation",
        "PatchingResult",
        "ablate",
        "ablation_sweep",
        "activation_patching",
        "steer",
    ],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names(package):
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    for name in module.__all__:
        assert getattr(module, name).__doc__, name
