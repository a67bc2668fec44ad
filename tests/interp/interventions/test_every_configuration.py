"""The engines on every configuration: whatever a block is made of, its sublayers are entered and walked rightly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from interp.interventions.ablation import ablation_sweep
from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.path_patching import path_patching
from interp.metrics import LogitDifference
from models import DecoderConfig
from tests.configurations import CONFIGS, random_config
from tests.interp.interventions.setups import ANSWER, WRONG, make_setup, sites_of
from tests.oracles import patching as oracle
from tests.oracles.path_patching import kept, patched_logits

METRIC = LogitDifference(ANSWER, WRONG)
EVERY = {**CONFIGS, **{f"random-{seed}": random_config(seed) for seed in range(16)}}
DEEP = [name for name, cfg in EVERY.items() if cfg.n_layers > 1]


@pytest.mark.parametrize("name", EVERY)
def test_a_resumed_sweep_equals_the_naive_loop(name):
    setup = make_setup(EVERY[name], "both" if name.startswith("random") else "none")
    for site in sites_of(setup.model.cfg):
        over = site.axes[:2] if site.head_axis is None else ("layer", site.head_axis)
        found = activation_patching(
            setup.model, setup.clean, setup.corrupted, METRIC, site=site.name, over=over, attention_mask=setup.real
        )
        wanted = oracle.sweep(
            setup.model, setup.corrupted, setup.cached(setup.clean), site.name, over, setup.logit_difference,
            real=setup.real,
        )  # fmt: skip
        assert found.resumed
        np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-8, err_msg=site.name)


@pytest.mark.parametrize("name", EVERY)
def test_heads_ablated_under_frozen_attention_equal_the_naive_loop(name):
    setup = make_setup(EVERY[name])
    patterns = {hook: value for hook, value in setup.cached(setup.clean).items() if hook.endswith("hook_pattern")}
    nothing = {hook: torch.zeros_like(value) for hook, value in setup.cached(setup.clean).items() if "hook_v" in hook}
    found = ablation_sweep(
        setup.model, setup.clean, METRIC, site="v", over=("layer", "head"), method="zero", frozen_attention=True
    )
    wanted = oracle.sweep(
        setup.model, setup.clean, nothing, "v", ("layer", "kv_head"), setup.logit_difference, frozen=patterns
    )
    np.testing.assert_allclose(found.values["logit_difference"], wanted, atol=1e-8)


@pytest.mark.parametrize("name", DEEP)
def test_every_kind_of_path_equals_two_whole_runs(name):
    setup = make_setup(EVERY[name])
    cfg, last = setup.model.cfg, setup.model.cfg.n_layers - 1
    mlps = [] if cfg.attn_only else ["mlp0"]
    receivers = [(f"L{last}H0.q",), (f"L{last}.k",), (f"L{last}.v",), *((mlp.replace("0", str(last)),) for mlp in mlps)]
    receivers.append(("logits",))
    senders = ["L0H0", *mlps]
    found = path_patching(setup.model, setup.clean, setup.corrupted, METRIC, senders=senders, receivers=receivers)
    of_base, of_source = kept(setup.model, setup.clean), kept(setup.model, setup.corrupted)
    for i, sender in enumerate(senders):
        for j, group in enumerate(receivers):
            logits = patched_logits(setup.model, setup.clean, of_base, of_source, sender, group, False)
            got, wanted = found.values["logit_difference"][i, j], setup.logit_difference(logits)
            np.testing.assert_allclose(got, wanted, atol=1e-8, err_msg=f"{sender} to {group}")


@pytest.mark.parametrize("site", ["q", "k"])
@pytest.mark.parametrize("qk_norm", ["none", "head", "flat"])
@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_the_qk_fix_is_exact_where_all_behind_the_pattern_is_linear(positions, qk_norm, site):
    cfg = DecoderConfig(
        n_layers=1, d_model=8, n_heads=4, n_kv_heads=2, d_head=4, d_vocab=11, n_ctx=8, attn_only=True, norm="none",
        positions=positions, qk_norm=qk_norm,
    )  # fmt: skip
    setup = make_setup(cfg)
    over = ("layer", "head" if site == "q" else "kv_head")
    exact, fixed = (
        tool(setup.model, setup.clean, setup.corrupted, METRIC, site=site, over=over, **options).values
        for tool, options in ((activation_patching, {}), (attribution_patching, {"qk_fix": True}))
    )
    np.testing.assert_allclose(fixed["logit_difference"], exact["logit_difference"], atol=1e-8)
    assert np.ptp(exact["logit_difference"], axis=1).max() > 1e-3
