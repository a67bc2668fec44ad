"""Every activation of every configuration is the slow decoder's."""

from __future__ import annotations

import pytest
import torch

from tests.configurations import CONFIGS, random_config, random_model, random_tokens
from tests.oracles.decoder import decode

# rotary angles and the sinusoidal table are float32, whatever the model's type
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_activation_is_the_oracles(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg)
    logits, cache = model.run_with_cache(tokens)
    expected_logits, expected = decode(model, tokens)
    assert set(expected) == set(cache) == set(model.hook_names())
    for hook in model.hook_names():
        torch.testing.assert_close(cache[hook], expected[hook], **TOLERANCE, msg=lambda m, hook=hook: f"{hook}: {m}")
    torch.testing.assert_close(logits, expected_logits, **TOLERANCE)
    torch.testing.assert_close(model(tokens), expected_logits, **TOLERANCE)


@pytest.mark.parametrize("seed", range(40))
def test_random_configurations(seed):
    model = random_model(random_config(seed), seed=seed)
    tokens = random_tokens(model.cfg, batch=1, n=5, seed=seed)
    expected_logits, expected = decode(model, tokens)
    torch.testing.assert_close(model(tokens), expected_logits, **TOLERANCE)
    _, cache = model.run_with_cache(tokens)
    assert set(cache) == set(expected)
    assert all(torch.allclose(cache[hook], expected[hook], **TOLERANCE) for hook in expected)
