"""Ablation sweeps against the naive loop, with replacements computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from interp.interventions.ablation import ablation_sweep
from interp.metrics import LogitDifference
from models.errors import InputError
from tests.interp.interventions.setups import ANSWER, ARCHITECTURES, WRONG, Setup, make_setup, sites_of
from tests.interp.interventions.test_sweep import Foreign
from tests.oracles import patching as oracle

METRIC = LogitDifference(ANSWER, WRONG)
CASES = [
    ("gpt2", "none"),
    ("llama-window", "left"),
    ("parallel-interleaved", "both"),
    ("post-norm", "right"),
    ("attention-only", "none"),
]


def by_hand(cache: dict[str, Tensor], method: str, real: Tensor | None) -> dict[str, Tensor]:
    """Return what stands in for every activation, one example and position at a time."""
    instead = {}
    for name, value in cache.items():
        if name.endswith("hook_pattern"):
            value = value.transpose(1, 2)
        n, width = value.shape[:2]
        kept = [[real is None or bool(real[i, column]) for column in range(width)] for i in range(n)]
        if method == "zero":
            new = torch.zeros_like(value)
        elif method == "mean":
            rows = [value[i, column] for i in range(n) for column in range(width) if kept[i][column]]
            new = (sum(rows) / len(rows)).expand_as(value).clone()
        else:
            columns = []
            for column in range(width):
                rows = [value[i, column] for i in range(n) if kept[i][column]]
                columns.append(sum(rows) / len(rows))
            new = torch.stack(columns).expand_as(value).clone()
        instead[name] = off_padding(new.transpose(1, 2), real) if name.endswith("hook_pattern") else new
    return instead


def off_padding(pattern: Tensor, real: Tensor | None) -> Tensor:
    """Return a pattern in which each row's weight on padded keys has gone to its other keys, a row at a time."""
    new = pattern.clone()
    for i, head, query in np.ndindex(*pattern.shape[:3]):
        row = new[i, head, query]
        padded = [key for key in range(len(row)) if real is not None and not real[i, key]]
        total = float(row.sum())
        row[padded] = 0
        if padded and float(row.sum()) > 0:
            row *= total / float(row.sum())
    return new


def patterns(cache: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in cache.items() if name.endswith("hook_pattern")}


@pytest.mark.parametrize("method", ["zero", "mean", "mean_per_position"])
@pytest.mark.parametrize(("name", "padding"), CASES)
def test_every_site_equals_the_naive_loop(name, padding, method):
    setup = make_setup(ARCHITECTURES[name], padding)
    cache = setup.cached(setup.clean)
    instead = by_hand(cache, method, setup.real)
    for site in sites_of(setup.model.cfg):
        if site.name == "pattern" and method == "mean":
            continue
        for over in [("layer",), site.axes, tuple(axis for axis in site.axes if not axis.endswith("pos"))]:
            groups = 2 if "neuron" in over else None
            found = ablation_sweep(
                setup.model, setup.clean, METRIC, site=site.name, over=over, method=method,
                attention_mask=setup.real, neuron_groups=groups,
            )  # fmt: skip
            wanted = oracle.sweep(
                setup.model, setup.clean, instead, site.name, over, setup.logit_difference, real=setup.real,
                neuron_groups=groups,
            )  # fmt: skip
            assert found.resumed
            np.testing.assert_allclose(
                found.values["logit_difference"], wanted, atol=1e-9, err_msg=f"{site.name} {over}"
            )
        intact = setup.logit_difference(setup.model(setup.clean, attention_mask=setup.real))
        np.testing.assert_allclose(found.intact["logit_difference"], intact)


@pytest.mark.parametrize(("name", "padding"), CASES)
def test_frozen_attention_equals_the_naive_loop_with_every_pattern_put_back(name, padding):
    setup = make_setup(ARCHITECTURES[name], padding)
    cache = setup.cached(setup.clean)
    instead = by_hand(cache, "zero", setup.real)
    for site in sites_of(setup.model.cfg):
        if site.name in ("q", "k"):
            continue
        over = ("layer", *(axis for axis in site.axes[1:] if axis not in ("neuron", "src_pos")))
        frozen, free = (
            ablation_sweep(
                setup.model, setup.clean, METRIC, site=site.name, over=over, method="zero",
                attention_mask=setup.real, frozen_attention=hold,
            )
            for hold in (True, False)
        )  # fmt: skip
        wanted = oracle.sweep(
            setup.model, setup.clean, instead, site.name, over, setup.logit_difference, real=setup.real,
            frozen=patterns(cache),
        )  # fmt: skip
        np.testing.assert_allclose(frozen.values["logit_difference"], wanted, atol=1e-9, err_msg=site.name)
        assert np.abs(frozen.mean() - free.mean()).max() > 1e-4, site.name


