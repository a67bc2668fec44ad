"""Contexts restore, edits reach what they should and nothing else, and the first bad activation is named."""

from __future__ import annotations

import pytest
import torch

from models.decoder import HookedDecoder
from models.errors import NonFiniteError
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.fixture
def model():
    return random_model(CONFIGS["llama"])


@pytest.fixture
def tokens(model):
    return random_tokens(model.cfg)


def unhooked(model):
    return not any(point.in_use for point in model.hook_dict.values())


class Bang(Exception):
    pass


def bang(value, hook):
    raise Bang


def test_an_exception_in_a_hook_restores(model, tokens):
    plain = model(tokens)
    for kind in ("fwd_hooks", "bwd_hooks"):
        with pytest.raises(Bang):
            model.run_with_hooks(tokens, return_type="loss", **{kind: [("blocks.1.hook_mlp_out", bang)]}).backward()
        assert unhooked(model)
        model.zero_grad()
    assert model.run_state.positions is None
    assert torch.equal(model(tokens), plain)


def test_an_exception_in_the_body_is_not_hidden_by_hooks_that_never_fired(model):
    with pytest.raises(Bang), model.hooks([("hook_embed", lambda value, hook: None)]):
        raise Bang
    assert unhooked(model)


def test_an_exception_while_caching_restores(model, tokens):
    with model.hooks([("blocks.1.attn.hook_z", bang)]):
        with pytest.raises(Bang):
            model.run_with_cache(tokens)
        with pytest.raises(Bang):
            model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
        assert sum(point.in_use for point in model.hook_dict.values()) == 1
    assert unhooked(model)


def test_an_interrupt_restores(model, tokens):
    def interrupt(value, hook):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.run_with_hooks(tokens, fwd_hooks=[("hook_embed", interrupt)])
    assert unhooked(model)


def test_contexts_nest_and_the_outer_hooks_act_first(model, tokens):
    order = []

    def note(which):
        return lambda value, hook: order.append(which)

    name = "blocks.0.hook_resid_mid"
    with model.hooks([(name, note("outer"))]), model.hooks([(name, note("inner"))]):
        model.run_with_hooks(tokens, fwd_hooks=[(name, note("run"))])
    assert order == ["outer", "inner", "run"]
    with model.hooks([(name, note("outer"))]):
        model.run_with_hooks(tokens, fwd_hooks=[(name, note("run"))])
        order.clear()
        model(tokens)
    assert order == ["outer"]


def test_edits_chain_and_the_cache_sees_the_last(model, tokens):
    name = "blocks.0.hook_mlp_out"
    _, plain = model.run_with_cache(tokens)
    with model.hooks([(name, lambda value, hook: value * 2)]), model.hooks([(name, lambda value, hook: value + 1)]):
        _, cache = model.run_with_cache(tokens)
    torch.testing.assert_close(cache[name], plain[name] * 2 + 1)


@pytest.mark.parametrize("config", ["llama", "gpt2", "gptj", "transformer-2017", "attn-only-bare"])
def test_in_place_edits_take_effect_and_reach_nothing_else(config):
    model = random_model(CONFIGS[config])
    tokens = random_tokens(model.cfg)
    _, before = model.run_with_cache(tokens)

    def zero(value, hook):
        value[:] = 0

    for hook in model.hook_names():
        if hook.endswith("hook_scale"):
            continue  # dividing by 0
        returned = model.run_with_hooks(tokens, fwd_hooks=[(hook, lambda value, hook: torch.zeros_like(value))])
        with model.hooks([(hook, zero)]):
            edited, cache = model.run_with_cache(tokens)
        torch.testing.assert_close(edited, returned)
        assert not cache[hook].any()
        upstream = list(model.hook_names())[: list(model.hook_names()).index(hook)]
        for earlier in upstream:
            assert torch.equal(cache[earlier], before[earlier]), f"{hook} wrote into {earlier}"


@pytest.mark.parametrize("hook", ["attn.hook_attn_in", "hook_mlp_in", "hook_q_input"])
def test_in_place_edits_of_what_a_sublayer_reads_leave_the_skip_connection_alone(model, tokens, hook):
    def zero(value, hook):
        value[:] = 0

    with model.hooks([(f"blocks.0.{hook}", zero)]):
        _, cache = model.run_with_cache(tokens)
    writes = cache["attn_out", 0] + cache["mlp_out", 0]
    torch.testing.assert_close(cache["resid_post", 0], cache["resid_pre", 0] + writes)
    assert cache["resid_pre", 0].any()


