"""The figures of a toy against known answers: models whose heads are what a hook makes them."""

import math

import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import InputError
from models.training.evaluate import _fair_sets, evaluate_toy, repeat_figures
from models.training.recipes import repeat_loss_is_low
from models.training.tasks import repeated_tokens
from models.training.toys import TOYS, phase_change_step

CONFIG = DecoderConfig(n_layers=2, d_model=32, n_heads=2, d_vocab=65, n_ctx=64, attn_only=True, init="fan_in")
PERIOD = 20


def attending(rule):
    """A hook that makes head 1 attend to column ``rule(i)`` from every column i, with weight .75, and else to BOS."""

    def edit(pattern, hook):
        pattern[:, 1] = 0.0
        for i in range(pattern.shape[2]):
            pattern[:, 1, i, 0] += 0.25
            pattern[:, 1, i, rule(i)] += 0.75

    return edit


RULES = {
    "previous_token": lambda i: max(i - 1, 0),
    "induction": lambda i: i - PERIOD + 1 if i > PERIOD else 0,
    "sink": lambda i: 0 if i <= PERIOD else i,
}


@pytest.mark.parametrize("kind", RULES)
def test_scores_of_known_patterns(kind):
    model = HookedDecoder(CONFIG)
    with model.hooks([("blocks.1.attn.hook_pattern", attending(RULES[kind]))]):
        got = evaluate_toy(model, batch=4)
    expected = {"previous_token": 0.0, "induction": 0.0, "sink": 0.25, "sink_on_repeat": 0.25}
    expected[kind] = 1.0 if kind == "sink" else 0.75
    if kind == "induction":
        expected["sink"] = 1.0
    for name, value in expected.items():
        assert getattr(got, name)[1][1] == pytest.approx(value, abs=1e-5), name


def equal_scores(scores, hook):
    return scores.masked_fill(scores.isfinite(), 0.0)


def test_uniform_attention_scores_what_the_recipe_says():
    """A sink score of .113 and previous-token and induction scores that shrink as 1 / (i + 1)."""
    model = HookedDecoder(CONFIG)
    with model.hooks([("blocks.0.attn.hook_attn_scores", equal_scores)]):
        got = evaluate_toy(model, batch=2)
    assert got.sink[0][0] == pytest.approx(0.113, abs=5e-4)
    assert got.previous_token[0][0] == pytest.approx(sum(1 / (i + 1) for i in range(2, 41)) / 39, abs=1e-5)
    assert got.induction[0][0] == pytest.approx(sum(1 / (i + 1) for i in range(21, 41)) / 20, abs=1e-5)


def early_previous_token(pattern, hook):
    """Head 1 looks one back in the first third of the context only."""
    n = pattern.shape[2]
    pattern[:, 1] = torch.eye(n)
    for i in range(1, n):
        if i < 2 + (n - 2) // 3:
            pattern[:, 1, i] = 0
            pattern[:, 1, i, i - 1] = 1


def test_b1_a_previous_token_head_that_ends_early_is_seen_by_thirds():
    model = HookedDecoder(CONFIG)
    with model.hooks([("blocks.0.attn.hook_pattern", early_previous_token)]):
        got = evaluate_toy(model, batch=4)
    assert got.previous_by_third == pytest.approx((1, 0, 0), abs=0.05)
    assert got.previous_token[0][1] == max(got.previous_token[0])


def test_a_head_rests_on_bos_where_its_mean_attention_exceeds_three_tenths():
    def resting(share):
        def edit(pattern, hook):
            n = pattern.shape[2]
            pattern[:, 1] = (1 - share) * torch.eye(n)
            pattern[:, 1, :, 0] += share

        return edit

    model = HookedDecoder(CONFIG)
    for share, expected in ((0.28, 0.0), (0.31, 1.0)):  # and a little more, since BOS sees only itself
        with model.hooks([("blocks.1.attn.hook_pattern", resting(share))]):
            got = evaluate_toy(model, batch=4)
        assert got.rests_on_bos[1][1] == expected
        assert got.rests_on_bos[0] == (0.0, 0.0)  # near uniform: .074


def slow_losses(model, tokens):
    """Losses and accuracy, one prediction at a time."""
    log_p = model(tokens).log_softmax(-1)
    first, repeat, right = [], [], []
    for row in range(len(tokens)):
        for column in range(1, 2 * PERIOD + 1):
            target = tokens[row, column]
            loss = -log_p[row, column - 1, target].item()
            if column <= PERIOD:
                first.append(loss)
            elif column > PERIOD + 1:
                repeat.append(loss)
                right.append(log_p[row, column - 1].argmax().item() == target.item())
    return sum(repeat) / len(repeat), sum(first) / len(first), sum(right) / len(right)


def test_losses_and_accuracy_equal_a_slow_loop():
    model = HookedDecoder(CONFIG)
    tokens = repeated_tokens(torch.Generator().manual_seed(0), 3, PERIOD)
    figures = repeat_figures(model, tokens)
    repeat, first, accuracy = slow_losses(model, tokens)
    assert figures["repeat_loss"] == pytest.approx(repeat, abs=1e-5)
    assert figures["first_half_loss"] == pytest.approx(first, abs=1e-5)
    assert figures["accuracy"] == pytest.approx(accuracy)