@pytest.mark.parametrize("name", ["gpt2", "llama-window"])
def test_an_edge_may_be_cut_with_or_without_renormalising(name):
    setup = make_setup(ARCHITECTURES[name])
    instead = by_hand(setup.cached(setup.clean), "zero", None)
    for renormalise in (False, True):
        found = ablation_sweep(
            setup.model, setup.clean, METRIC, site="pattern", over=("layer", "head", "dest_pos", "src_pos"),
            method="zero", renormalise=renormalise,
        )  # fmt: skip
        wanted = oracle.sweep(
            setup.model, setup.clean, instead, "pattern", found.axes, setup.logit_difference, renormalise=renormalise
        )
        np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-9)
    assert not found.change()[..., 1, 3].any(), "what lies ahead carries nothing"
    assert found.change()[0, :, 4, :5].any()


def test_a_reference_gives_its_own_means():
    setup = make_setup(ARCHITECTURES["gpt2"], "left")
    for method in ("mean", "mean_per_position"):
        instead = by_hand(setup.cached(setup.corrupted), method, setup.real)
        found = ablation_sweep(
            setup.model, setup.clean, METRIC, method=method, attention_mask=setup.real, reference=setup.corrupted,
            reference_mask=setup.real,
        )  # fmt: skip
        wanted = oracle.sweep(
            setup.model, setup.clean, instead, "z", ("layer", "head"), setup.logit_difference, real=setup.real
        )
        np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-9)
        assert found.n_reference == 3


def test_a_mean_takes_a_reference_of_any_size_and_width():
    setup = make_setup(ARCHITECTURES["gpt2"])
    reference = torch.randint(11, (7, 8), generator=torch.Generator().manual_seed(5))
    z = setup.model.run_with_cache(reference)[1]["z", 0]
    found = ablation_sweep(setup.model, setup.clean, METRIC, reference=reference, over=("layer",))

    def put(value: Tensor, hook: object) -> Tensor:
        return z.mean((0, 1)).expand_as(value)

    logits = setup.model.run_with_hooks(setup.clean, fwd_hooks=[("blocks.0.attn.hook_z", put)])
    np.testing.assert_allclose(found.values["logit_difference"][0], setup.logit_difference(logits))
    assert found.n_reference == 7


def resampled_rows(setup: Setup, seed: int) -> list[tuple[int, ...]]:
    """Return which draws of rows explain a resample ablation of the whole stream entering layer 0."""
    found = ablation_sweep(
        setup.model, setup.clean, METRIC, site="resid_pre", over=("layer",), method="resample", seed=seed,
        attention_mask=setup.real,
    )  # fmt: skip
    explained = []
    for i in range(3):
        for j in range(3):
            tokens = setup.clean.clone()
            tokens[i] = setup.clean[j]
            wanted = setup.logit_difference(setup.model(tokens, attention_mask=setup.real))[i]
            if abs(float(wanted) - found.values["logit_difference"][0, i]) < 1e-9:
                explained.append((i, j))
    return explained


def test_resampling_takes_another_examples_activation_by_seed():
    setup = make_setup(ARCHITECTURES["gpt2"])
    draws = {seed: resampled_rows(setup, seed) for seed in range(6)}
    for rows in draws.values():
        assert [i for i, _ in rows] == [0, 1, 2]
        assert all(i != j for i, j in rows), "never the example itself"
    assert len({tuple(rows) for rows in draws.values()}) > 1
    assert draws[3] == resampled_rows(setup, 3)


def test_resampling_never_draws_padding():
    setup = make_setup(ARCHITECTURES["gpt2"], "left")  # the first example begins with padding
    assert all(j != 0 for i, j in resampled_rows(setup, 0) if i != 0)


def repadded(setup: Setup) -> Tensor:
    """Return the clean prompts with other ids under the mask."""
    return torch.where(setup.real, setup.clean, (setup.clean + 1) % setup.model.cfg.d_vocab)


