"""Verdicts on models of which it is known what they must be: heads by hand, impostors, and heads without effect."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from interp import Head, HeadReport, find_heads
from interp.detectors.fair_sets import FEWEST, MOST_ENUMERATED, N_DRAWN, fair_sets
from interp.detectors.kinds import KINDS
from interp.detectors.statistics import bars, outcomes, share_interval, sign_test
from models import DecoderConfig, HookedDecoder
from models.hooks.point import HookPoint
from models.loading import load_model
from models.text import SymbolTokenizer
from tests.interp.detectors.built import POSITION, SHARP, built_model

Pattern = Callable[[Tensor], Tensor]  # tokens [pos] -> [query_pos, key_pos]


# -- patterns by hand ------------------------------------------------------------------------------------------------


def on(targets: Callable[[list[int], int], list[int]]) -> Pattern:
    """Return the pattern that looks at some columns evenly, and at the query itself where there are none."""

    def pattern(tokens: Tensor) -> Tensor:
        ids = tokens.tolist()
        out = torch.zeros(len(ids), len(ids))
        for query in range(len(ids)):
            keys = [key for key in targets(ids, query) if 0 <= key <= query] or [query]
            out[query, keys] = 1 / len(keys)
        return out

    return pattern


def seen(ids: list[int], query: int) -> list[int]:
    return [key for key in range(query) if ids[key] == ids[query]]


def window(*weights: float) -> Pattern:
    def pattern(tokens: Tensor) -> Tensor:
        n = len(tokens)
        out = sum(torch.diag(torch.full((n - back,), weight), -back) for back, weight in enumerate(weights))
        out += torch.diag((out.sum(-1) == 0).float())  # queries before which nothing lies look at themselves
        return out / out.sum(-1, keepdim=True)

    return pattern


LONGEST = 25  # what the models here allow

GENUINE: dict[str, Pattern] = {
    "previous_token": on(lambda ids, query: [query - 1]),
    "sink": on(lambda ids, query: [0]),
    "induction": on(lambda ids, query: [key + 1 for key in seen(ids, query)]),
    "duplicate_token": on(seen),
    "current_token": window(1.0),
}
IMPOSTORS: dict[str, Pattern] = {
    "a window of three, .36 .34 .30": window(0.36, 0.34, 0.30),
    "a window of three, .30 .40 .30": window(0.30, 0.40, 0.30),
    "an even window of four": window(*[0.25] * 4),
    "the current token where it is new, else two back": on(
        lambda ids, query: [query - 2] if seen(ids, query) else [query]
    ),
    "two back": window(0.0, 0.0, 1.0),
    "seven back": window(*[0.0] * 7, 1.0),
    "the longest block back, and one": window(*[0.0] * (LONGEST - 1), 1.0),
    "the longest block back": window(*[0.0] * LONGEST, 1.0),
    "if seen, the longest block back, less one": on(
        lambda ids, query: [query - LONGEST + 1] if seen(ids, query) else [query]
    ),
    "if seen, the current token": on(lambda ids, query: [query] if seen(ids, query) else [query - 2]),
}


def model_with(pattern: Pattern, share: float, noise: float = 0.3, seed: int = 0) -> HookedDecoder:
    """Return an untrained model whose head L0H0 is to look as ``pattern`` says, beside even attention and noise."""
    cfg = DecoderConfig(n_layers=2, d_model=96, n_heads=6, d_vocab=65, n_ctx=64)
    model = HookedDecoder(cfg, seed=seed, tokenizer=SymbolTokenizer()).requires_grad_(False)
    rows = torch.empty(65, 96)
    torch.nn.init.orthogonal_(rows, generator=torch.Generator().manual_seed(seed))
    model.embed.W_E.copy_(rows)  # so that a hook can read the tokens from their vectors
    model.hand = Hand(model, pattern, share, noise, seed)  # type: ignore[assignment]
    return model


class Hand:
    """Hooks that put a pattern in the place of L0H0's."""

    def __init__(self, model: HookedDecoder, pattern: Pattern, share: float, noise: float, seed: int) -> None:
        self.model, self.pattern, self.share, self.noise = model, pattern, share, noise
        self.generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.empty(0)

    def hooks(self) -> list:
        return [("hook_embed", self.read), ("blocks.0.attn.hook_pattern", self.put)]

    def read(self, vectors: Tensor, hook: HookPoint) -> None:
        self.tokens = (vectors @ self.model.embed.W_E.T).argmax(-1)

    def put(self, attention: Tensor, hook: HookPoint) -> Tensor:
        n = attention.shape[-1]
        even = torch.ones(n, n).tril() / torch.arange(1, n + 1)[:, None]
        for row, tokens in enumerate(self.tokens):
            mixed = self.share * self.pattern(tokens) + (1 - self.share) * even
            mixed = mixed * (1 + self.noise * torch.rand(n, n, generator=self.generator))
            attention[row, 0] = mixed / mixed.sum(-1, keepdim=True)
        return attention


