"""A folded model says the same, in simpler weights, and leaves its source alone."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from models.errors import ConfigError
from models.loading import load_model
from models.loading.fold import fold
from tests.configurations import CONFIGS, random_config, random_model, random_tokens

EVERY = {**CONFIGS, **{f"random-{seed}": random_config(seed) for seed in range(12)}}
FLAGS = ("norm", "centre_writes", "centre_unembed", "value_bias")


def choices(cfg):
    """Give every combination of flags that can be had of an architecture."""
    for values in product([False, True], repeat=4):
        chosen = dict(zip(FLAGS, values, strict=True))
        if cfg.norm_position == "post" and (chosen["norm"] or chosen["centre_writes"]):
            continue
        if chosen["centre_writes"] and cfg.norm != "layer":
            continue
        yield chosen


def most(cfg):
    return list(choices(cfg))[-1]


@pytest.mark.parametrize("name", EVERY)
def test_log_probabilities_are_the_same_for_every_choice(name):
    model = random_model(EVERY[name])
    tokens = random_tokens(model.cfg)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    logits = model(tokens)
    for chosen in choices(model.cfg):
        got = fold(model, **chosen)(tokens)
        torch.testing.assert_close(got.log_softmax(-1), logits.log_softmax(-1).detach())
        if not chosen["centre_unembed"]:
            torch.testing.assert_close(got, logits.detach())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", EVERY)
def test_padding_still_changes_nothing(name):
    model = random_model(EVERY[name])
    folded, tokens = fold(model, **most(model.cfg)), random_tokens(model.cfg)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :2] = False
    got, expected = folded(tokens, attention_mask=real), model(tokens, attention_mask=real)
    torch.testing.assert_close(got.log_softmax(-1)[real], expected.log_softmax(-1)[real].detach())


CENTRED = [name for name, cfg in EVERY.items() if cfg.norm == "layer" and cfg.norm_position == "pre"]


@pytest.mark.parametrize("name", CENTRED)
def test_centred_writes_have_no_mean(name):
    model = random_model(EVERY[name])
    _, cache = fold(model, norm=False).run_with_cache(random_tokens(model.cfg))
    written = [
        name for name in cache if name.endswith(("hook_embed", "pos_embed", "attn_out", "mlp_out", "hook_result"))
    ]
    assert len(written) >= 1 + 2 * model.cfg.n_layers
    for hook in written:
        assert cache[hook].mean(-1).abs().max() < 1e-12, hook


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "geglu", "no-positions"])
def test_a_folded_norm_has_no_gain_and_no_bias(name):
    model = random_model(EVERY[name])
    folded = fold(model, centre_writes=False)
    assert not folded.cfg.norm_bias
    for key, value in folded.named_parameters():
        if ".ln" in key or key.startswith("ln"):
            assert key.endswith(".w")
            assert (value == 1).all(), key
    _, cache = folded.run_with_cache(random_tokens(model.cfg))
    _, raw = model.run_with_cache(random_tokens(model.cfg))
    torch.testing.assert_close(cache["normalized", 0, "ln1"], raw["normalized", 0, "ln1"])


def test_a_centred_unembedding_moves_each_positions_logits_together():
    model = random_model(EVERY["gptj"])
    folded = fold(model, norm=False, centre_writes=False, value_bias=False)
    assert folded.W_U.mean(1).abs().max() < 1e-12
    assert folded.b_U.mean().abs() < 1e-12
    assert folded(random_tokens(model.cfg)).mean(-1).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["gpt2", "qwen2", "learned-mqa"])
def test_value_biases_move_to_the_output(name):
    model = random_model(EVERY[name])
    flags = {"norm": False, "centre_writes": False, "centre_unembed": False}
    folded, tokens = fold(model, **flags), random_tokens(model.cfg)
    assert (folded.b_V == 0).all()
    _, cache = folded.run_with_cache(tokens)
    _, raw = model.run_with_cache(tokens)
    for hook in ("hook_attn_out", "hook_resid_post"):
        torch.testing.assert_close(cache[f"blocks.1.{hook}"], raw[f"blocks.1.{hook}"])
    assert not torch.allclose(cache["z", 1], raw["z", 1])


def test_each_option_changes_what_it_says_and_nothing_else():
    model = random_model(EVERY["learned-mqa"])
    none = dict.fromkeys(FLAGS, False)
    same = fold(model, **none)
    assert same.cfg == model.cfg
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in same.state_dict().items())
    for flag in FLAGS:
        folded = fold(model, **(none | {flag: True}))
        assert any(not torch.equal(value, model.state_dict()[key]) for key, value in folded.state_dict().items()), flag


def test_the_copy_is_frozen_independent_and_keeps_tokenizer_dtype_and_device():
    model = random_model(EVERY["gpt2"], dtype=torch.float32).train()
    model.tokenizer = object()
    folded = fold(model)
    assert not folded.training
    assert model.training
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert folded.tokenizer is model.tokenizer
    assert (folded.dtype, folded.device) == (torch.float32, model.device)
    own = {value.data_ptr() for value in model.parameters()}
    assert not any(value.data_ptr() in own for value in folded.parameters())


def test_hooks_work_on_the_copy():
    folded, tokens = fold(random_model(EVERY["gpt2"])), random_tokens(EVERY["gpt2"])
    plain = folded(tokens)
    changed = folded.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_mlp_out", lambda value, hook: value * 0)])
    assert not torch.allclose(plain, changed)


def test_folding_twice_is_folding_once():
    model = random_model(EVERY["gpt2"])
    once = fold(model)
    twice = fold(once)
    for key, value in twice.named_parameters():
        torch.testing.assert_close(value, once.get_parameter(key))


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("transformer-2017", {}, r"post-norm: .* use fold\(model, norm=False, centre_writes=False\)"),
        ("transformer-2017", {"norm": False}, "post-norm"),
        ("llama", {}, r"ignores the mean; this model has norm='rms': use fold\(model, centre_writes=False\)"),
        ("no-norm", {"norm": False}, "norm='none'"),
    ],
)
def test_what_cannot_be_folded_is_refused(name, flags, message):
    with pytest.raises(ConfigError, match=message):
        fold(random_model(EVERY[name]), **flags)


@pytest.mark.smollm2
def test_smollm2():
    model = load_model("smollm2")
    tokens = model.to_tokens("The capital of France is")
    got, expected = fold(model, centre_writes=False)(tokens), model(tokens)
    torch.testing.assert_close(got.log_softmax(-1), expected.log_softmax(-1), rtol=0, atol=2e-3)