@pytest.mark.parametrize("method", ["resample", "mean_per_position"])
@pytest.mark.parametrize("foreign", [False, True])
def test_ids_under_the_mask_change_nothing(method, foreign):
    setup = make_setup(ARCHITECTURES["llama-window"], "left")
    model = Foreign(setup.model) if foreign else setup.model
    for site in sites_of(setup.model.cfg):
        over = ("layer", *(axis for axis in site.axes if axis in ("head", "src_pos")))
        first, second = (
            ablation_sweep(model, tokens, METRIC, site=site.name, over=over, method=method, attention_mask=setup.real)
            for tokens in (setup.clean, repadded(setup))
        )
        assert first.resumed != foreign
        np.testing.assert_allclose(
            first.values["logit_difference"], second.values["logit_difference"], atol=1e-9, err_msg=site.name
        )


def test_resampled_patterns_keep_their_rows_sums_without_padded_keys():
    setup = make_setup(ARCHITECTURES["gpt2"], "left")
    found = ablation_sweep(
        setup.model, setup.clean, METRIC, site="pattern", method="resample", attention_mask=setup.real,
        over=("layer", "head"), seed=1,
    )  # fmt: skip
    cache, rng = setup.cached(setup.clean), np.random.default_rng(1)
    rows = [int(rng.choice(others)) for others in ([1, 2], [2], [1])]  # the first example has padding to offer
    instead = {name: off_padding(value[rows], setup.real) for name, value in patterns(cache).items()}
    wanted = oracle.sweep(
        setup.model, setup.clean, instead, "pattern", ("layer", "head"), setup.logit_difference, real=setup.real
    )
    np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-9)


def test_a_foreign_model_is_ablated_by_whole_runs():
    setup = make_setup(ARCHITECTURES["llama-window"], "both")
    for options in ({"frozen_attention": True}, {"site": "pattern", "method": "zero", "renormalise": True}):
        ours, theirs = (
            ablation_sweep(model, setup.clean, METRIC, attention_mask=setup.real, **options)
            for model in (setup.model, Foreign(setup.model))
        )
        assert (ours.resumed, theirs.resumed) == (True, False)
        np.testing.assert_allclose(ours.values["logit_difference"], theirs.values["logit_difference"], atol=1e-9)


def test_layers_together_where_they_are_no_axis():
    setup = make_setup(ARCHITECTURES["gpt2"])
    found = ablation_sweep(setup.model, setup.clean, METRIC, over=("head",), method="zero")
    instead = by_hand(setup.cached(setup.clean), "zero", None)
    wanted = oracle.sweep(setup.model, setup.clean, instead, "z", ("head",), setup.logit_difference)
    np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-9)
    assert not found.resumed


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "noise"}, "method is 'noise'; expected one of zero, mean, mean_per_position, resample"),
        ({"site": "pattern"}, "attends to tokens that come later"),
        ({"site": "q", "frozen_attention": True}, "frozen_attention holds them"),
        ({"renormalise": True}, "renormalise acts on patterns, not on z"),
        ({"method": "zero", "reference": torch.zeros(1, 5).long()}, "takes nothing from a reference"),
        ({"reference_mask": torch.ones(3, 5).bool()}, "reference_mask goes with a reference"),
        ({"method": "resample", "reference": torch.zeros(4, 6).long()}, "has 6 columns and the batch 5"),
        (
            {
                "method": "mean_per_position",
                "reference": torch.zeros(2, 5).long(),
                "reference_mask": torch.tensor([[False, True, True, True, True]] * 2),
            },
            "no real token at column 0",
        ),
        (
            {
                "method": "resample",
                "reference": torch.zeros(2, 5).long(),
                "reference_mask": torch.tensor([[False, True, True, True, True]] * 2),
            },
            "no row of the reference is real wherever example 0 is",
        ),
    ],
)
def test_options_that_cannot_act_are_refused(options, message):
    setup = make_setup(ARCHITECTURES["gpt2"])
    with pytest.raises(InputError, match=message):
        ablation_sweep(setup.model, setup.clean, METRIC, **options)


@pytest.mark.parametrize("method", ["resample", "mean_per_position"])
def test_one_example_is_nothing_to_draw_from(method):
    setup = make_setup(ARCHITECTURES["gpt2"])
    with pytest.raises(InputError, match="of a batch of one is that example itself"):
        ablation_sweep(setup.model, setup.clean[:1], LogitDifference(1, 2), method=method)
