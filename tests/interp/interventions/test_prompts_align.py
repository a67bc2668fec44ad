"""Clean and corrupted prompts go in pairs of equal length, or are refused before any forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.interventions.activation_patching import activation_patching
from interp.metrics import LogitDifference
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.text import SymbolTokenizer

CFG = DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=65, n_ctx=16)
METRIC = LogitDifference(1, 2)


@pytest.fixture
def model() -> HookedDecoder:
    return HookedDecoder(CFG, tokenizer=SymbolTokenizer()).requires_grad_(False)


@pytest.fixture
def never_run(model, monkeypatch) -> HookedDecoder:
    def refuse(*args, **kwargs):
        raise AssertionError("a forward pass was made")

    monkeypatch.setattr(model, "forward", refuse)
    return model


def test_another_length_is_refused_with_both_tokenisations(never_run):  # scenario 12
    with pytest.raises(InputError) as refusal:
        activation_patching(never_run, "abcd", "abXcd", METRIC)
    message = str(refusal.value)
    assert "the clean prompt has 5 tokens and the corrupted one 6" in message
    assert "clean:     '<bos>' 'a' 'b' >>'c'<< 'd'" in message
    assert "corrupted: '<bos>' 'a' 'b' >>'X'<< 'c' 'd'" in message
    assert "first differ at position 3" in message


def test_a_prefix_is_marked_at_its_end(never_run):
    with pytest.raises(InputError, match=r"corrupted: '<bos>' 'a' 'b' >>'c'<<\nThey first differ at position 3"):
        activation_patching(never_run, "ab", "abc", METRIC)


def test_ids_of_another_length_are_refused_too(never_run):
    with pytest.raises(InputError, match="the clean prompt of pair 0 has 3 tokens and the corrupted one 4"):
        activation_patching(never_run, torch.zeros(2, 3).long(), torch.ones(2, 4).long(), METRIC)


def test_the_pair_that_does_not_align_is_named(never_run):
    with pytest.raises(InputError, match=r"clean prompt of pair 1 has 4 tokens and the corrupted one 3") as refusal:
        activation_patching(never_run, ["ab", "xyz"], ["cb", "xy"], METRIC)
    assert ">>'z'<<" in str(refusal.value)


@pytest.mark.parametrize("corrupted", [["ab"], torch.zeros(3, 3).long()])
def test_prompts_go_in_pairs(never_run, corrupted):
    with pytest.raises(InputError, match=r"2 clean prompts and \d corrupted ones; they go in pairs"):
        activation_patching(never_run, ["ab", "cd"], corrupted, METRIC)


def test_a_mask_goes_with_ids(never_run):
    with pytest.raises(InputError, match="texts make their own"):
        activation_patching(never_run, "ab", "cb", METRIC, attention_mask=torch.ones(1, 3).bool())


def test_texts_of_different_length_are_padded_and_each_is_as_if_alone(model):
    clean, corrupted = ["abcdef", "xy"], ["abcXef", "zy"]
    together = activation_patching(model, clean, corrupted, METRIC)
    assert together.clean_tokens[0] == ("<bos>", *"abcdef")
    for i in range(2):
        alone = activation_patching(model, clean[i], corrupted[i], METRIC)
        width = alone.mean().shape[1]
        np.testing.assert_allclose(
            together.values["logit_difference"][:, :width, i], alone.values["logit_difference"][..., 0], atol=1e-6
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"site": "resid_mdi"}, r"no site 'resid_mdi'; nearest: resid_mid"),
        ({"site": "z", "over": ("layer", "heads")}, "z has no axis 'heads'; nearest: head"),
        ({"site": "k", "over": ("layer", "query")}, "its axes are layer, pos, kv_head"),
        ({"over": ()}, "must name axes of resid_pre, each once"),
        ({"over": ("layer", "layer")}, "each once"),
        ({"direction": "clean"}, "direction is 'clean'; expected 'denoise' or 'noise'"),
        ({"neuron_groups": 2}, "add 'neuron'"),
        ({"site": "mlp_post", "over": ("layer", "neuron"), "neuron_groups": 99}, "expected 1 to d_mlp = 32"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_run(never_run, options, message):
    with pytest.raises(InputError, match=message):
        activation_patching(never_run, "abc", "abd", METRIC, **options)


@pytest.mark.parametrize(
    ("changes", "site", "message"),
    [
        ({"attn_only": True}, "mlp_out", "this model is attention-only"),
        ({"attn_only": True}, "resid_mid", "has no resid_mid"),
        ({"parallel": True}, "resid_mid", "has no resid_mid"),
    ],
)
def test_sites_that_a_model_lacks_are_refused(changes, site, message):
    with pytest.raises(InputError, match=message):
        activation_patching(
            HookedDecoder(CFG.replace(**{"d_mlp": None, **changes})),
            torch.tensor([1]),
            torch.tensor([2]),
            METRIC,
            site=site,
        )


def test_a_metric_that_does_not_fit_is_refused_before_any_run(never_run):
    with pytest.raises(InputError, match="names token 65"):
        activation_patching(never_run, "abc", "abd", LogitDifference(65, 0))


def test_equal_prompts_change_nothing_and_have_nothing_to_recover(model):
    found = activation_patching(model, "abc", "abc", METRIC)
    assert found.block_tokens == 0
    assert not found.change().any()
    with pytest.raises(InputError, match="on which the runs differ"):  # scenario 14
        found.recovered()
