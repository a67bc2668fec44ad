"""Taking a write from one input is what a hook on that input does; composition by hand shows where it should."""

from __future__ import annotations

import pytest
import torch

from interp.detectors import induction
from interp.prompts import repeated_tokens
from interp.sites import Head
from interp.weights.links import link_effects, whole_effects
from models.errors import InputError
from models.loading import load_model
from tests.configurations import CONFIGS, random_model

TOKENS = torch.tensor([[1, 2, 3, 4, 1, 2, 3, 4], [5, 6, 7, 1, 5, 6, 7, 1], [0, 9, 2, 8, 0, 9, 2, 8]])
SIDE = {"K": "k", "Q": "q"}


def by_hooks(model, earlier, later, route):
    """Return the fall of a later head's induction score when a hook takes the write from its copy of the stream."""
    _, cache = model.run_with_cache(TOKENS)
    result = cache["result", earlier.layer][:, :, earlier.head]
    write = result - result.mean((0, 1))
    index = later.head if route == "Q" else later.head // model.cfg.group_size

    def without(x, hook):
        x[:, :, index] -= write

    def score(pattern):
        return induction.score(pattern[:, [later.head]].float(), TOKENS)[:, 0]

    patterns = {}
    hooks = [
        (f"blocks.{later.layer}.hook_{SIDE[route]}_input", without),
        (f"blocks.{later.layer}.attn.hook_pattern", lambda pattern, hook: patterns.update(it=pattern.clone())),
    ]
    model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    return score(cache["pattern", later.layer]) - score(patterns["it"])


PRE = ["gpt2", "llama", "mistral", "qwen2", "gptj", "neox", "no-norm", "attn-only", "learned-mqa", "interleaved-gqa"]
TWO_LAYERS = ["qwen3", "flat-qk-norm", "normed-no-positions", "by-layer"]


@pytest.mark.parametrize("route", ["K", "Q"])
@pytest.mark.parametrize("name", [*PRE, *TWO_LAYERS])
def test_a_link_is_a_hook_on_that_heads_input(name, route):
    model = random_model(CONFIGS[name] if name in TWO_LAYERS else CONFIGS[name].replace(n_layers=3))
    links = [(Head(0, 1), Head(1, 0)), (Head(0, 0), Head(1, 1))]
    if name not in TWO_LAYERS:
        links += [(Head(0, 1), Head(2, 1)), (Head(1, 0), Head(2, 1)), (Head(0, 0), Head(2, 0))]
    effects, _ = link_effects(model, TOKENS, links, route)
    assert set(effects) == set(links)
    for (earlier, later), effect in effects.items():
        torch.testing.assert_close(effect, by_hooks(model, earlier, later, route).detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["transformer-2017", "post-rms-rotary", "post-attn-only"])
def test_post_norm_the_write_is_what_has_become_of_it(name):
    """With all norms frozen, the stream without the write is that of a run in which the head wrote its mean."""
    model = random_model(CONFIGS[name])
    _, cache = model.run_with_cache(TOKENS)
    frozen = [
        (hook, lambda value, hook: cache[hook.name].clone())
        for hook in model.hook_names()
        if hook.startswith("blocks.0") and hook.endswith(("hook_scale", "hook_mlp_out"))
    ]

    def mean(result, hook):
        result[:, :, 1] = result[:, :, 1].mean((0, 1))

    streams = {}
    hooks = [
        *frozen,
        ("blocks.0.attn.hook_result", mean),
        ("blocks.1.hook_resid_pre", lambda x, hook: streams.update(it=x.clone())),
    ]
    model.run_with_hooks(TOKENS, fwd_hooks=hooks)
    attn, step = model.blocks[1].attn, model.step(TOKENS, None)
    k = attn.keys(attn.project(attn.k, streams["it"]), step)
    q = cache["rot_q" if model.cfg.positions == "rotary" else "q", 1]
    pattern = step.mask(attn.window).apply(attn.scores(q, k)).softmax(-1).float()
    expected = induction.score(cache["pattern", 1].float(), TOKENS) - induction.score(pattern, TOKENS)
    effects, intact = link_effects(model, TOKENS, [(Head(0, 1), Head(1, 1))], "K")
    torch.testing.assert_close(effects[Head(0, 1), Head(1, 1)], expected[:, 1].detach(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(intact[Head(1, 1)], induction.score(cache["pattern", 1].float(), TOKENS)[:, 1].detach())


def every_pair(model):
    heads = range(model.cfg.n_heads)
    return [(Head(0, a), Head(1, b)) for a in heads for b in heads]


@pytest.mark.parametrize("toy", ["toy", "toy-attn"])
def test_the_toys_induction_heads_read_previous_tokens_through_their_keys(toy):
    model = load_model(toy)
    prompts = repeated_tokens(model, 4)
    links = every_pair(model)
    keys, intact = link_effects(model, prompts.repeated, links, "K")
    queries, _ = link_effects(model, prompts.repeated, links, "Q")
    best = max(keys, key=lambda link: float(keys[link].mean()))
    assert keys[best].mean() > 0.6 * intact[best[1]].mean()
    assert max(float(effect.mean()) for effect in queries.values()) < 0.1


def test_ticks_once_per_earlier_layer_and_nothing_for_nothing():
    model = random_model(CONFIGS["gpt2"].replace(n_layers=3))
    ticks = []
    links = [(Head(0, 0), Head(2, 0)), (Head(0, 1), Head(1, 0)), (Head(1, 0), Head(2, 0))]
    link_effects(model, TOKENS, links, "K", lambda: ticks.append(1))
    assert len(ticks) == 2
    assert link_effects(model, TOKENS, [], "K") == ({}, {})


def test_a_wrong_order_is_refused():
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(InputError, match="L1H0 does not write before L1H1 reads; name the earlier head first"):
        link_effects(model, TOKENS, [(Head(1, 0), Head(1, 1))], "K")


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer-2017"])
def test_the_whole_effect_is_that_of_a_mean_ablated_head(name):
    model = random_model(CONFIGS[name].replace(n_layers=3))
    links = [(Head(0, 1), Head(1, 0)), (Head(0, 1), Head(2, 1)), (Head(1, 0), Head(2, 1))]
    effects = whole_effects(model, TOKENS, links)
    _, cache = model.run_with_cache(TOKENS)
    for earlier, later in links:
        seen = {}

        def ablate(z, hook, earlier=earlier):
            z[:, :, earlier.head] = z[:, :, earlier.head].mean((0, 1))

        def keep(pattern, hook, seen=seen):
            seen["pattern"] = pattern.clone()

        hooks = [(f"blocks.{earlier.layer}.attn.hook_z", ablate), (f"blocks.{later.layer}.attn.hook_pattern", keep)]
        model.run_with_hooks(TOKENS, fwd_hooks=hooks)
        before, after = (induction.score(p.float(), TOKENS) for p in (cache["pattern", later.layer], seen["pattern"]))
        torch.testing.assert_close(effects[earlier, later], (before - after)[:, later.head].detach())
    assert whole_effects(model, TOKENS, []) == {}


def test_in_two_layers_without_mlps_the_whole_effect_is_that_of_keys_queries_and_values_together():
    """The toy reads its previous tokens through keys, so that this one path is nearly all of it."""
    model = load_model("toy-attn")
    tokens = repeated_tokens(model, 4).repeated
    links = every_pair(model)
    through_keys, _ = link_effects(model, tokens, links, "K")
    whole = whole_effects(model, tokens, links)
    best = max(whole, key=lambda link: float(whole[link].mean()))
    assert through_keys[best].mean() == pytest.approx(float(whole[best].mean()), abs=0.1)
