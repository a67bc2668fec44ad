"""What may come next: few logits are kept, and probabilities are those of the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest

from interp.readout.next_token import TEMPERATURES, NextTokenResult, next_token
from models.errors import InputError
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.mark.parametrize("keep", [1, 4, 11, 500])
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 2.0])
def test_probabilities_are_the_models_at_every_temperature(keep, temperature):
    model = random_model(CONFIGS["llama"])
    tokens = random_tokens(model.cfg, 1)
    result = next_token(model, tokens, keep=keep)
    logits = model(tokens)[0, -1].detach()
    expected = (logits / temperature).softmax(-1)[result.top_tokens]
    np.testing.assert_allclose(result.probabilities(temperature), expected, atol=1e-9)
    assert len(result.top_tokens) == min(keep, 11) == 11 - result.n_rest
    assert (result.rest is None) == (keep >= 11)


def test_what_is_saved_is_read_again(tmp_path):
    model = random_model(CONFIGS["gpt2"])
    for keep in (3, 11):
        result = next_token(model, random_tokens(model.cfg, 1), keep=keep)
        assert NextTokenResult.load(result.save(tmp_path / "next.json")) == result
        assert result.to_frame()["probability"].tolist() == result.probabilities().tolist()


def test_what_does_not_fit_is_refused():
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match="keep is 0"):
        next_token(model, random_tokens(model.cfg, 1), keep=0)
    with pytest.raises(InputError, match=r"keep is 2\.5; expected a whole number"):
        next_token(model, random_tokens(model.cfg, 1), keep=2.5)
    with pytest.raises(InputError, match="one prompt; got 2"):
        next_token(model, random_tokens(model.cfg, 2))
    with pytest.raises(InputError, match=f"{TEMPERATURES[0]} to {TEMPERATURES[-1]}"):
        next_token(model, random_tokens(model.cfg, 1)).probabilities(0.33)
