"""Patching sweeps against the naive loop: every site, every choice of axes, every architecture and mask."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.interventions.activation_patching import activation_patching
from interp.interventions.cells import SITES
from interp.metrics import LogitDifference, Loss, Probability
from models.errors import InputError
from tests.interp.interventions.setups import (
    ANSWER,
    ARCHITECTURES,
    WRONG,
    Setup,
    combinations,
    make_setup,
    sites_of,
)
from tests.oracles import patching as oracle

GROUPS = 2
# every architecture once in each direction, every padding with both
CASES = [
    ("gpt2", "none", "denoise"),
    ("gpt2", "both", "noise"),
    ("llama-window", "none", "noise"),
    ("llama-window", "left", "denoise"),
    ("parallel-interleaved", "right", "denoise"),
    ("parallel-interleaved", "none", "noise"),
    ("post-norm", "left", "noise"),
    ("post-norm", "none", "denoise"),
    ("attention-only", "both", "denoise"),
    ("attention-only", "none", "noise"),
    ("one-layer", "none", "denoise"),
    ("one-layer", "right", "noise"),
]


def expected(setup: Setup, site: str, over: tuple[str, ...], direction: str, judge) -> np.ndarray:
    """Return what the naive loop finds."""
    into, out_of = (setup.corrupted, setup.clean) if direction == "denoise" else (setup.clean, setup.corrupted)
    groups = GROUPS if "neuron" in over else None
    return oracle.sweep(
        setup.model, into, setup.cached(out_of), site, over, judge, real=setup.real, neuron_groups=groups
    )


@pytest.mark.parametrize(("name", "padding", "direction"), CASES, ids=["-".join(case) for case in CASES])
def test_every_site_over_every_choice_of_axes_equals_the_naive_loop(name, padding, direction):
    setup = make_setup(ARCHITECTURES[name], padding)
    metric = LogitDifference(ANSWER, WRONG)
    for site in sites_of(setup.model.cfg):
        for over in combinations(site.axes):
            found = activation_patching(
                setup.model, setup.clean, setup.corrupted, metric, site=site.name, over=over, direction=direction,
                attention_mask=setup.real, neuron_groups=GROUPS if "neuron" in over else None,
            )  # fmt: skip
            assert found.resumed == ("layer" in over)
            assert found.axes == over
            np.testing.assert_allclose(
                found.values["logit_difference"],
                expected(setup, site.name, over, direction, setup.logit_difference),
                atol=1e-9, err_msg=f"{site.name} {over}",
            )  # fmt: skip


@pytest.mark.parametrize("padding", ["none", "both"])
@pytest.mark.parametrize("name", ["gpt2", "llama-window"])
def test_several_metrics_at_once_equal_each_alone(name, padding):
    setup = make_setup(ARCHITECTURES[name], padding)
    metrics = {"difference": LogitDifference(ANSWER, WRONG), "loss": Loss(setup.corrupted, setup.real)}
    judges = {"difference": setup.logit_difference, "loss": setup.loss_of(setup.corrupted)}
    for site in sites_of(setup.model.cfg):
        over = tuple(axis for axis in site.axes if axis not in ("neuron", "src_pos"))
        found = activation_patching(
            setup.model, setup.clean, setup.corrupted, metrics, site=site.name, over=over, attention_mask=setup.real
        )
        assert found.metrics == ("difference", "loss")
        for metric, judge in judges.items():
            wanted = expected(setup, site.name, over, "denoise", judge)
            np.testing.assert_allclose(found.values[metric], wanted, atol=1e-9, err_msg=f"{site.name} {metric}")
            for side, tokens in (("clean", setup.clean), ("corrupted", setup.corrupted)):
                run = judge(setup.model(tokens, attention_mask=setup.real))
                np.testing.assert_allclose(getattr(found, side)[metric], run, atol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.2)])
@pytest.mark.parametrize("site", SITES)
def test_other_precisions_to_their_rounding(site, dtype, tolerance):
    setup = make_setup(ARCHITECTURES["gpt2"], dtype=dtype)
    over = ("layer", SITES[site].axes[1])
    found = activation_patching(
        setup.model, setup.clean, setup.corrupted, LogitDifference(ANSWER, WRONG), site=site, over=over
    )
    wanted = expected(setup, site, over, "denoise", lambda logits: setup.logit_difference(logits.float()))
    spread = np.abs(wanted).max()
    np.testing.assert_allclose(found.values["logit_difference"] / spread, wanted / spread, atol=tolerance)


@pytest.mark.parametrize("site", ["resid_pre", "z", "mlp_out"])
def test_patching_everything_is_the_other_run_and_nothing_is_this_one(site):
    setup = make_setup(ARCHITECTURES["gpt2"])
    metric = LogitDifference(WRONG, ANSWER)  # the clean run prefers the "wrong" token here
    found = activation_patching(setup.model, setup.clean, setup.corrupted, metric, site=site, over=("layer", "pos"))
    unchanged = found.values["logit_difference"][:, :2]  # the pair is one and the same there
    np.testing.assert_array_equal(unchanged, np.broadcast_to(found.corrupted["logit_difference"], unchanged.shape))
    whole = activation_patching(setup.model, setup.clean, setup.corrupted, metric, site="resid_pre", over=("layer",))
    np.testing.assert_allclose(whole.recovered(), 1.0)
    assert found.into() is found.corrupted["logit_difference"]


def test_a_budget_that_fits_one_cell_gives_the_same_values():
    setup = make_setup(ARCHITECTURES["gpt2"])
    for site in ("resid_pre", "z", "pattern"):
        runs = [
            activation_patching(
                setup.model, setup.clean, setup.corrupted, Probability(ANSWER), site=site, memory=memory,
                over=("layer", SITES[site].axes[1]),
            )
            for memory in (1, 1 << 30)
        ]  # fmt: skip
        assert runs[0].block_tokens == runs[1].block_tokens
        np.testing.assert_allclose(runs[0].values["probability"], runs[1].values["probability"], atol=1e-12)


def test_key_and_value_patching_is_over_key_value_heads():  # scenario 2
    setup = make_setup(ARCHITECTURES["llama-window"])
    for site in ("k", "v"):
        for axis in ("head", "kv_head"):
            found = activation_patching(
                setup.model, setup.clean, setup.corrupted, LogitDifference(ANSWER, WRONG), site=site,
                over=("layer", axis),
            )  # fmt: skip
            assert found.axes == ("layer", "kv_head")
            change = found.change()
            assert change.shape == (3, 2)
            assert np.unique(change[:2]).size == 4, "no cell is padding or a copy of another"


def test_means_alone_are_kept_on_request():
    setup = make_setup(ARCHITECTURES["gpt2"])
    call = (setup.model, setup.clean, setup.corrupted, LogitDifference(WRONG, ANSWER))
    means, examples = (activation_patching(*call, per_example=keep) for keep in (False, True))
    assert means.values["logit_difference"].shape == (3, 5, 1)
    for quantity in ("mean", "change", "recovered"):
        np.testing.assert_allclose(getattr(means, quantity)(), getattr(examples, quantity)())
    with pytest.raises(InputError, match="per_example=False"):
        means.interval()


def test_nothing_is_recorded_for_a_backward_pass_and_weights_stay():
    setup = make_setup(ARCHITECTURES["gpt2"])
    setup.model.requires_grad_(True)
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    activation_patching(setup.model, setup.clean, setup.corrupted, lambda logits: logits[:, -1, 0])
    assert all(parameter.grad is None for parameter in setup.model.parameters())
    for name, value in setup.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not any(point.in_use for point in setup.model.hook_dict.values())
