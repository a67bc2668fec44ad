"""Increments add up to the logits, and each is the write's own."""

from __future__ import annotations

import numpy as np
import pytest

from interp.readout.decompose import residual_writes
from interp.readout.lens_increments import IncrementsResult, lens_increments
from models.errors import InputError
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("by", ["component", "head"])
def test_they_add_up_to_the_logit_less_the_mean(name, by):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg, 1)
    logits = model(tokens)[0, 3].detach()
    for target in (0, 5):
        found = lens_increments(model, tokens, target=target, by=by, position=3, chunk=4)
        assert found.target_by.sum() == pytest.approx(float(logits[target] - logits.mean()), abs=1e-6)


@pytest.mark.parametrize("chunk", [3, 100])
def test_raised_and_lowered_tokens_are_the_extremes(chunk):
    model = random_model(CONFIGS["no-norm"])
    tokens = random_tokens(model.cfg, 1)
    _, cache = model.run_with_cache(tokens)
    writes = residual_writes(model, cache)
    found = lens_increments(model, tokens, top_k=2, chunk=chunk)
    assert found.labels == writes.labels
    for row, label in enumerate(found.labels):
        full = (writes[label][0, -1] @ model.W_U).detach()
        full = full - full.mean()
        assert found.raised[row].tolist() == full.topk(2).indices.tolist()
        assert found.lowered[row].tolist() == (-full).topk(2).indices.tolist()
        np.testing.assert_allclose(found.lowered_by[row], full.sort().values[:2], atol=1e-9)


def test_biases_are_writes_too():
    labels = lens_increments(random_model(CONFIGS["gptj"]), random_tokens(CONFIGS["gptj"], 1)).labels
    assert labels[-2:] == ("ln_final bias", "unembed bias")


def test_what_is_saved_is_read_again(tmp_path):
    model = random_model(CONFIGS["gpt2"])
    for target in (None, 4):
        found = lens_increments(model, random_tokens(model.cfg, 1), target=target)
        assert IncrementsResult.load(found.save(tmp_path / "increments.json")) == found
    assert "target_by" in found.to_frame()
    assert "raises" in found.summary_html()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"position": 6}, "columns 0 to 5"),
        ({"target": 11}, "target 11 is outside"),
        ({"target": 2.5}, "target is 2.5; expected a token id"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 1.0}, "top_k is 1.0; expected a whole number"),
        ({"chunk": 0}, "chunk is 0"),
        ({"position": 0.5}, "position is 0.5; expected a whole number"),
        ({"by": "layer"}, "by is 'layer'"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match=message):
        lens_increments(model, random_tokens(model.cfg, 1), **options)
    with pytest.raises(InputError, match="of one prompt; got 2"):
        lens_increments(model, random_tokens(model.cfg, 2))
