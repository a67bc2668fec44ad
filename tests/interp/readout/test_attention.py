"""Attention kept by head equals what the model attends with."""

from __future__ import annotations

import numpy as np
import pytest

from interp.readout.attention import AttentionResult, attention
from models.errors import InputError
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_and_patterns_are_the_models(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg, 1, 7)
    _, cache = model.run_with_cache(tokens)
    result = attention(model, tokens)
    assert result.layers == tuple(range(model.cfg.n_layers))
    assert result.tokens == tuple(model.to_str_tokens(tokens[0]))
    for layer in result.layers:
        for head in range(result.n_heads):
            expected = cache["pattern", layer][0, head].detach()
            np.testing.assert_allclose(result.pattern(layer, head), expected, atol=1e-6)
            scores = cache["attn_scores", layer][0, head].detach()
            np.testing.assert_allclose(result.head_scores(layer, head), scores, rtol=1e-6)


def test_some_layers_and_what_is_saved(tmp_path):
    model = random_model(CONFIGS["mistral"])
    result = attention(model, random_tokens(model.cfg, 1, 7), layers=[1])
    assert result.scores.shape == (1, 4, 7, 7)
    again = AttentionResult.load(result.save(tmp_path / "attention.json"))
    assert again == result
    np.testing.assert_array_equal(again.scores, result.scores)
    frame = result.to_frame(1, 2)
    assert len(frame) == np.isfinite(result.head_scores(1, 2)).sum()
    assert frame.groupby("query")["weight"].sum().tolist() == pytest.approx([1] * 7)


def test_what_does_not_fit_is_refused():
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match="one prompt at a time; got 2"):
        attention(model, random_tokens(model.cfg, 2))
    with pytest.raises(InputError, match="layers 0 to 1"):
        attention(model, random_tokens(model.cfg, 1), layers=[2])
    with pytest.raises(InputError, match="name each layer once"):
        attention(model, random_tokens(model.cfg, 1), layers=[0, 0])
    for layers in (1, "01"):
        with pytest.raises(InputError, match="expected a list of layers"):
            attention(model, random_tokens(model.cfg, 1), layers=layers)
    for layer in (0.0, True, "0"):
        with pytest.raises(InputError, match=r"a layer is .*; expected a whole number"):
            attention(model, random_tokens(model.cfg, 1), layers=[layer])
    with pytest.raises(InputError, match="no L0H7"):
        attention(model, random_tokens(model.cfg, 1)).pattern(0, 7)
