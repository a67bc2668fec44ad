"""How much memory a sweep takes beside the runs it starts from: no more than it was allowed."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from interp.decoders import can_resume
from interp.interventions import sweep
from interp.interventions.activation_patching import activation_patching
from interp.interventions.path_patching import path_patching
from interp.metrics import KL, LogitDifference, Probability
from models import DecoderConfig, HookedDecoder
from tests.interp.interventions.setups import ANSWER, ARCHITECTURES, WRONG, make_setup
from tests.oracles.live_bytes import LiveBytes

DIFFERENCE = LogitDifference(ANSWER, WRONG)


def test_live_bytes_sees_what_is_freed():
    before = torch.zeros(1000)
    with LiveBytes() as memory:
        kept = before[:500] + torch.zeros(1000)[:500]
        for _ in range(3):
            torch.zeros(5000).add_(1).view(50, 100)
    assert memory.peak == 4 * 5500
    assert memory.now == 4 * len(kept)


@pytest.mark.parametrize("site", ["resid_pre", "z", "k", "pattern", "mlp_out", "result"])
@pytest.mark.parametrize("whole_vocabulary", [False, True])
def test_peak_memory_stays_under_the_budget(site, whole_vocabulary, monkeypatch):
    cfg = DecoderConfig(n_layers=4, d_model=32, n_heads=4, d_vocab=300, n_ctx=64, d_mlp=32)
    setup = make_setup(cfg, dtype=torch.float32, width=24)
    metric = Probability([3, 4, 5]) if whole_vocabulary else DIFFERENCE
    over = ("layer", "pos") if site != "pattern" else ("layer", "head", "dest_pos")
    monkeypatch.setattr("interp.interventions.resume.MLP_CHUNK", 64)
    monkeypatch.setattr(sweep, "MLP_CHUNK", 64)
    monkeypatch.setattr(sweep, "_WAVE_TOKENS", 1 << 40)  # so that memory alone makes the chunks
    peaks: list[int] = []
    module = import_module("interp.interventions.activation_patching")
    original = module.resumed_sweep

    def measured(*args, **kwargs):
        with LiveBytes() as memory:
            found = original(*args, **kwargs)
        peaks.append(memory.peak)
        return found

    monkeypatch.setattr(module, "resumed_sweep", measured)
    call = (setup.model, setup.clean, setup.corrupted, metric)
    for budget in (1 << 19, 1 << 21, 1 << 23):
        activation_patching(*call, site=site, over=over, memory=budget)
        assert peaks[-1] <= budget, (site, budget)
    assert peaks[1] > (1 << 21) / 8, "the budget is made use of"
    assert peaks[0] < peaks[1]


@pytest.mark.parametrize("metric", [Probability([3, 4, 5]), KL(torch.zeros(3, 3000))], ids=["probability", "kl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_a_whole_vocabulary_count_for_the_budget(dtype, metric, monkeypatch):
    cfg = DecoderConfig(n_layers=3, d_model=8, n_heads=4, d_vocab=3000, n_ctx=32, d_mlp=8)
    setup = make_setup(cfg, dtype=dtype, width=16)
    monkeypatch.setattr("interp.interventions.resume.MLP_CHUNK", 64)
    monkeypatch.setattr(sweep, "MLP_CHUNK", 64)
    monkeypatch.setattr(sweep, "_WAVE_TOKENS", 1 << 40)
    peaks: list[int] = []
    for name, engine in (("activation_patching", "resumed_sweep"), ("path_patching", "_patch_all")):
        module = import_module(f"interp.interventions.{name}")
        original = getattr(module, engine)

        def measured(*args, original=original, **kwargs):
            with LiveBytes() as memory:
                found = original(*args, **kwargs)
            peaks.append(memory.peak)
            return found

        monkeypatch.setattr(module, engine, measured)
    call, budget = (setup.model, setup.clean, setup.corrupted, metric), 400_000
    activation_patching(*call, memory=budget)
    path_patching(*call, memory=budget)
    assert all(budget / 4 < peak <= budget for peak in peaks), peaks


def test_whole_weights_are_not_stacked_to_ask_what_a_model_is():
    model = HookedDecoder(ARCHITECTURES["gpt2"])
    with LiveBytes() as memory:
        assert can_resume(model)
    assert memory.peak == 0
