"""Ablation against a forward pass edited by hand, and the random sets' promises."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.heads.knockout import Knockout, evidence_against_random, random_sets, token_loss
from interp.prompts import RepeatedTokens, repeated_tokens
from interp.sites import Head
from models import DecoderConfig, HookedDecoder

CFG = DecoderConfig(
    n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_vocab=40, n_ctx=24, positions="rotary", init="fan_in"
)


@pytest.fixture(scope="module")
def model() -> HookedDecoder:
    return HookedDecoder(CFG)


@pytest.fixture(scope="module")
def prompts(model: HookedDecoder) -> RepeatedTokens:
    return repeated_tokens(model, 3, length=8)


def lab(model: HookedDecoder, prompts: RepeatedTokens) -> Knockout:
    mean_z = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    return Knockout(model, prompts, mean_z, tick=lambda: None)


@torch.no_grad()
def test_ablated_heads_write_their_mean_and_the_others_what_they_wrote(
    model: HookedDecoder, prompts: RepeatedTokens
) -> None:
    knockout = lab(model, prompts)
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(2)]
    _, intact = model.run_with_cache(prompts.repeated, names_filter=names)
    with model.hooks(knockout.hooks([Head(0, 3), Head(0, 1), Head(1, 0)])):
        _, ablated = model.run_with_cache(prompts.repeated, names_filter=names)
    for head in (1, 3):
        expected = knockout.mean_z[0, head].expand(3, 16, 4)
        torch.testing.assert_close(ablated["z", 0][:, :, head], expected)
    torch.testing.assert_close(ablated["z", 0][:, :, [0, 2]], intact["z", 0][:, :, [0, 2]])
    torch.testing.assert_close(ablated["z", 1][:, :, 0], knockout.mean_z[1, 0].expand(3, 16, 4))


@torch.no_grad()
def test_the_repeat_loss_is_that_of_the_tokens_that_can_be_copied(
    model: HookedDecoder, prompts: RepeatedTokens
) -> None:
    knockout = lab(model, prompts)
    per_token = model(prompts.repeated, return_type="loss", loss_per_token=True)
    torch.testing.assert_close(token_loss(model(prompts.repeated), prompts.repeated), per_token)
    # Entries 8.. predict tokens 9..15: the first repeated token, 8, follows nothing it has followed before.
    assert knockout.repeat_loss(()) == pytest.approx(per_token[:, 8:].mean().item())
    assert knockout.repeat_loss([Head(0, 0)]) != pytest.approx(knockout.repeat_loss(()))


@settings(max_examples=50, deadline=None)
@given(data=st.data(), seed=st.integers(0, 100))
def test_random_sets_match_size_and_layers_and_avoid_what_was_detected(data: st.DataObject, seed: int) -> None:
    every = [Head(layer, head) for layer in range(3) for head in range(4)]
    heads = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=8, unique=True))
    detected = data.draw(st.lists(st.sampled_from(every), max_size=6, unique=True))
    drawn = random_sets(heads, detected, 3, 4, n_sets=5, seed=seed)
    others = set(every) - {*heads, *detected}
    assert len(set(drawn.sets)) == len(drawn.sets) <= 5
    assert bool(drawn.sets) == bool(others)
    for chosen in drawn.sets:
        assert len(set(chosen)) == min(len(heads), len(others))
        assert set(chosen) <= others
        for layer in range(3):
            wanted = sum(head.layer == layer for head in heads)
            left = sum(head.layer == layer for head in others)
            assert sum(head.layer == layer for head in chosen) >= min(wanted, left)
    assert drawn == random_sets(heads, detected, 3, 4, n_sets=5, seed=seed)


def test_random_sets_come_from_the_same_layers_where_they_can() -> None:
    drawn = random_sets([Head(1, 0), Head(1, 1), Head(2, 0)], [], 3, 4, n_sets=19, seed=0)
    assert len(drawn.sets) == 3  # two of two heads in layer 1, one of three in layer 2
    assert {tuple(sorted(head.layer for head in chosen)) for chosen in drawn.sets} == {(1, 1, 2)}
    assert drawn.note == "3 random sets of 3 other heads, in the same layers"


def test_what_is_missing_in_a_layer_comes_from_others_and_is_said() -> None:
    drawn = random_sets([Head(1, 0), Head(1, 1), Head(1, 2)], [Head(0, 0)], 2, 4, n_sets=19, seed=0)
    assert all(sum(head.layer == 0 for head in chosen) == 2 for chosen in drawn.sets)
    assert drawn.note == "3 random sets of 3 other heads, 2 of them in other layers"


def test_smaller_sets_than_the_heads_are_said_to_be_so() -> None:
    drawn = random_sets([Head(0, 0), Head(0, 1), Head(0, 2)], [], 1, 4, n_sets=19, seed=0)
    assert drawn.sets == ((Head(0, 3),),)
    assert drawn.note == "1 random set of 1 other head, all that are of no detected kind, in the same layers"


def test_without_other_heads_there_are_no_random_sets() -> None:
    drawn = random_sets([Head(0, 0), Head(0, 1)], [Head(0, 2)], 1, 3, n_sets=19, seed=0)
    assert drawn.sets == ()
    assert "no other heads are left" in drawn.note


def test_the_p_value_counts_random_sets_that_do_as_much() -> None:
    drawn = random_sets([Head(0, 0)], [], 1, 5, n_sets=19, seed=0)
    effects = dict(zip([(Head(0, 0),), *drawn.sets], [2.0, 1.0, 2.0, 3.0, 0.0], strict=True))
    evidence = evidence_against_random(
        "induction", [Head(0, 0)], lambda heads: effects[tuple(heads)], drawn, description="x", unit="nats", details={}
    )
    assert evidence.effect == 2
    assert sorted(evidence.null_effects) == [0, 1, 2, 3]
    assert evidence.p_value == pytest.approx(3 / 5)
    assert np.isfinite(evidence.p_value)
