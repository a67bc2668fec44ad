"""Clean and corrupted prompts go in pairs of equal length, or are refused before any forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.interventions.ablation import ablate, ablation_sweep
from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.path_patching import path_patching
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


@pytest.mark.parametrize("as_given", [Tensor.tolist, Tensor.numpy, list, lambda ids: tuple(map(tuple, ids.tolist()))])
def test_ids_may_be_lists_and_arrays(model, as_given):
    clean, corrupted = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[1, 7, 3], [4, 8, 6]])
    mask = [[0, 1, 1], [1, 1, 1]]
    given, options = (as_given(clean), as_given(corrupted)), {"attention_mask": mask}
    tensors, with_mask = (clean, corrupted), {"attention_mask": torch.tensor(mask).bool()}
    for method in (activation_patching, attribution_patching, path_patching):
        assert method(model, *given, METRIC, **options) == method(model, *tensors, METRIC, **with_mask)
    assert ablation_sweep(model, given[0], METRIC, reference=given[1]) == ablation_sweep(
        model, clean, METRIC, reference=corrupted
    )
    assert ablate(model, given[0], METRIC, "L0H0") == ablate(model, clean, METRIC, "L0H0")
    assert activation_patching(model, [1, 2, 3], [1, 7, 3], METRIC).clean_tokens[0] == tuple(
        model.to_str_tokens(clean[0])
    )


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1.0, 2.0]], "the clean prompts is .*; expected integers"),
        (torch.tensor([[True, False]]), "the clean prompts: got a tensor of torch.bool"),
        ([[1, 2], [3]], "with rows of equal length"),
        ([], "no prompts were given; give ids"),
        (None, "expected token ids or text, got NoneType"),
        (torch.zeros(1, 1, 2).long(), r"the clean prompts have shape \(1, 1, 2\)"),
        ((text for text in ["ab"]), "expected token ids or text, got generator"),
    ],
)
def test_what_are_no_prompts_is_refused(never_run, ids, message):
    for call in (
        lambda: activation_patching(never_run, ids, torch.tensor([[1, 2]]), METRIC),
        lambda: ablation_sweep(never_run, ids, METRIC),
    ):
        with pytest.raises(InputError, match=message):
            call()


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
        ({"site": None}, "no site None"),
        ({"site": ["z"]}, r"no site \['z'\]"),
        ({"over": 5}, r"over is \(5,\); expected names of axes of resid_pre"),
        ({"over": ("layer", ["pos"])}, "expected names of axes"),
        ({"memory": "1G"}, "memory is '1G'; expected a whole number, at least 0"),
        ({"memory": None}, "memory is None"),
        ({"site": "mlp_post", "over": ("layer", "neuron"), "neuron_groups": 2.5}, "neuron_groups is 2.5"),
        ({"attention_mask": "ab"}, "attention_mask is 'ab'; expected True at real tokens"),
        ({"site": "mlp_post", "over": ("layer", "neuron"), "neuron_groups": 99}, r"a whole number, 1 to 32 \(d_mlp\)"),
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


def test_one_axis_needs_no_tuple(model):
    assert activation_patching(model, "abc", "abd", METRIC, over="layer").axes == ("layer",)
    assert ablation_sweep(model, "abc", METRIC, over="head").axes == ("head",)
    assert attribution_patching(model, "abc", "abd", METRIC, over="layer").axes == ("layer",)


def test_equal_prompts_change_nothing_and_have_nothing_to_recover(model):
    found = activation_patching(model, "abc", "abc", METRIC)
    assert found.block_tokens == 0
    assert not found.change().any()
    with pytest.raises(InputError, match="on which the runs differ"):  # scenario 14
        found.recovered()