def verdicts(pattern: Pattern, share: float, **options: object) -> HeadReport:
    model = model_with(pattern, share)
    with model.hooks(model.hand.hooks()):  # type: ignore[operator, union-attr]
        return find_heads(model, **options)


def kinds_of(report: HeadReport, head: Head) -> set[str]:
    return {one.kind for one in report.evidence if one.name == head and one.found}


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("kind", GENUINE)
def test_a_head_of_a_kind_has_its_pattern_at_every_mixture_and_is_not_confirmed_where_nothing_reads_it(kind, share):
    report = verdicts(GENUINE[kind], share)
    assert kinds_of(report, Head(0, 0)) == {kind}
    assert [one for one in report.evidence if one.is_confirmed] == []


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_b11_b12_an_impostor_is_of_no_kind(impostor):
    report = verdicts(IMPOSTORS[impostor], 1.0, causal=False)
    assert kinds_of(report, Head(0, 0)) == set()


def test_b11_one_length_for_all_sequences_would_be_fooled():
    report = verdicts(IMPOSTORS["if seen, the longest block back, less one"], 1.0, causal=False, length=LONGEST)
    assert kinds_of(report, Head(0, 0)) == {"induction"}
    mixed = verdicts(IMPOSTORS["if seen, the longest block back, less one"], 1.0, causal=False)
    assert mixed.of_kind("induction")[0].score < 0.3


def test_b12_the_margin_over_its_neighbours_decides():
    report = verdicts(IMPOSTORS["a window of three, .36 .34 .30"], 1.0, causal=False)
    one = next(one for one in report.of_kind("previous_token") if one.name == Head(0, 0))
    assert one.score > 0.3
    assert one.bar > 2 * one.score * 0.9
    assert one.pattern == "no"


# -- sinks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_b2_every_head_on_the_first_token_is_a_sink_whatever_its_value(seed):
    """Before, ``value_ratio < 1`` decided: 50 of 96."""
    cfg = DecoderConfig(n_layers=2, d_model=16, n_heads=4, d_vocab=65, n_ctx=64)
    model = HookedDecoder(cfg, seed=seed, tokenizer=SymbolTokenizer())

    def first(pattern: Tensor, hook: HookPoint) -> Tensor:
        return torch.zeros_like(pattern).index_fill_(-1, torch.tensor([0]), 1.0)

    with model.hooks([(lambda name: name.endswith("hook_pattern"), first)]):
        report = find_heads(model, ["sink"], causal=False)
    assert len(report.found("sink")) == 8
    assert {one.score for one in report.of_kind("sink")} == {1.0}
    assert report.sink_share == {"random": 1.0}


def test_b3_a_head_on_bos_that_writes_nothing_is_a_sink_that_writes_nothing():
    model = built_model()
    with torch.no_grad():
        model.blocks[0].attn.W_V[1] = 0
    (one,) = find_heads(model, ["sink"], causal=False).found("sink")
    assert one.name == Head(0, 1)
    assert one.details["value_norm_ratio"] == 0


