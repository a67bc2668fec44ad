"""NaN and inf in weights or activations are named by every tool, at the first hook they reach, and never by luck."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from interp import ablate, ablation_sweep, activation_patching, attribution_patching, find_heads, path_patching
from interp.finite import check_computed, check_model
from interp.metrics import LogitDifference
from interp.readout import (
    attention,
    lens_increments,
    logit_attribution,
    logit_lens,
    next_token,
    source_attribution,
    stream_growth,
    train_tuned_lens,
)
from models import DecoderConfig, HookedDecoder
from models.errors import NonFiniteError
from tests.configurations import CONFIGS, random_model

CLEAN, CORRUPTED = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[1, 2, 6, 4, 5]])
METRIC = LogitDifference(3, 4)
PAIR = (CLEAN, CORRUPTED, METRIC)
TOOLS: dict[str, Callable] = {
    "logit_lens": lambda m: logit_lens(m, CLEAN),
    "logit_lens, target": lambda m: logit_lens(m, CLEAN, target=3, top_k=1),
    "lens_increments": lambda m: lens_increments(m, CLEAN[0]),
    "attention": lambda m: attention(m, CLEAN[0]),
    "next_token": lambda m: next_token(m, CLEAN[0]),
    "logit_attribution": lambda m: logit_attribution(m, CLEAN, 3),
    "source_attribution": lambda m: source_attribution(m, CLEAN, "L0H0", 3),
    "stream_growth": lambda m: stream_growth(m, CLEAN),
    "train_tuned_lens": lambda m: train_tuned_lens(m, itertools.repeat(CLEAN), n_steps=2),
    "activation_patching": lambda m: activation_patching(m, *PAIR),
    "activation_patching, naive": lambda m: activation_patching(m, *PAIR, over=("pos",)),
    "ablation_sweep": lambda m: ablation_sweep(m, CLEAN, METRIC),
    "ablation_sweep, zero": lambda m: ablation_sweep(m, CLEAN, METRIC, method="zero"),
    "ablate": lambda m: ablate(m, CLEAN, METRIC, "L0H0"),
    "attribution_patching": lambda m: attribution_patching(m, *PAIR),
    "path_patching": lambda m: path_patching(m, *PAIR),
}
NAMED = {
    "blocks.1.attn.q.bias": r"first at blocks\.1\.attn\.hook_q; .*blocks\.1\.attn\.q\.bias",
    "blocks.0.attn.k.weight": r"first at blocks\.0\.attn\.hook_k; .*blocks\.0\.attn\.k\.weight",
    "blocks.0.attn.v.weight": r"first at blocks\.0\.attn\.hook_v; .*blocks\.0\.attn\.v\.weight",
    "blocks.0.mlp.inp.weight": r"first at blocks\.0\.mlp\.hook_pre; .*blocks\.0\.mlp\.inp\.weight",
    "blocks.0.mlp.inp.bias": r"first at blocks\.0\.mlp\.hook_pre; .*blocks\.0\.mlp\.inp\.bias",
    "blocks.0.ln2.w": r"first at blocks\.0\.mlp\.hook_pre; .*blocks\.0\.ln2\.w",
    "embed.W_E": r"first at hook_embed; .*embed\.W_E",
}


@pytest.fixture
def model() -> HookedDecoder:
    return random_model(CONFIGS["gpt2"].replace(unembed_bias=True, act="relu"), dtype=torch.float32)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", NAMED)
@pytest.mark.parametrize("tool", TOOLS)
def test_weights_that_are_not_finite_are_named(tool, where, bad, model):
    with torch.no_grad():
        model.get_parameter(where)[1] = bad
    with pytest.raises(NonFiniteError, match=NAMED[where]):
        TOOLS[tool](model)


ALL_LOGITS = (
    "logit_lens",
    "lens_increments",
    "next_token",
    "logit_attribution",
    "source_attribution",
    "train_tuned_lens",
)


@pytest.mark.parametrize("tool", ALL_LOGITS)
def test_an_output_that_is_not_finite_is_named_by_what_reads_it(tool, model):
    with torch.no_grad():
        model.unembed.bias[1] = torch.nan
    with pytest.raises(NonFiniteError, match=r"though every hook is finite; weights: unembed\.bias"):
        TOOLS[tool](model)


@pytest.mark.parametrize("name", ["llama", "gptj", "attn-only", "transformer-2017", "reglu-gqa"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_every_weight_of_every_architecture_is_found_by_a_sweep(name, bad):
    for parameter in dict(random_model(CONFIGS[name], dtype=torch.float32).named_parameters()):
        model = random_model(CONFIGS[name], dtype=torch.float32)
        with torch.no_grad():
            model.get_parameter(parameter)[:] = bad
        with pytest.raises(NonFiniteError, match=f"weights.*: {parameter}$"):
            ablation_sweep(model, CLEAN, METRIC)


@pytest.mark.parametrize("tool", [name for name in TOOLS if name != "path_patching"])  # it takes no hooks
@pytest.mark.parametrize("name", ["blocks.0.hook_resid_pre", "blocks.1.attn.hook_q"])
def test_activations_that_are_not_finite_are_named(tool, name, model):
    def spoil(value, hook):
        value[:, 1] = torch.nan

    with model.hooks([(name, spoil)]), pytest.raises(NonFiniteError, match=f"first at {name}; .*NaN or inf: none"):
        TOOLS[tool](model)


def test_fused_attention_hides_them_which_is_why_weights_are_read(model):
    with torch.no_grad():
        model.blocks[1].attn.q.bias[1] = torch.nan
    assert model(CLEAN).isfinite().all()


@pytest.mark.parametrize("tool", TOOLS)
def test_finite_models_pass(tool, model):
    TOOLS[tool](model)


def test_weights_that_no_run_reaches_do_not_count():
    model = random_model(CONFIGS["learned-mqa"])
    with torch.no_grad():
        model.W_E[9] = torch.nan
    TOOLS["logit_lens"](model)
    with pytest.raises(NonFiniteError, match="first at hook_embed"):
        logit_lens(model, torch.tensor([[1, 9]]))


def test_weights_whose_sum_outgrows_float32_are_finite_still():
    model = HookedDecoder(DecoderConfig(n_layers=1, d_model=8, n_heads=2, d_vocab=11, n_ctx=8))
    with torch.no_grad():
        model.blocks[0].attn.q.bias[:] = 3e38
    check_model(model, CLEAN)


def test_a_finite_model_is_not_run(model):
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    check_model(model, CLEAN, CORRUPTED)
    check_computed(model, CLEAN, computed={"x": torch.zeros(3)})
    assert not calls


@pytest.mark.parametrize("tool", [activation_patching, attribution_patching, path_patching])
def test_a_metric_without_a_value_is_said_so(tool, model):
    def undefined(logits):
        return logits[:, -1, 0] * torch.inf * 0

    with pytest.raises(NonFiniteError, match=r"custom of the plain runs.*every hook of a plain run.*another metric"):
        tool(model, CLEAN, CORRUPTED, undefined)
    with pytest.raises(NonFiniteError, match="custom of the untouched run, custom of the ablated"):
        ablation_sweep(model, CLEAN, undefined)


def test_a_training_that_diverges_is_said_so(model):
    with pytest.raises(NonFiniteError, match=r"the KL became NaN or inf in step .*; lower lr"):
        train_tuned_lens(model, itertools.repeat(CLEAN), n_steps=50, lr=1e30)


def test_find_heads_names_them_too(model):
    with torch.no_grad():
        model.blocks[1].attn.q.bias[1] = torch.nan
    with pytest.raises(NonFiniteError, match=r"first at blocks\.1\.attn\.hook_q"):
        find_heads(model, n_sequences=None, length=5)
