"""What is cached stays as it was, and is found by the names people use."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from models.errors import CacheError, InputError, UnknownHook
from models.hooks import ActivationCache
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.fixture(scope="module")
def model():
    return random_model(CONFIGS["gpt2"])


@pytest.fixture(scope="module")
def tokens(model):
    return random_tokens(model.cfg)


def test_later_in_place_edits_never_reach_the_cache(model, tokens):
    _, before = model.run_with_cache(tokens)
    kept = {}

    def keep_and_scribble(value, hook):
        kept[hook.name] = value
        return None

    no_ln1 = lambda name: "ln1" not in name  # noqa: E731
    with model.hooks([(no_ln1, keep_and_scribble)]):
        _, cache = model.run_with_cache(tokens)
    for value in kept.values():
        value.fill_(99.0)
    for name in before:
        torch.testing.assert_close(cache[name], before[name])


def test_an_edited_result_does_not_reach_the_cache(model, tokens):
    x, cache = model.run_with_cache(tokens, stop_at_layer=1)
    kept = cache["resid_post", 0].clone()
    x.zero_()
    assert torch.equal(cache["resid_post", 0], kept)


def test_weights_changed_after_the_run_do_not_reach_the_cache(tokens):
    model = random_model(CONFIGS["gpt2"])
    _, cache = model.run_with_cache(tokens)
    kept = {name: value.clone() for name, value in cache.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3.0)
    assert all(torch.equal(cache[name], kept[name]) for name in cache)


def test_gradients_are_copies_too(model, tokens):
    _, cache = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    kept = cache["blocks.1.hook_attn_out_grad"].clone()
    cache["blocks.1.hook_resid_pre_grad"].zero_()  # one and the same tensor flows into both summands
    assert torch.equal(cache["blocks.1.hook_attn_out_grad"], kept)


def test_nothing_cached_requires_a_gradient(model, tokens):
    _, cache = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    assert not any(value.requires_grad for value in cache.values())


def test_repeated_axes_take_no_memory_until_they_are_looked_at(model, tokens):
    _, cache = model.run_with_cache(tokens, names_filter=["hook_pos_embed", "blocks.0.hook_q_input"])
    one_row, one_head = 6 * 8 * 8, 2 * 6 * 8 * 8  # float64
    assert repr(cache) == f"ActivationCache(2 activations, {(one_row + one_head) / 1e6:.1f} MB)"
    assert sum(value.untyped_storage().nbytes() for value in cache._activations.values()) == one_row + one_head
    assert cache["q_input", 0].untyped_storage().nbytes() == one_head * model.cfg.n_heads


def test_a4_writing_one_element_of_a_cached_activation_writes_one_element(model, tokens):
    _, cache = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    looked_up = {name: cache[name] for name in cache}
    looked_up |= {f"{name}, by get": cache.get(name) for name in ("hook_pos_embed", "blocks.0.hook_q_input")}
    for name, value in looked_up.items():
        before = value.clone()
        value.view(-1)[0] += 1  # view fails where elements share memory
        assert (value != before).sum() == 1, name
        value.view(-1)[0] = before.view(-1)[0]
    cache["q_input", 0][:, :, 0] = 0
    assert (cache["q_input", 0][:, :, 1:] != 0).any(-1).all()
    assert not cache["q_input", 0][:, :, 0].any()  # what was written stays


def test_a13_a_negative_layer_counts_from_the_models_last(model, tokens):
    _, whole = model.run_with_cache(tokens)
    assert whole["resid_post", -1] is whole["blocks.1.hook_resid_post"]
    _, first = model.run_with_cache(tokens, stop_at_layer=1)
    assert first["resid_post", -2] is first["blocks.0.hook_resid_post"]
    for cache in (first, first.to("cpu"), copy.deepcopy(first)):
        with pytest.raises(CacheError, match=r"'blocks.1.hook_resid_post' was not cached"):
            cache["resid_post", -1]
        assert ("resid_post", -1) not in cache
    with pytest.raises(CacheError, match=r"layer -3 is out of range: the model has layers 0 to 1"):
        whole["resid_post", -3]


def test_a13_a_cache_made_by_hand_says_what_it_holds_where_the_end_is_unknown(model, tokens):
    held = {"blocks.0.hook_resid_post": torch.zeros(1), "blocks.1.hook_resid_post": torch.ones(1)}
    with pytest.raises(CacheError, match=r"layer -1 counts from the end.*it holds layers \[0, 1\]"):
        ActivationCache(held)["resid_post", -1]
    assert ActivationCache(held, n_layers=2)["resid_post", -1] == 1


def test_short_names(model, tokens):
    _, cache = model.run_with_cache(tokens)
    assert cache["resid_post", 1] is cache["blocks.1.hook_resid_post"]
    assert cache["q", 0] is cache["blocks.0.attn.hook_q"]
    assert cache["pre", 1] is cache["blocks.1.mlp.hook_pre"]
    assert cache["attn_in", 1] is cache["blocks.1.attn.hook_attn_in"]
    assert cache["scale", 1, "ln2"] is cache["blocks.1.ln2.hook_scale"]
    assert cache["resid_post", -1] is cache["resid_post", 1]
    assert ("q", 0) in cache
    assert ("q", 7) not in cache
    assert "hook_embed" in cache
    assert 3 not in cache
    assert cache.get(("q", 0)) is cache["q", 0]
    assert cache.get("nothing") is None
    assert cache.get(("q", 9), 5) == 5


def test_what_was_not_cached_is_named(model, tokens):
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: "resid" in name)
    with pytest.raises(CacheError, match=r"'blocks.0.hook_reisd_pre' was not cached; nearest: blocks.0.hook_resid_pre"):
        cache["blocks.0.hook_reisd_pre"]
    with pytest.raises(CacheError, match=r"'blocks.5.hook_resid_pre' was not cached.*6 activations are"):
        cache["resid_pre", 5]
    with pytest.raises(CacheError, match="no layer has 'pattern'"):
        cache.stack("pattern")


def test_stack(model, tokens):
    _, cache = model.run_with_cache(tokens)
    assert torch.equal(cache.stack("pattern"), torch.stack([cache["pattern", 0], cache["pattern", 1]]))
    assert torch.equal(cache.stack("scale", "ln1")[1], cache["scale", 1, "ln1"])


def test_filters_agree(model, tokens):
    both = ["blocks.0.hook_resid_pre", "blocks.1.attn.hook_z"]
    ways = [both, tuple(both), set(both), both[::-1], lambda name: name in both, [*both, both[0]]]
    ways += [[both[0], lambda name: name == both[1]]]
    for way in ways:
        assert list(model.run_with_cache(tokens, names_filter=way)[1]) == both
    assert list(model.run_with_cache(tokens, names_filter=both[0])[1]) == both[:1]


@pytest.mark.parametrize("empty", [[], (), set()])
def test_an_empty_filter_is_refused(model, tokens, empty):
    with pytest.raises(UnknownHook, match="names_filter is empty"):
        model.run_with_cache(tokens, names_filter=empty)


@pytest.mark.parametrize(
    "where", [slice(1, 3), slice(None, 2), slice(-2, None), slice(None, None, 2), 0, 3, -1, slice(None)]
)
def test_pos_slice(model, tokens, where):
    _, full = model.run_with_cache(tokens, return_type="loss", incl_bwd=True)
    _, cache = model.run_with_cache(tokens, return_type="loss", incl_bwd=True, pos_slice=where)
    assert set(cache) == set(full)
    for name in full:
        at_queries = name.removesuffix("_grad").endswith(("attn_scores", "pattern"))
        expected = full[name][:, :, where] if at_queries else full[name][:, where]
        assert torch.equal(cache[name], expected), name


@pytest.mark.parametrize("where", [6, -7, slice(6, 9), slice(3, 3)])
def test_pos_slice_of_nothing_is_refused(model, tokens, where):
    with pytest.raises(InputError, match=r"pos_slice is .* 0 to 5"):
        model.run_with_cache(tokens, pos_slice=where)


def test_device_and_moving(model, tokens):
    _, cache = model.run_with_cache(tokens, device="cpu")
    assert cache.to("cpu")["hook_embed"].device.type == "cpu"
    assert cache.to("meta")["hook_embed"].device.type == "meta"
    _, away = model.run_with_cache(tokens, device="meta", names_filter="hook_embed")
    assert away["hook_embed"].device.type == "meta"


def test_remove_batch_dim(model, tokens):
    _, cache = model.run_with_cache(tokens[:1])
    assert torch.equal(cache.remove_batch_dim()["resid_pre", 1], cache["resid_pre", 1][0])
    _, cache = model.run_with_cache(tokens)
    with pytest.raises(CacheError, match="has a batch of 2; only a batch of 1"):
        cache.remove_batch_dim()


def test_copies(model, tokens):
    _, cache = model.run_with_cache(tokens)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert all(torch.equal(other[name], cache[name]) for name in cache)
    assert repr(cache).startswith(f"ActivationCache({len(model.hook_names())} activations, 0.")
    assert len(ActivationCache({})) == 0


def test_the_mapping_cannot_be_written(model, tokens):
    _, cache = model.run_with_cache(tokens, names_filter="hook_embed")
    with pytest.raises(TypeError):
        cache["hook_embed"] = torch.zeros(1)
