"""A set of parts taken out together, beside each of them alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.interventions.ablation import ablate, ablation_sweep
from interp.metrics import LogitDifference
from models import EncoderDecoderConfig, HookedEncoderDecoder
from models.errors import InputError
from tests.interp.interventions.setups import ANSWER, ARCHITECTURES, WRONG, Setup, make_setup
from tests.interp.interventions.test_ablation import by_hand, patterns
from tests.oracles import patching as oracle

METRIC = LogitDifference(ANSWER, WRONG)


def edit(setup: Setup, *edits: tuple[str, tuple[object, ...]], method: str = "zero") -> np.ndarray:
    """Return the metric of a run with entries of activations replaced, by hook name and index."""
    instead = by_hand(setup.cached(setup.clean), method, setup.real)

    def hook(index: tuple[object, ...], name: str):
        def replace(value: Tensor, hook: object) -> None:
            value[index] = instead[name][index]

        return replace

    hooks = [(name, hook(index, name)) for name, index in edits]
    return setup.logit_difference(setup.model.run_with_hooks(setup.clean, fwd_hooks=hooks)).numpy()


ALL = slice(None)
PARTS = {
    "L0H1": ("blocks.0.attn.hook_z", (ALL, ALL, 1)),
    "L2H0@4": ("blocks.2.attn.hook_z", (ALL, 4, 0)),
    "L1H0[4,2]": ("blocks.1.attn.hook_pattern", (ALL, 0, 4, 2)),
    "L1N3": ("blocks.1.mlp.hook_post", (ALL, ALL, 3)),
    "L1N5@4": ("blocks.1.mlp.hook_post", (ALL, 4, 5)),
    "attn2": ("blocks.2.hook_attn_out", (ALL,)),
    "mlp1@2": ("blocks.1.hook_mlp_out", (ALL, 2)),
    "resid_pre1@3": ("blocks.1.hook_resid_pre", (ALL, 3)),
    "resid_mid0@1": ("blocks.0.hook_resid_mid", (ALL, 1)),
    "resid_post0@1": ("blocks.0.hook_resid_post", (ALL, 1)),
}


@pytest.mark.parametrize("method", ["zero", "mean_per_position"])
def test_a_set_is_taken_out_together_and_one_by_one(method):
    setup = make_setup(ARCHITECTURES["gpt2"])
    found = ablate(setup.model, setup.clean, METRIC, list(PARTS), method=method)
    assert found.parts == tuple(PARTS)
    intact = setup.logit_difference(setup.model(setup.clean)).numpy()
    np.testing.assert_allclose(found.intact["logit_difference"], intact)
    for i, part in enumerate(PARTS.values()):
        np.testing.assert_allclose(found.values["logit_difference"][i], edit(setup, part, method=method))
    joint = edit(setup, *PARTS.values(), method=method)
    np.testing.assert_allclose(found.joint["logit_difference"], joint)
    assert found.joint_change() == pytest.approx((joint - intact).mean())
    assert found.sum_of_singles() == pytest.approx(found.change().sum())


@pytest.mark.parametrize("written", [["L1H0", "L2H1"], ["1.0", "2.1"], [(1, 0), (2, 1)]])  # scenario 18
def test_heads_may_be_written_in_any_notation(written):
    setup = make_setup(ARCHITECTURES["gpt2"])
    found = ablate(setup.model, setup.clean, METRIC, written)
    assert found.parts == ("L1H0", "L2H1")


@pytest.mark.parametrize("written", ["L1H0", "1.0", (1, 0)])
def test_one_part_needs_no_list(written):
    setup = make_setup(ARCHITECTURES["gpt2"])
    found = ablate(setup.model, setup.clean, METRIC, written)
    assert found.parts == ("L1H0",)
    assert found.joint_change() == pytest.approx(found.sum_of_singles())


def test_backups_show_as_a_joint_effect_above_the_sum():
    """Two heads that write the same, and a unit that fires where neither has: only taking out both shows it."""
    setup = make_setup(ARCHITECTURES["gpt2"].replace(n_layers=1, norm="none", act="relu", d_mlp=1, tied=False))
    block = setup.model.blocks[0]
    with torch.no_grad():
        for parameter in (*block.parameters(), setup.model.W_E, setup.model.W_pos):
            parameter.zero_()
        block.attn.v.bias.fill_(1.0)
        block.attn.W_O[:, 0, 0] = 10.0  # each head writes 10 to the first direction
        block.mlp.W_in[0, 0], block.mlp.inp.bias[0] = -1.0, 5.0  # fires 5 only where neither has written
        block.mlp.W_out[0] = setup.model.W_U[:, WRONG]
    found = ablate(setup.model, setup.clean, lambda logits: logits[:, -1, WRONG], ["L0H0", "L0H1"], method="zero")
    direct = 10 * float(setup.model.W_U[0, WRONG])
    repaired = 5 * float(setup.model.W_U[:, WRONG].square().sum())
    np.testing.assert_allclose(found.change(), [-direct, -direct])
    assert found.sum_of_singles() == pytest.approx(-2 * direct)
    assert found.joint_change() == pytest.approx(-2 * direct + repaired)


def test_a_set_with_frozen_attention_and_with_renormalised_edges():
    setup = make_setup(ARCHITECTURES["gpt2"])
    cache = setup.cached(setup.clean)
    frozen = ablate(setup.model, setup.clean, METRIC, ["L0H0"], method="zero", frozen_attention=True)
    wanted = oracle.sweep(
        setup.model, setup.clean, by_hand(cache, "zero", None), "z", ("layer", "head"), setup.logit_difference,
        frozen=patterns(cache),
    )  # fmt: skip
    np.testing.assert_allclose(frozen.joint["logit_difference"], wanted[0, 0])
    cut = ablate(setup.model, setup.clean, METRIC, ["L1H1[4,0]"], method="zero", renormalise=True)
    sweep = ablation_sweep(
        setup.model, setup.clean, METRIC, site="pattern", method="zero", renormalise=True,
        over=("layer", "head", "dest_pos", "src_pos"),
    )  # fmt: skip
    np.testing.assert_allclose(cut.joint["logit_difference"], sweep.values["logit_difference"][1, 1, 4, 0])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("L3H0", "layer 3 in 'L3H0' is out of range: this model has layers 0 to 2"),  # scenario 18
        ((0, 2), r"head 2 in \(0, 2\) is out of range: this model has heads 0 to 1"),
        ("mlp3", "layer 3 in 'mlp3' is out of range: there are layers 0 to 2"),
        ("L0N6", "neuron 6 in 'L0N6' is out of range: there are neurons 0 to 5"),
        ("L0H0@5", "position 5 in 'L0H0@5' is out of range: there are positions 0 to 4"),
        ("L0H0[1,3]", "query 1 cannot attend to key 3, which comes later"),
        ("L0H0@x", "a position is a number"),
        ("head 3", "is not a part; write a head 'L5H1'"),
        (["L0H0", "0.0"], "L0H0 is given twice"),
        ([], "no part to ablate was given"),
        ("L0H0@²", "a position is a number"),
        (5, "5 names no part of a model"),
    ],
)
def test_parts_that_are_not_there_are_refused(what, message):
    setup = make_setup(ARCHITECTURES["gpt2"])
    with pytest.raises(InputError, match=message):
        ablate(setup.model, setup.clean, METRIC, what)


@pytest.mark.parametrize("method", ["zero", "resample"])
def test_an_edge_onto_padding_is_refused(method):
    setup = make_setup(ARCHITECTURES["gpt2"], "left")
    call = {"method": method, "attention_mask": setup.real}
    with pytest.raises(InputError, match=r"L0H0\[4,1\]: key 1 is padding in example 0, to which nothing attends"):
        ablate(setup.model, setup.clean, METRIC, ["L0H1", "L0H0[4,1]"], **call)
    assert ablate(setup.model, setup.clean, METRIC, "L0H0[4,2]", **call).change().any()


def test_an_encoder_decoder_is_refused():
    cfg = EncoderDecoderConfig(n_encoder_layers=1, n_decoder_layers=1, d_model=8, n_heads=2, d_vocab=13, n_ctx=10)
    with pytest.raises(InputError, match="an encoder-decoder has two stacks"):
        ablate(HookedEncoderDecoder(cfg), torch.tensor([[1, 2]]), METRIC, "L0H0")


@pytest.mark.parametrize("seed", [-1, 1.5, None])
def test_a_seed_is_a_whole_number(seed):
    setup = make_setup(ARCHITECTURES["gpt2"])
    with pytest.raises(InputError, match=r"seed is .*; expected a whole number"):
        ablate(setup.model, setup.clean, METRIC, "L0H0", method="resample", seed=seed)


def test_renormalising_needs_an_edge():
    setup = make_setup(ARCHITECTURES["gpt2"])
    with pytest.raises(InputError, match="no edge is among the parts"):
        ablate(setup.model, setup.clean, METRIC, ["L0H0"], renormalise=True)