@pytest.mark.parametrize(
    ("resting", "pattern"), [(16, "yes"), (15, "yes"), (12, "borderline"), (7, "borderline"), (1, "no")]
)
def test_b4_the_share_of_sequences_decides_and_near_the_border_says_borderline(resting, pattern):
    """A head that rests on the first token in some of 16 sequences, of few heads."""
    cfg = DecoderConfig(n_layers=1, d_model=16, n_heads=1, d_vocab=65, n_ctx=64)
    model = HookedDecoder(cfg, tokenizer=SymbolTokenizer())
    calls = 0

    def some(scores: Tensor, hook: HookPoint) -> Tensor:
        nonlocal calls
        batch, calls = calls // 2, calls + 1  # every batch of 8 is run twice: repeated, then as its control
        rows = 8 * batch + torch.arange(len(scores)) < resting
        scores[rows, :, :, 0] = 50
        return scores

    with model.hooks([("blocks.0.attn.hook_attn_scores", some)]):
        (one,) = find_heads(model, ["sink"], causal=False).of_kind("sink")
    low, high = stats.binomtest(resting, 16).proportion_ci(method="exact")
    assert one.score == resting / 16
    assert one.interval == pytest.approx((low, high))
    assert one.pattern == pattern


# -- the second step -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "sinusoidal", "n_layers": 4},
        {"positions": "sinusoidal", "norm": "none", "n_layers": 4},
        {"sliding_window": 2},
        {"sliding_window": 3},
    ],
    ids=["sinusoidal", "sinusoidal, no norm", "window of 2", "window of 3"],
)
def test_b5_untrained_models_have_no_confirmed_head_and_forced_patterns_no_verdict(options):
    for seed in range(4):
        cfg = DecoderConfig(**{"n_layers": 2, "d_model": 32, "n_heads": 8, "d_vocab": 65, "n_ctx": 64} | options)
        model = HookedDecoder(cfg, seed=seed, tokenizer=SymbolTokenizer()).requires_grad_(False)
        for block in model.blocks:
            block.attn.q.weight *= 60
        report = find_heads(model, seed=seed)
        assert [one for one in report.evidence if one.is_confirmed] == []
        if cfg.sliding_window is not None:
            assert report.found("previous_token") == ()
            assert f"a window of {cfg.sliding_window} tokens" in report.warnings[0]


def test_b6_a_pattern_without_an_effect_is_not_confirmed():
    model = load_model("toy").requires_grad_(False)
    intact = find_heads(model, ["induction"])
    assert {one.confirmed for one in intact.found("induction")} <= {"alone", "jointly"}
    model.blocks[1].attn.o.weight.zero_()
    report = find_heads(model, ["induction"])
    assert [one.name for one in report.found("induction")] == [one.name for one in intact.found("induction")]
    assert {one.confirmed for one in report.found("induction")} == {"no"}
    (causal,) = report.causal
    assert causal.effect == 0
    assert causal.confirmed == "no"
    assert causal.share is None, "there is nothing to lose"


def test_b7_effects_have_intervals_and_what_rides_along_is_not_confirmed():
    """A second previous-token head, L0H3, which writes nothing: the set is confirmed, and it is not."""
    model = built_model()
    with torch.no_grad():
        attn, positions = model.blocks[0].attn, torch.eye(64)
        attn.W_Q[3, POSITION, :64] = SHARP * torch.diag(torch.ones(63), -1)
        attn.W_K[3, POSITION, :64] = positions
    report = find_heads(model, ["previous_token"])
    words = {str(one.name): one.confirmed for one in report.found("previous_token")}
    assert words == {"L0H0": "alone", "L0H3": "no"}
    assert report.causal[0].confirmed == "yes"
    for one in report.found("previous_token"):
        assert one.effect_interval is not None
        low, high = one.effect_interval
        assert low <= one.effect <= high
        assert (low > 0) == (str(one.name) == "L0H0")


