"""Generation: greedy and sampled, pruned as defined, reproducible, stopped, refused."""

from __future__ import annotations

import pytest
import torch

from models.decoder import HookedDecoder
from models.errors import HookNeverFired, InputError
from models.generate import prune_logits
from models.text import SymbolTokenizer
from tests.configurations import CONFIGS, random_model, random_tokens


@pytest.fixture(scope="module")
def model():
    return random_model(CONFIGS["llama"])


@pytest.fixture(scope="module")
def prompt(model):
    return random_tokens(model.cfg, 2, 4)


def kept_by_top_p(probabilities, p):
    """The smallest set of most likely tokens with probability at least p, by the definition."""
    order = sorted(range(len(probabilities)), key=lambda w: -probabilities[w])
    kept, total = set(), 0.0
    for w in order:
        if total >= p:
            break
        kept.add(w)
        total += probabilities[w]
    return kept


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 3, 100])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.9, 1.0])
def test_pruning_against_the_definition(temperature, top_k, top_p):
    logits = 2 * torch.randn(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pruned = prune_logits(logits, temperature, top_k, top_p)
    for row, got in zip(logits, pruned, strict=True):
        scaled = row / temperature
        kept = set(range(9))
        if top_k is not None:
            kept = set(sorted(kept, key=lambda w: -scaled[w])[:top_k])
        p = torch.where(torch.tensor([w in kept for w in range(9)]), scaled, -torch.inf).softmax(-1).tolist()
        if top_p is not None and top_p < 1:
            kept &= kept_by_top_p(p, top_p)
        assert {w for w in range(9) if got[w].isfinite()} == kept
        torch.testing.assert_close(got[sorted(kept)], scaled[sorted(kept)])


def test_ties_with_the_kth_are_all_kept():
    assert prune_logits(torch.tensor([[2.0, 1.0, 1.0, 0.0]]), top_k=2).isfinite().tolist() == [
        [True, True, True, False]
    ]


def test_greedy_takes_the_most_likely_token(model, prompt):
    tokens = prompt
    for _ in range(5):
        tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(model.generate(prompt, 5, temperature=0), tokens)
    assert torch.equal(model.generate(prompt, 5, temperature=0, use_cache=False), tokens)
    assert torch.equal(model.generate(prompt, 5, top_k=1, seed=9), tokens)
    assert torch.equal(model.generate(prompt, 5, top_p=1e-9, seed=9), tokens)


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.5}, {"temperature": 3.0}, {"top_k": 3}, {"top_p": 0.6}, {"top_k": 4, "top_p": 0.7}],
)
def test_samples_follow_the_pruned_distribution(model, options):
    prompt = random_tokens(model.cfg, 1, 4).expand(4000, -1)
    drawn = model.generate(prompt, 1, **options)[:, -1]
    expected = prune_logits(model(prompt[:1])[:, -1], **options).softmax(-1)[0]
    share = torch.bincount(drawn, minlength=model.cfg.d_vocab) / 4000
    error = (expected * (1 - expected) / 4000).sqrt()
    assert ((share - expected).abs() <= 4 * error).all()
    assert not share[expected == 0].any()


def test_the_seed_decides_and_the_global_state_is_left_alone(model, prompt):
    state = torch.get_rng_state()
    one, same, other = (model.generate(prompt, 8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(one, model.generate(prompt, 8, seed=1, use_cache=False))


def test_a_stopped_row_repeats_its_stop_token_and_the_loop_ends_when_all_have(model):
    prompt = random_tokens(model.cfg, 6, 2)
    free = model.generate(prompt, 10, temperature=0)
    stop = int(free[0, 4])
    stopped = model.generate(prompt, 10, temperature=0, stop_token=stop)
    for row in range(6):
        new = free[row, 2:].tolist()
        at = new.index(stop) if stop in new else len(new)
        expected = new[: at + 1] + [stop] * 10
        assert stopped[row, 2:].tolist() == expected[: stopped.shape[1] - 2]
    alone = model.generate(prompt[:1], 10, temperature=0, stop_token=stop)
    assert alone.shape[1] == 2 + free[0, 2:].tolist().index(stop) + 1


def test_hooks_stay_live_and_fire_for_the_new_columns(model, prompt):
    seen = []

    def steer(value, hook):
        seen.append((hook.positions[0].tolist(), value.shape[1]))
        return torch.zeros_like(value)

    with model.hooks([("blocks.0.hook_resid_post", steer)]):
        steered = model.generate(prompt, 3, temperature=0)
    assert seen == [([0, 1, 2, 3], 4), ([4], 1), ([5], 1)]
    with model.hooks([("blocks.0.hook_resid_post", lambda value, hook: torch.zeros_like(value))]):
        assert torch.equal(steered, model.generate(prompt, 3, temperature=0, use_cache=False))
    assert not torch.equal(steered, model.generate(prompt, 3, temperature=0))


def test_nothing_new(model, prompt):
    assert torch.equal(model.generate(prompt, 0), prompt)
    with pytest.raises(HookNeverFired), model.hooks([("hook_embed", lambda value, hook: None)]):
        model.generate(prompt, 0)


def test_no_graph_is_kept(model, prompt):
    assert model.W_Q.requires_grad
    with model.hooks([("hook_embed", lambda value, hook: pytest.fail("a graph") if value.requires_grad else None)]):
        model.generate(prompt, 2)


def test_up_to_the_last_position(model):
    n_ctx = model.cfg.n_ctx
    assert model.generate(random_tokens(model.cfg, 1, 1), n_ctx - 1).shape == (1, n_ctx)
    tokens = random_tokens(model.cfg, 2, n_ctx + 3)
    real = torch.ones_like(tokens, dtype=torch.bool)
    real[:, :8] = False  # more columns than n_ctx, fewer positions
    assert model.generate(tokens, 5, attention_mask=real).shape == (2, n_ctx + 8)


def test_text():
    cfg = CONFIGS["gpt2"].replace(d_vocab=6)
    model = HookedDecoder(cfg, tokenizer=SymbolTokenizer("ABCDE"))
    assert model.generate("AB", 3).shape == (1, 6)
    both = model.generate(["ABC", "D"], 4, temperature=0)
    assert torch.equal(both[0, -4:], model.generate("ABC", 4, temperature=0)[0, -4:])
    assert torch.equal(both[1, -6:], model.generate("D", 4, temperature=0)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, r"temperature is -1.0; expected 0 \(greedy\) or above"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0; expected at least 1, or None"),
        ({"top_p": 0.0}, r"top_p is 0.0; expected a probability in \(0, 1\], or None"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; expected 0 or more"),
        ({"max_new_tokens": 9}, "a prompt of 4 tokens and 9 new ones exceed n_ctx 12"),
        ({"stop_token": 11}, "stop_token is 11; this vocabulary is 0 to 10"),
        (
            {"attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])},
            "a prompt ends in padding.*pad them on the left",
        ),
    ],
)
def test_options_out_of_range(model, prompt, options, message):
    with pytest.raises(InputError, match=message):
        model.generate(prompt, **{"max_new_tokens": 3, **options})
