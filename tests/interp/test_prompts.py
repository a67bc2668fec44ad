"""Random tokens: distinct, repeated, within vocabulary and context, or refused with the reason."""

import pytest
import torch

from interp.prompts import mixed_repeats, ordinary_ids, repeated_tokens
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.text import SymbolTokenizer


def model(d_vocab: int = 65, n_ctx: int = 64, bos: bool = True) -> HookedDecoder:
    cfg = DecoderConfig(n_layers=1, d_model=4, n_heads=1, d_vocab=d_vocab, n_ctx=n_ctx, attn_only=True)
    return HookedDecoder(cfg, tokenizer=SymbolTokenizer() if bos else None)


@pytest.mark.parametrize("bos", [True, False])
def test_the_second_half_repeats_and_the_control_does_not(bos: bool) -> None:
    prompts = repeated_tokens(model(bos=bos), n_sequences=5, length=20)
    lead, n = int(bos), prompts.length
    assert prompts.n_prepended == lead
    assert prompts.repeated.shape == prompts.control.shape == (5, lead + 40)
    assert torch.equal(prompts.repeated[:, lead : lead + n], prompts.repeated[prompts.again].view(5, n))
    assert torch.equal(prompts.control[:, : lead + n], prompts.repeated[:, : lead + n])
    for row in prompts.control:
        assert len(set(row.tolist())) == lead + 40
    if bos:
        assert (prompts.repeated[:, 0] == 64).all()
        assert not (prompts.repeated[:, 1:] == 64).any()


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("bos", [True, False])
def test_b11_mixed_blocks_differ_in_length_and_place_and_nothing_else_repeats(bos: bool, at_end: bool) -> None:
    prompts = mixed_repeats(model(bos=bos), n_sequences=16, at_end=at_end)
    assert len(set(prompts.lengths)) >= 8
    assert list(prompts.lengths) == sorted(prompts.lengths, reverse=True)
    assert min(prompts.lengths) >= 5
    assert len({start - n for start, n in zip(prompts.starts, prompts.lengths, strict=True)}) >= 8
    for row, control, start, n in zip(
        prompts.repeated.tolist(), prompts.control.tolist(), prompts.starts, prompts.lengths, strict=True
    ):
        assert row[start : start + n] == row[start - n : start]
        assert len(set(row)) == len(row) - n
        assert len(set(control)) == len(control)
        assert row[:start] == control[:start]
        assert row[start + n :] == control[start + n :]
        assert not at_end or start + n == len(row)
    assert prompts.starts[0] - prompts.lengths[0] == int(bos) or at_end
    assert prompts.again.sum(1).tolist() == list(prompts.lengths)


def test_the_seed_decides_and_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (repeated_tokens(model(), 3, seed=seed).repeated for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("d_vocab", "n_ctx", "length"),
    [(65, 64, 25), (500, 99, 39), (500, 100, 50), (500, 1024, 50), (30, 1024, 15)],
)
def test_the_default_length_is_50_or_what_fits(d_vocab: int, n_ctx: int, length: int) -> None:
    assert repeated_tokens(model(d_vocab, n_ctx, bos=False), 1).length == length


def test_control_tokens_at_the_ends_of_a_big_vocabulary_are_not_drawn() -> None:
    ids = ordinary_ids(model(d_vocab=2000, bos=False))
    assert (ids[0], ids[-1]) == (100, 1959)
    assert len(ordinary_ids(model(d_vocab=65))) == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_vocab": 30, "length": 20, "bos": False}, "need 40 ordinary tokens; this vocabulary has 30.*15 or less"),
        ({"n_ctx": 40, "length": 20}, "41 tokens, but n_ctx is 40: use length 19"),
        ({"length": 4}, "length 4 is too short: expected at least 5"),
        ({"d_vocab": 9, "bos": False}, "length 4 is too short.*Vocabulary 9"),
        ({"n_ctx": 8}, "length 3 is too short.*n_ctx 8"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(options: dict, message: str) -> None:
    length = options.pop("length", None)
    with pytest.raises(InputError, match=message):
        repeated_tokens(model(**options), 2, length)