def test_b8_unlike_sets_are_no_comparison():
    for heads, reason in (
        ([Head(0, 0), Head(0, 1), Head(0, 2)], "layer 0 has 1 other head, and the set has 3 there"),
        ([Head(0, 0), Head(1, 1)], None),
        ([Head(1, 0)], "there are only 3 other sets of 1 head in the same layers, and 4 are needed"),
    ):
        fair = fair_sets(heads, 4, seed=0)
        assert fair.note.startswith("no fair comparison") == (reason is not None)
        assert bool(fair.sets) == (reason is None)
        assert reason is None or reason in fair.note


@pytest.mark.parametrize("heads", [[(0, 1)], [(1, 0), (1, 3)], [(0, 0), (1, 1), (1, 2)]])
@pytest.mark.parametrize("n_heads", [4, 6, 10, 16])
def test_fair_sets_are_all_that_there_are_or_some_of_them(heads, n_heads):
    """Against every subset of the model's heads, kept where it is as large, layer by layer, and shares no head."""
    chosen = [Head(*head) for head in heads]
    everything = [Head(layer, head) for layer in range(3) for head in range(n_heads)]
    layers = sorted(head.layer for head in chosen)
    every = {
        frozenset(some)
        for some in combinations([head for head in everything if head not in chosen], len(chosen))
        if sorted(head.layer for head in some) == layers
    }
    fair = fair_sets(chosen, n_heads, seed=1)
    got = {frozenset(some) for some in fair.sets}
    assert len(got) == len(fair.sets)
    assert got <= every
    wanted = 0 if len(every) < FEWEST else len(every) if len(every) <= MOST_ENUMERATED else N_DRAWN
    assert len(got) == wanted
    assert fair.least_p == 1 / (1 + wanted)
    assert fair_sets(chosen, n_heads, seed=1) == fair


@pytest.mark.parametrize("name", ["toy", "toy-attn", "toy-rope"])
def test_b8_the_shipped_toys_allow_a_fair_comparison(name):
    report = find_heads(load_model(name), ["induction", "previous_token"])
    for causal in report.causal:
        assert causal.confirmed == "yes"
        assert causal.p_value == causal.least_p
    induction = next(causal for causal in report.causal if causal.kind == "induction")
    assert induction.least_p < 0.05
    assert all(one.confirmed in ("alone", "jointly") for one in report.found("induction"))


# -- statistics ------------------------------------------------------------------------------------------------------


def test_b9_a_tiny_certain_difference_is_not_significant():
    """What is tested is the score against its bar: a head at .05 where its null is .04 has p 1."""
    scores = np.full((16, 1, 2), [0.05, 0.6]) + np.random.default_rng(0).normal(0, 0.001, (16, 1, 2))
    nulls = np.full((16, 1, 2), 0.04)
    assert (sign_test(scores, nulls) < 0.05).all()
    assert sign_test(scores, bars(nulls, 0.3)).round(3).tolist() == [[1.0, 0.0]]
    report = find_heads(built_model(), ["induction"], causal=False)
    for one in report.of_kind("induction"):
        assert (one.p_value < 0.05) == (one.name == Head(1, 0))


def test_the_outcome_needs_both_the_interval_and_the_corrected_test():
    low, high = np.array([[0.1, -0.1, -0.2, 0.1]]), np.array([[0.2, 0.1, -0.1, 0.2]])
    found = outcomes(low, high, np.array([[0.01, 0.01, 1.0, 0.2]]), 0.05)
    assert found.tolist() == [["yes", "borderline", "no", "borderline"]]


@pytest.mark.parametrize("n", [1, 8, 16])
def test_the_interval_of_a_share_is_clopper_and_pearsons(n):
    low, high = share_interval(np.arange(n + 1.0), n)
    for k in range(n + 1):
        expected = stats.binomtest(k, n).proportion_ci(method="exact")
        assert (low[k], high[k]) == pytest.approx((expected.low, expected.high))


def test_every_kind_is_judged_here():
    assert set(GENUINE) == set(KINDS)