def copying_model():
    """One head whose hooked pattern is induction's and whose OV circuit copies: it predicts every repeat."""
    cfg = DecoderConfig(
        n_layers=1, d_model=65, n_heads=1, d_head=65, d_vocab=65, n_ctx=64, attn_only=True, positions="none",
        norm="none", qkv_bias=False, out_bias=False,
    )  # fmt: skip
    model = HookedDecoder(cfg)
    with torch.no_grad():
        for weight in (model.embed.W_E, model.blocks[0].attn.v.weight, model.blocks[0].attn.o.weight):
            weight.copy_(torch.eye(65))
        model.unembed.weight.copy_(20 * torch.eye(65))
        model.unembed.weight[64] = 0
    return model


def induction_pattern(pattern, hook):
    period = (pattern.shape[-1] - 1) // 2
    pattern[:] = 0
    for i in range(pattern.shape[2]):
        pattern[:, :, i, i - period + 1 if i > period else 0] = 1


def test_ablating_the_only_induction_head_costs_what_it_gave():
    """The direct path says 'the current token again' with logit 20, the head says the next one with logit 20."""
    with copying_model().hooks([("blocks.0.attn.hook_pattern", induction_pattern)]) as model:
        got = evaluate_toy(model, periods=(8,), batch=64)
    assert got.repeat_loss == pytest.approx(math.log(2), abs=0.01)
    assert got.rise_all_induction > 10
    assert got.accuracy_without_induction == 0.0
    assert got.rise_all_previous == 0.0  # there is none, so nothing was ablated


def test_fair_sets_are_all_other_heads_of_the_same_layers():
    sets = list(_fair_sets([(0, 1), (1, 0), (1, 3)], n_heads=4))
    assert len(sets) == 3 * 1
    assert [(0, 0), (1, 1), (1, 2)] in sets
    assert all(not {(0, 1), (1, 0), (1, 3)} & set(chosen) for chosen in sets)
    assert len(list(_fair_sets([(1, 0), (1, 1)], n_heads=10))) == math.comb(8, 2)
    assert list(_fair_sets([(1, 0), (1, 1)], n_heads=3)) == []


def test_induction_heads_are_held_against_the_fair_sets():
    """Two heads copy, by pattern; of four others each says nothing."""
    cfg = DecoderConfig(
        n_layers=1, d_model=65, n_heads=6, d_head=65, d_vocab=65, n_ctx=64, attn_only=True, positions="none",
        norm="none", qkv_bias=False, out_bias=False,
    )  # fmt: skip
    model = HookedDecoder(cfg)
    attn = model.blocks[0].attn
    with torch.no_grad():
        for weight in (attn.v.weight, attn.o.weight, model.unembed.weight):
            weight.zero_()
        model.embed.W_E.copy_(torch.eye(65))
        model.unembed.weight[:64] = 20 * torch.eye(65)[:64]
        for head in (0, 1):
            attn.v.weight[65 * head : 65 * (head + 1)] = torch.eye(65)
            attn.o.weight[:, 65 * head : 65 * (head + 1)] = torch.eye(65)

    def two_heads(pattern, hook):
        copy = pattern.clone()
        induction_pattern(copy, hook)
        pattern[:, :2] = copy[:, :2]

    with model.hooks([("blocks.0.attn.hook_pattern", two_heads)]):
        got = evaluate_toy(model, batch=32)
    assert got.fair_sets == math.comb(4, 2)
    assert got.rise_fair_set == pytest.approx(0, abs=1e-4)
    assert got.rise_all_induction > 10
    assert got.rise_beyond_fair_sets == pytest.approx(got.rise_all_induction, abs=1.5)
    assert got.rise_beyond_fair_sets < got.rise_all_induction


def test_other_tokens_are_refused():
    with pytest.raises(InputError, match=r"tokens \(1, 5\) are not BOS, n tokens, the same n again"):
        repeat_figures(HookedDecoder(CONFIG), torch.tensor([[64, 1, 2, 1, 3]]))


@pytest.mark.parametrize("name", TOYS)
def test_an_untrained_toy_meets_no_threshold_that_needs_training(name):
    got = evaluate_toy(HookedDecoder(TOYS[name].config), periods=(8,), batch=16)
    unmet = " ".join(map(str, TOYS[name].thresholds.unmet(got)))
    for what in (
        "repeat loss",
        "accuracy on the repeat",
        "previous-token score",
        "worst third of the context",
        "induction score",
        "all induction heads",
        "lowest accuracy, at column",
        "fair sets",
        "beyond any fair set",
        "rests on BOS",
    ):
        assert what in unmet


def test_parameter_counts_of_the_toys():
    counts = {name: sum(p.numel() for p in HookedDecoder(toy.config).parameters()) for name, toy in TOYS.items()}
    assert counts == {"toy": 129_216, "toy-attn": 95_808, "toy-rope": 137_664}


def test_the_end_of_the_first_phase():
    def history(*losses):
        return [{"step": 10 * i, "repeat_loss": loss} for i, loss in enumerate(losses)]

    assert not repeat_loss_is_low(history(0.1, 0.1, 0.1, 0.1))
    assert not repeat_loss_is_low(history(4, 0.1, 0.1, 0.1, 0.1))
    assert repeat_loss_is_low(history(4, 0.5, 0.5, 0.5, 0.5, 0.5))
    assert phase_change_step(history(4, 3, 2, 1)) == 20
    assert phase_change_step(history(4, 3)) is None