def test_weights_are_untouched_by_every_kind_of_run(model, tokens):
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def scribble(value, hook):
        value.mul_(0).add_(1)

    model.run_with_hooks(tokens, fwd_hooks=[(lambda name: "ln1" not in name, scribble)])
    model.run_with_cache(tokens)
    model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    model.check_finite(tokens)
    model.generate(tokens, 3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_edits_of_weight_views_inside_hook_pos_embed_stay_outside_the_table():
    model = random_model(CONFIGS["gpt2"])
    before = model.W_pos.clone()

    def scribble(value, hook):
        value[:] = 7

    model.run_with_hooks(random_tokens(model.cfg), fwd_hooks=[("hook_pos_embed", scribble), ("hook_embed", scribble)])
    assert torch.equal(model.W_pos, before)


# -- scenario 19 -----------------------------------------------------------------------------------------------------


def test_finite_models_pass(model, tokens):
    real = torch.ones_like(tokens)
    real[0, :2] = 0
    model.check_finite(tokens)
    model.check_finite(tokens, attention_mask=real)
    model.check_finite(tokens, return_type="loss")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("weight", "hook"),
    [
        ("embed.W_E", "hook_embed"),
        ("blocks.0.attn.q.weight", "blocks.0.attn.hook_q"),
        ("blocks.1.attn.v.weight", "blocks.1.attn.hook_v"),
        ("blocks.1.attn.o.weight", "blocks.1.attn.hook_result"),
        ("blocks.1.ln2.w", "blocks.1.mlp.hook_pre"),
        ("blocks.1.mlp.gate.weight", "blocks.1.mlp.hook_pre"),
        ("blocks.0.mlp.inp.weight", "blocks.0.mlp.hook_pre_linear"),
        ("blocks.0.mlp.out.weight", "blocks.0.hook_mlp_out"),
        ("unembed.weight", "the output"),
    ],
)
def test_a_bad_weight_is_named_with_the_first_hook(model, tokens, weight, hook, value):
    with torch.no_grad():
        model.get_parameter(weight).fill_(value)
    with pytest.raises(NonFiniteError) as raised:
        model.check_finite(tokens)
    assert (f"first at {hook};" in str(raised.value)) or hook in str(raised.value).split(";")[0]
    assert weight in str(raised.value)
    assert unhooked(model)


def test_a_bad_activation_is_named(model, tokens):
    def poison(value, hook):
        value[1, 2] = torch.nan

    for name in model.hook_names():
        if name.endswith(("hook_scale", "hook_attn_scores", "hook_pattern")):
            continue
        with (
            model.hooks([(name, poison)]),
            pytest.raises(NonFiniteError, match=rf"NaN or inf, first at {name}; weights with NaN or inf: none"),
        ):
            model.check_finite(tokens)


# -- two models ------------------------------------------------------------------------------------------------------


def test_hooks_on_two_models_at_once(tokens):
    one, other = random_model(CONFIGS["llama"], seed=1), random_model(CONFIGS["llama"], seed=2)
    plain_one, plain_other = one(tokens), other(tokens)
    _, cache = one.run_with_cache(tokens)
    patch = [("blocks.0.hook_resid_post", lambda value, hook: cache[hook.name])]
    with other.hooks(patch):
        assert torch.equal(one(tokens), plain_one)
        assert not torch.allclose(other(tokens), plain_other)
    with one.hooks([("hook_embed", lambda value, hook: other(tokens, stop_at_layer=0))]):
        one(tokens)
    assert unhooked(one)
    assert unhooked(other)


def test_a_hook_may_run_its_own_model(model, tokens):
    seen = []

    def rerun(value, hook):
        if not seen:
            seen.append(hook.positions.tolist())
            model(tokens[:, :2])
            seen.append(hook.positions.tolist())

    model.run_with_hooks(tokens, fwd_hooks=[("blocks.0.hook_resid_post", rerun)])
    assert seen == [[list(range(6))]] * 2
    assert model.run_state.positions is None


def test_hook_points_know_their_name_and_layer():
    model = HookedDecoder(CONFIGS["llama"])
    assert model.hook_dict["blocks.1.attn.hook_z"].layer == 1
    assert model.hook_dict["hook_embed"].layer is None
    assert repr(model.hook_dict["hook_embed"]) == "HookPoint('hook_embed')"
