"""Promise 1: every hook that is listed acts, and acts as the equations say; one that cannot act is refused."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from models.errors import HookError, HookNeverFired, HookShapeError, UnknownHook
from models.hooks import decoder_hooks
from tests.configurations import CONFIGS, random_model, random_tokens
from tests.oracles.decoder import decode

EVERY_HOOK = [(name, hook) for name, cfg in CONFIGS.items() for hook in decoder_hooks(cfg)]
SPLIT = ("hook_q_input", "hook_k_input", "hook_v_input")


@cache
def _model(name):
    return random_model(CONFIGS[name])


@cache
def _run(name):
    model = _model(name)
    tokens = random_tokens(model.cfg, batch=1, n=4)
    return tokens, *model.run_with_cache(tokens)


@pytest.mark.parametrize(("name", "hook"), EVERY_HOOK)
def test_an_edit_acts_as_in_the_oracle(name, hook):
    model, (tokens, plain, activations) = _model(name), _run(name)
    delta = 0.5 * torch.rand(activations[hook].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    edited = model.run_with_hooks(tokens, fwd_hooks=[(hook, lambda value, hook: value + delta)])
    assert (edited - plain).abs().max() > 1e-6
    expected, _ = decode(model, tokens, {hook: delta})
    torch.testing.assert_close(edited, expected, rtol=1e-5, atol=1e-5)
    assert not any(point.in_use for point in model.hook_dict.values())


@pytest.mark.parametrize("name", ["llama", "reglu-gqa", "learned-mqa", "gptj"])
def test_every_single_head_acts(name):
    model, (tokens, plain, activations) = _model(name), _run(name)
    specs = model.hook_names().specs
    per_head = [hook for hook in specs if {"head", "kv_head"} & set(specs[hook].axes)]
    assert per_head
    for hook in per_head:
        axis = next(i for i, which in enumerate(specs[hook].axes) if which in ("head", "kv_head"))
        for head in range(activations[hook].shape[axis]):

            def edit(value, hook, axis=axis, head=head):
                part = value.select(axis, head)
                part += torch.linspace(0.1, 1, part.numel(), dtype=part.dtype).view(part.shape)

            edited = model.run_with_hooks(tokens, fwd_hooks=[(hook, edit)])
            assert (edited - plain).abs().max() > 1e-6, (hook, head)


@pytest.mark.parametrize("name", CONFIGS)
def test_identity_edits_on_all_hooks_change_nothing(name):
    model, (tokens, plain, _) = _model(name), _run(name)
    for left_out in ("_input", "ln1"):  # the per-head inputs and the ln1 hooks exclude each other
        hooks = [(lambda hook, out=left_out: out not in hook, _same)]
        torch.testing.assert_close(model.run_with_hooks(tokens, fwd_hooks=hooks), plain, rtol=0, atol=1e-10)


def _same(value, hook):
    return value


@pytest.mark.parametrize("input_hook", SPLIT)
@pytest.mark.parametrize("norm_hook", ["hook_scale", "hook_normalized"])
def test_ln1_and_a_per_head_input_are_refused_together(input_hook, norm_hook):
    model, (tokens, plain, _) = _model("llama"), _run("llama")
    pair = [(f"blocks.1.ln1.{norm_hook}", _same), (f"blocks.1.{input_hook}", _same)]
    for hooks in (pair, pair[::-1]):
        with pytest.raises(HookError, match=rf"ln1\.{norm_hook} and blocks\.1\.{input_hook} cannot both be acted on"):
            model.run_with_hooks(tokens, fwd_hooks=hooks)
        with model.hooks([hooks[0]]):
            with pytest.raises(HookError, match="cannot both"):
                model.run_with_hooks(tokens, fwd_hooks=[hooks[1]])
            model(tokens)
    assert not any(point.in_use for point in model.hook_dict.values())
    other_layer = [(f"blocks.0.ln1.{norm_hook}", _same), (f"blocks.1.{input_hook}", _same)]
    torch.testing.assert_close(model.run_with_hooks(tokens, fwd_hooks=other_layer), plain)


def test_post_norm_has_no_such_conflict():
    model, (tokens, plain, _) = _model("transformer-2017"), _run("transformer-2017")
    hooks = [("blocks.0.ln1.hook_scale", _same), ("blocks.0.hook_q_input", _same)]
    torch.testing.assert_close(model.run_with_hooks(tokens, fwd_hooks=hooks), plain)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("blocks.0.hook_reisd_pre", r"no hook 'blocks.0.hook_reisd_pre'.*nearest: blocks.0.hook_resid_pre"),
        ("blocks.2.hook_resid_pre", r"nearest: .*blocks.1.hook_resid_pre"),
        ("blocks.0.attn.hook_rot_q", "no hook"),
        ("", "no hook ''"),
        (lambda hook: "mpl" in hook, "the filter selects none of the"),
        (3, "not int"),
        (None, "not NoneType"),
    ],
)
def test_unknown_names_are_refused(wanted, message):
    model, (tokens, _, _) = _model("gpt2"), _run("gpt2")
    with pytest.raises(UnknownHook, match=message):
        model.run_with_hooks(tokens, fwd_hooks=[(wanted, _same)])
    with pytest.raises(UnknownHook, match=message):
        model.run_with_hooks(tokens, bwd_hooks=[(wanted, _same)])
    if wanted is not None:
        with pytest.raises(UnknownHook, match=message):
            model.run_with_cache(tokens, names_filter=wanted)


@pytest.mark.parametrize(
    "hooks", [("hook_embed", _same), [("hook_embed",)], [("hook_embed", 3)], {"hook_embed": _same}, ["hook_embed"]]
)
def test_what_is_no_list_of_pairs_is_refused(hooks):
    model, (tokens, _, _) = _model("gpt2"), _run("gpt2")
    with pytest.raises(HookError, match=r"hooks are a list of pairs \(name, function\); got"):
        model.run_with_hooks(tokens, fwd_hooks=hooks)
    assert not any(point.in_use for point in model.hook_dict.values())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda value: value[:, :1], r"returned shape \(1, 1, 8\); expected \(1, 4, 8\)"),
        (lambda value: value[0], r"returned shape \(4, 8\); expected"),
        (lambda value: value.float(), r"returned dtype torch.float32; expected torch.float64"),
        (lambda value: value.to("meta"), r"returned device meta; expected cpu"),
        (lambda value: value.tolist(), r"returned list; expected a tensor of shape \(1, 4, 8\)"),
        (lambda value: 0, r"returned int; expected a tensor"),
    ],
)
def test_another_shape_type_or_device_is_refused(returned, message):
    model, (tokens, plain, _) = _model("gpt2"), _run("gpt2")
    with pytest.raises(HookShapeError, match=f"the hook at blocks.1.hook_attn_out {message}"):
        model.run_with_hooks(tokens, fwd_hooks=[("blocks.1.hook_attn_out", lambda value, hook: returned(value))])
    torch.testing.assert_close(model(tokens), plain)


@pytest.mark.parametrize(
    ("hook", "run"),
    [
        ("blocks.1.hook_resid_pre", lambda model, tokens: model(tokens, stop_at_layer=1)),
        ("blocks.0.hook_resid_pre", lambda model, tokens: model(tokens, stop_at_layer=0)),
        ("ln_final.hook_scale", lambda model, tokens: model(tokens, stop_at_layer=2)),
        ("hook_embed", lambda model, tokens: None),
    ],
)
def test_a_hook_that_never_fired_raises(hook, run):
    model, (tokens, _, _) = _model("gpt2"), _run("gpt2")
    with pytest.raises(HookNeverFired, match=f"never fired: {hook}"), model.hooks([(hook, _same)]):
        run(model, tokens)
    assert not any(point.in_use for point in model.hook_dict.values())


def test_the_message_counts_the_hooks_that_never_fired():
    model = _model("gpt2")
    with (
        pytest.raises(HookNeverFired, match=r"hook_embed, hook_pos_embed, blocks.0.hook_resid_pre and \d+ more"),
        model.hooks([(lambda hook: "ln1" not in hook, _same)]),
    ):
        pass


def test_a_hook_fired_by_one_of_several_runs_is_content():
    model, (tokens, _, _) = _model("gpt2"), _run("gpt2")
    with model.hooks([("blocks.1.hook_resid_pre", _same)]):
        model(tokens, stop_at_layer=1)
        model(tokens)
