"""Scenario 13: the gradient at every hook is the finite difference, and backward hooks may change it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from models.errors import HookError, HookNeverFired, HookShapeError
from models.hooks import decoder_hooks
from tests.configurations import CONFIGS, random_model, random_tokens

SPLIT = ("hook_q_input", "hook_k_input", "hook_v_input")


@cache
def _model(name):
    return random_model(CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_finite_differences(name):
    model = _model(name)
    tokens = random_tokens(model.cfg, n=5)
    loss, cached = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    assert torch.equal(loss, loss.detach())
    names = decoder_hooks(model.cfg)
    per_head = [hook for hook in names if hook.endswith(SPLIT)]
    assert {hook for hook in names if f"{hook}_grad" in cached} == set(names) - set(per_head)
    _, split = model.run_with_cache(tokens, return_type="loss", incl_bwd=True, names_filter=per_head)
    gradients = {**cached, **split}
    generator = torch.Generator().manual_seed(0)
    for hook in names:
        gradient = gradients[f"{hook}_grad"]
        assert gradient.shape == cached[hook].shape
        direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        step = 1e-6 * direction
        up = model.run_with_hooks(tokens, return_type="loss", fwd_hooks=[(hook, lambda v, hook: v + step)])  # noqa: B023
        down = model.run_with_hooks(tokens, return_type="loss", fwd_hooks=[(hook, lambda v, hook: v - step)])  # noqa: B023
        measured = (up - down) / 2e-6
        expected = (gradient * direction).sum()
        torch.testing.assert_close(measured, expected, rtol=1e-4, atol=1e-6, msg=lambda m, hook=hook: f"{hook}: {m}")
        assert gradient.abs().sum() > 0, hook


@pytest.mark.parametrize("name", ["llama", "gpt2", "gptj", "transformer-2017"])
def test_a_backward_hook_that_returns_its_gradient_changes_nothing(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg)
    model(tokens, return_type="loss").backward()
    plain = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    for fn in (lambda grad, hook: grad, lambda grad, hook: None):
        model.zero_grad()
        hooks = [(lambda hook: not hook.endswith(SPLIT), fn)]
        model.run_with_hooks(tokens, return_type="loss", bwd_hooks=hooks).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, plain[key], msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("how", ["returned", "in place"])
def test_a_backward_hook_edits(how):
    model = random_model(CONFIGS["gpt2"])
    tokens = random_tokens(model.cfg)

    def stop(grad, hook):
        if how == "returned":
            return torch.zeros_like(grad)
        grad.zero_()

    model.run_with_hooks(tokens, return_type="loss", bwd_hooks=[("blocks.0.hook_mlp_out", stop)]).backward()
    assert not model.blocks[0].mlp.out.weight.grad.any()
    assert not model.blocks[0].mlp.inp.weight.grad.any()
    with_stop = model.embed.W_E.grad.clone()
    assert model.blocks[0].attn.q.weight.grad.any()

    # the same as a forward pass in which that write is a constant
    model.zero_grad()
    constant = [("blocks.0.hook_mlp_out", lambda value, hook: value.detach())]
    model.run_with_hooks(tokens, return_type="loss", fwd_hooks=constant).backward()
    torch.testing.assert_close(with_stop, model.embed.W_E.grad)


def test_backward_hooks_see_absolute_gradients_and_chain():
    model = random_model(CONFIGS["llama"])
    tokens = random_tokens(model.cfg)
    _, cached = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    name, seen = "blocks.1.attn.hook_z", []

    def double(grad, hook):
        seen.append(grad.clone())
        return grad * 2

    with model.hooks(bwd_hooks=[(name, double), (name, double)]):
        _, doubled = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    torch.testing.assert_close(seen[0], cached[f"{name}_grad"])
    torch.testing.assert_close(seen[1], 2 * cached[f"{name}_grad"])
    torch.testing.assert_close(doubled["blocks.1.attn.hook_v_grad"], 4 * cached["blocks.1.attn.hook_v_grad"])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda grad: grad[:, :1], r"shape \(2, 1, 8\); expected \(2, 6, 8\)"),
        (lambda grad: grad.float(), "dtype torch.float32; expected torch.float64"),
        (lambda grad: 0.0, "float; expected a tensor"),
    ],
)
def test_a_backward_hook_that_returns_another_shape_is_refused(returned, message):
    model = random_model(CONFIGS["gpt2"])
    hooks = [("blocks.0.hook_mlp_out", lambda grad, hook: returned(grad))]
    loss = model.run_with_hooks(random_tokens(model.cfg), return_type="loss", bwd_hooks=hooks)
    with pytest.raises(HookShapeError, match=f"the backward hook at blocks.0.hook_mlp_out returned {message}"):
        loss.backward()


@pytest.mark.parametrize("name", ["llama", "gpt2", "no-norm", "attn-only-bare", "neox"])
def test_gradients_of_a_frozen_model_and_inside_no_grad(name):
    model = random_model(CONFIGS[name])
    tokens = random_tokens(model.cfg)

    def gradients(**options):
        return model.run_with_cache(tokens, return_type="loss", incl_bwd=True, **options)

    loss, expected = gradients()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not loss.requires_grad
    contexts = [torch.no_grad, torch.inference_mode]
    for frozen in (False, True):
        model.requires_grad_(not frozen)
        for context in contexts:
            with context():
                loss_there, there = gradients()
            torch.testing.assert_close(loss_there, loss)
            for key in expected:
                torch.testing.assert_close(there[key], expected[key])
    for hook in model.hook_names():  # frozen, each alone: it is the root of its own graph
        if not hook.endswith(SPLIT):
            _, alone = gradients(names_filter=hook)
            torch.testing.assert_close(alone[f"{hook}_grad"], expected[f"{hook}_grad"])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tokens_made_in_inference_mode():
    model = random_model(CONFIGS["llama"])
    with torch.inference_mode():
        tokens = random_tokens(model.cfg)
        _, cached = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    assert cached["hook_embed_grad"].any()
    model(tokens, return_type="loss").backward()


def test_padding_gets_no_gradient():
    model = _model("gpt2")
    tokens = random_tokens(model.cfg)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[0, :3] = False
    _, cached = model.run_with_cache(tokens, return_type="loss", incl_bwd=True, attention_mask=real)
    assert not cached["hook_embed_grad"][0, :3].any()
    assert cached["hook_embed_grad"][0, 3:5].any()


def test_backward_hooks_without_gradients_raise():
    model = _model("gpt2")
    hooks = [("hook_embed", lambda grad, hook: grad)]
    with torch.no_grad(), pytest.raises(HookNeverFired, match=r"backward hooks never reached: hook_embed.*enable_grad"):
        model.run_with_hooks(random_tokens(model.cfg), bwd_hooks=hooks)


@pytest.mark.parametrize("options", [{}, {"return_type": "both"}, {"return_type": "loss", "loss_per_token": True}])
def test_gradients_need_a_scalar(options):
    model = _model("gpt2")
    with pytest.raises(HookError, match=r"incl_bwd needs a scalar result.*return_type='loss'"):
        model.run_with_cache(random_tokens(model.cfg), incl_bwd=True, **options)


def test_gradients_of_ln1_and_of_per_head_inputs_are_refused_together():
    model = _model("llama")
    names = ["blocks.0.ln1.hook_scale", "blocks.0.hook_q_input"]
    with pytest.raises(HookError, match="cannot both be acted on"):
        model.run_with_cache(random_tokens(model.cfg), return_type="loss", incl_bwd=True, names_filter=names)


def test_per_head_input_gradients_add_up_to_what_attention_reads():
    model = _model("llama")
    tokens = random_tokens(model.cfg)
    wanted = [f"blocks.1.{hook}" for hook in SPLIT]
    _, split = model.run_with_cache(tokens, return_type="loss", incl_bwd=True, names_filter=wanted)
    _, whole = model.run_with_cache(
        tokens, return_type="loss", incl_bwd=True, names_filter="blocks.1.attn.hook_attn_in"
    )
    total = sum(split[f"{hook}_grad"].sum(2) for hook in wanted)
    torch.testing.assert_close(total, whole["blocks.1.attn.hook_attn_in_grad"])
