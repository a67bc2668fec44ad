"""Prompt pairs: aligned, labelled where the words stand, answered by single tokens, or refused with the reason."""

from __future__ import annotations

import re

import pytest
import torch

from interp.metrics import LogitDifference
from interp.prompts import (
    PromptBatch,
    PromptPair,
    default_prompts,
    factual_prompts,
    greater_than_prompts,
    ioi_prompts,
    prompt_batch,
    repeated_token_prompts,
)
from interp.prompts.ioi import NAMES, OBJECTS, PLACES
from models import DecoderConfig, HookedDecoder
from models.errors import InputError, TokenizerMissing
from models.text import SymbolTokenizer

_FUNCTION_WORDS = (
    "When Then and went to the , . gave a had long day Later The capital of is city lasted from year war siege strike "
    "reign voyage mission France Paris Japan Tokyo Italy Rome"
)


class WordTokenizer:
    """Words with the space in front of them; numbers by ``digits`` digits; everything else by letters."""

    bos_token_id = 0
    prepends_bos = False

    def __init__(self, digits: int = 2) -> None:
        words = [f" {word}" for word in (*NAMES, *PLACES, *OBJECTS, *_FUNCTION_WORDS.split(), "17")]
        numbers = [f"{i:0{digits}d}" for i in range(10**digits)]
        letters = [chr(i) for i in range(32, 127) if chr(i) not in numbers]
        self.pieces = list(dict.fromkeys(["<bos>", *words, "When", "The", "Then", ",", ".", *numbers, *letters]))
        pattern = "|".join(re.escape(piece) for piece in sorted(self.pieces, key=len, reverse=True))
        self.pattern = re.compile(pattern)

    def encode(self, text: str) -> list[int]:
        return [self.pieces.index(piece) for piece in self.pattern.findall(text)]

    def decode(self, ids) -> str:
        return "".join(self.pieces[i] for i in ids)


def model(tokenizer=None, d_vocab: int = 400, n_ctx: int = 64) -> HookedDecoder:
    cfg = DecoderConfig(n_layers=1, d_model=4, n_heads=1, d_vocab=d_vocab, n_ctx=n_ctx, attn_only=True)
    return HookedDecoder(cfg, tokenizer=tokenizer)


def texts(words: HookedDecoder, ids: torch.Tensor) -> list[str]:
    return ["".join(words.to_str_tokens(row)) for row in ids]


def at(words: HookedDecoder, batch: PromptBatch, label: str) -> list[str]:
    """Return the token at a label's position in every clean prompt."""
    return [words.to_str_tokens(row)[column] for row, column in zip(batch.clean, batch.positions[label], strict=True)]


def test_ioi_flip_replaces_the_second_subject_and_turns_the_answer_over() -> None:
    words = model(WordTokenizer())
    batch = ioi_prompts(words, 6)
    answers, wrongs = (words.to_str_tokens(ids) for ids in (batch.answer, batch.wrong))
    assert at(words, batch, "IO") == answers
    assert at(words, batch, "S1") == at(words, batch, "S2") == wrongs
    assert batch.positions["IO"].tolist() == [1, 3, 1, 3, 1, 3], "ABBA and BABA in turn"
    assert (batch.positions["S2"] == 9).all()
    assert (batch.positions["end"] == batch.clean.shape[1] - 1).all()
    differs = batch.clean != batch.corrupted
    assert (differs.sum(1) == 1).all()
    rows = torch.arange(6)
    assert differs[rows, batch.positions["S2"]].all()
    assert torch.equal(batch.corrupted[rows, batch.positions["S2"]], batch.answer)
    assert batch.attention_mask is None
    assert all(text.endswith(" to") for text in texts(words, batch.clean))
    metric = batch.metric()
    assert isinstance(metric, LogitDifference)
    assert torch.equal(metric.answer, batch.answer)
    assert torch.equal(metric.wrong, batch.wrong)


def test_ioi_abc_has_three_other_names() -> None:
    words = model(WordTokenizer())
    batch = ioi_prompts(words, 4, corruption="abc")
    for clean, corrupted in zip(batch.clean, batch.corrupted, strict=True):
        names = {f" {name}" for name in NAMES}
        of_clean, of_corrupted = ([t for t in words.to_str_tokens(row) if t in names] for row in (clean, corrupted))
        assert (len(set(of_clean)), len(set(of_corrupted))) == (2, 3)
        assert not set(of_clean) & set(of_corrupted)


def test_the_seed_decides_and_the_global_random_state_is_left_alone() -> None:
    words = model(WordTokenizer())
    before = torch.get_rng_state()
    first, again, other = (ioi_prompts(words, 4, seed=seed).clean for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_templates_of_other_lengths_make_a_ragged_batch() -> None:
    words = model(WordTokenizer())
    long = "Then,{first} and{second} had a long day. Later,{subject} gave a{object} to"
    batch = ioi_prompts(
        words, 4, templates=["When{first} and{second} went to the{place},{subject} gave a{object} to", long]
    )
    assert batch.attention_mask is not None
    lengths = batch.attention_mask.sum(1)
    assert lengths.tolist() == [14, 14, 17, 17]
    assert torch.equal(batch.positions["end"], lengths - 1)
    assert at(words, batch, "end") == [" to"] * 4
    assert at(words, batch, "S2") == words.to_str_tokens(batch.wrong)


def test_facts_exchange_the_subject() -> None:
    words = model(WordTokenizer())
    batch = factual_prompts(words, 3)
    capitals = {" France": " Paris", " Japan": " Tokyo", " Italy": " Rome"}
    assert [capitals[subject] for subject in at(words, batch, "subject")] == words.to_str_tokens(batch.answer)
    assert sorted(at(words, batch, "subject")) == sorted(capitals)
    assert ((batch.clean != batch.corrupted).sum(1) == 1).all()
    own = factual_prompts(words, 1, facts={"Mary": "John", "Tom": "Dan"}, template="The capital of{subject} is")
    assert {" John", " Dan"} == set(words.to_str_tokens(torch.stack([own.answer[0], own.wrong[0]])))


@pytest.mark.parametrize("digits", [1, 2])
def test_years_are_compared_in_the_unit_of_the_tokenizer(digits: int) -> None:
    words = model(WordTokenizer(digits))
    batch = greater_than_prompts(words, 12)
    for clean, corrupted, answer, wrong in zip(
        texts(words, batch.clean), texts(words, batch.corrupted), batch.answer, batch.wrong, strict=True
    ):
        start, earliest = (int(re.search(r"17(\d\d) to", text)[1][:digits]) for text in (clean, corrupted))
        after, before = (int(words.to_str_tokens([int(one)])[0]) for one in (answer, wrong))
        assert earliest < before < start < after
        assert clean.endswith("to the year 17")
    assert all(token.isdigit() for token in at(words, batch, "year"))


@pytest.mark.parametrize("tokenizer", [SymbolTokenizer(), None])
def test_repeated_tokens_exchange_what_is_copied(tokenizer) -> None:
    toy = model(tokenizer, d_vocab=65)
    batch = repeated_token_prompts(toy, 3, length=8)
    lead = int(tokenizer is not None)
    assert batch.clean.shape == (3, lead + 12)
    rows = torch.arange(3)
    assert torch.equal(batch.clean[rows, batch.positions["copied"]], batch.answer)
    assert torch.equal(batch.corrupted[rows, batch.positions["copied"]], batch.wrong)
    assert torch.equal(batch.clean[rows, batch.positions["before"]], batch.clean[:, -1])
    assert torch.equal(batch.clean[:, lead : lead + 4], batch.clean[:, lead + 8 :])
    assert ((batch.clean != batch.corrupted).sum(1) == 1).all()
    for row in batch.clean:
        assert len(set(row.tolist())) == lead + 8
    assert not (batch.wrong[:, None] == batch.clean).any()


def test_an_exchanged_cue_moves_the_answer_elsewhere() -> None:
    toy = model(SymbolTokenizer(), d_vocab=65)
    batch = repeated_token_prompts(toy, 3, length=8, corruption="cue")
    rows = torch.arange(3)
    assert torch.equal(batch.clean[rows, batch.positions["copied"]], batch.answer)
    assert torch.equal(batch.clean[rows, batch.positions["other"]], batch.wrong)
    same = batch.clean == batch.corrupted
    assert (same.sum(1) == batch.clean.shape[1] - 2).all()
    assert same[rows, batch.positions["copied"]].all()
    assert same[rows, batch.positions["other"]].all()
    for clean, corrupted, answer, wrong in zip(batch.clean, batch.corrupted, batch.answer, batch.wrong, strict=True):
        for row, follows in ((clean, answer), (corrupted, wrong)):
            assert row[row.tolist().index(int(row[-1])) + 1] == follows


def test_the_default_is_ioi_where_names_are_known_and_repeated_tokens_elsewhere() -> None:
    assert default_prompts(model(WordTokenizer()), 2).about.startswith("indirect object")
    for tokenizer in (SymbolTokenizer(), None):
        assert default_prompts(model(tokenizer, d_vocab=65), 2).about.startswith("repeated random tokens")


PAIR = PromptPair("When Mary and John", "When Mary and Tom", " Mary", " John", {"name": " John"})


def test_a_pair_of_words_becomes_ids() -> None:
    words = model(WordTokenizer())
    batch = prompt_batch(words, [PAIR], "names")
    assert texts(words, batch.clean) == ["When Mary and John"]
    assert {label: columns.tolist() for label, columns in batch.positions.items()} == {"name": [3], "end": [3]}
    assert (len(batch), batch.about) == (1, "names")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"corrupted": "When Mary and Zoe"},
            r"clean prompt of pair 0 has 4 tokens and the corrupted one 7.*position 3",
        ),
        ({"answer": " Zoe"}, r"' Zoe' is 4 tokens of this model, \[' ', 'Z', 'o', 'e'\]; a single token is needed"),
        ({"corrupted": "When Mary and John"}, "clean and corrupted are the same in pair 0"),
        ({"wrong": " Mary"}, "the same token in pair 0"),
        ({"labels": {"S2": (" John", 2)}}, r"occurrence 2 of ' John', which stands 1 times"),
        ({"labels": {"part": "an"}}, r"occurrence 1 of 'an', which stands 0 times"),
    ],
)
def test_what_cannot_be_a_pair_is_refused(change: dict, message: str) -> None:
    pair = PromptPair(**{**vars(PAIR), **change})
    with pytest.raises(InputError, match=re.compile(message, re.DOTALL)):
        prompt_batch(model(WordTokenizer()), [pair])


def test_a_word_inside_a_token_has_no_position() -> None:
    class Joined(WordTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.pieces.append(" John and")
            self.pattern = re.compile(" John and|" + self.pattern.pattern)

    pair = PromptPair("When John and Mary", "When John and Tom", " Mary", " Tom", {"S": " John"})
    with pytest.raises(InputError, match=r"' John' does not end with a token in \['When', ' John and', ' Mary'\]"):
        prompt_batch(model(Joined()), [pair])


def test_pairs_label_the_same_words() -> None:
    other = PromptPair("When Mary and John", "When Mary and Tom", " Mary", " John")
    with pytest.raises(InputError, match=r"pair 1 labels \[\], pair 0 \['name'\]"):
        prompt_batch(model(WordTokenizer()), [PAIR, other])
    with pytest.raises(InputError, match="no pairs"):
        prompt_batch(model(WordTokenizer()), [])


def test_ids_that_do_not_go_together_are_refused() -> None:
    one, two = torch.tensor([1]), torch.tensor([2])
    with pytest.raises(InputError, match=r"clean has shape \(1, 2\) and corrupted \(1, 3\)"):
        PromptBatch(torch.zeros(1, 2).long(), torch.zeros(1, 3).long(), one, two, {})
    clean, corrupted = torch.tensor([[3, 4]]), torch.tensor([[3, 5]])
    with pytest.raises(InputError, match=r"the positions of 'S' are \[2\]; expected 1 of 0 to 1"):
        PromptBatch(clean, corrupted, one, two, {"S": two})
    with pytest.raises(InputError, match="the same in pair 0"):
        PromptBatch(clean, corrupted, one, two, {}, torch.tensor([[True, False]]))


def test_every_pair_has_one_answer_and_one_wrong_answer() -> None:
    clean, corrupted = torch.tensor([[3, 4], [5, 6]]), torch.tensor([[3, 7], [5, 8]])
    rest = {"wrong": torch.tensor([1, 2]), "positions": {}}
    for answer, message in (
        (torch.tensor([3]), r"answer has shape \(1,\); expected one id per pair, \[2\]"),
        (torch.tensor(3), r"answer has shape \(\)"),
        (torch.tensor([3, 4, 5]), r"answer has shape \(3,\)"),
        (torch.tensor([1.5, 2.0]), "answer: got a tensor of"),
    ):
        with pytest.raises(InputError, match=message):
            PromptBatch(clean, corrupted, answer=answer, **rest)
    for mask in (torch.ones(2, 3), [[True, True]] * 3, "yes", torch.full((2, 2), 0.5)):
        with pytest.raises(InputError, match="expected True at real tokens and False at padding"):
            PromptBatch(clean, corrupted, torch.tensor([3, 4]), attention_mask=mask, **rest)
    listed = PromptBatch(clean, corrupted, torch.tensor([3, 4]), attention_mask=[[True, True]] * 2, **rest)
    assert listed.attention_mask.tolist() == [[True, True]] * 2
    with pytest.raises(InputError, match="neither of them 0"):
        PromptBatch(clean[:0], corrupted[:0], answer=[], **rest)
    lists = PromptBatch(clean.tolist(), corrupted.tolist(), [3, 4], [1, 2], {"end": [1, 1]}, torch.ones(2, 2))
    assert lists.positions["end"].tolist() == [1, 1]
    assert lists.attention_mask.dtype == torch.bool


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (ioi_prompts, {"names": ["Mary", "Zoe"]}, r"' Zoe' is 4 tokens of this model, \[' ', 'Z', 'o', 'e'\]"),
        (ioi_prompts, {"names": ["Mary", " Mary"]}, "1 names were given; IOI needs 2"),
        (ioi_prompts, {"names": ["Mary", "Tom"], "corruption": "abc"}, "2 names were given; IOI needs 5"),
        (ioi_prompts, {"corruption": "noise"}, "corruption is 'noise'"),
        (ioi_prompts, {"n": 0}, "n is 0"),
        (ioi_prompts, {"templates": []}, "no templates"),
        (ioi_prompts, {"names": "Mary"}, r"names is the text 'Mary'; expected a list of texts: names=\['Mary'\]"),
        (ioi_prompts, {"templates": "{first}"}, "templates is the text"),
        (ioi_prompts, {"templates": ["{first}{second}{subject} {"]}, "cannot be read: Single '{'"),
        *(
            (make, {"n": n}, "n is .*; expected a whole number, at least 1")
            for make in (ioi_prompts, factual_prompts, greater_than_prompts, repeated_token_prompts)
            for n in (2.5, "3", True)
        ),
        (ioi_prompts, {"seed": -1}, "seed is -1; expected a whole number"),
        (factual_prompts, {"n": 1, "facts": {}}, "1 pairs need 2 facts.*this model has 0"),
        (factual_prompts, {"facts": ["Mary"]}, "facts is a list; expected a mapping"),
        (ioi_prompts, {"templates": ["{first} met{second}"]}, "expected 'first', 'second' and 'subject', each once"),
        (ioi_prompts, {"templates": ["{first}{second}{subject}{verb}"]}, "nothing else but 'place' and 'object'"),
        (factual_prompts, {"n": 4}, "4 pairs need 4 facts.*this model has 3"),
        (factual_prompts, {"template": "The capital is"}, "must have the field {subject} once"),
        (factual_prompts, {"facts": {"Mary": "Zoe"}}, "' Zoe' is 4 tokens"),
        (greater_than_prompts, {"n": 0}, "n is 0"),
        (repeated_token_prompts, {"length": 3}, "length is 3; expected a whole number, at least 6"),
        (repeated_token_prompts, {"corruption": "abc"}, "corruption is 'abc'; expected 'answer' or 'cue'"),
        (repeated_token_prompts, {"length": 50}, "76 tokens, but n_ctx is 64: use length 42"),
        (repeated_token_prompts, {"length": 400}, "need 401 ordinary tokens"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(model(WordTokenizer()), **options)


def test_text_needs_a_tokenizer_that_knows_it() -> None:
    for make in (ioi_prompts, factual_prompts, greater_than_prompts):
        with pytest.raises(TokenizerMissing, match="no tokenizer; use repeated_token_prompts"):
            make(model(None))
    with pytest.raises(InputError, match="0 of the 29 built-in names are single tokens of this model"):
        ioi_prompts(model(SymbolTokenizer(), d_vocab=65))

    class Whole(WordTokenizer):
        def encode(self, text: str) -> list[int]:
            return [self.pieces.index(c) if c in self.pieces else 1 for c in re.findall(r"\d{4}|[^\d]|\d+", text)]

    with pytest.raises(InputError, match="years can be compared where the century stands apart"):
        greater_than_prompts(model(Whole()))


@pytest.mark.smollm2
def test_every_template_works_on_smollm2() -> None:
    from models.loading import load_model

    smollm2 = load_model("smollm2")
    for make in (default_prompts, ioi_prompts, factual_prompts, greater_than_prompts, repeated_token_prompts):
        batch = make(smollm2, 8)
        with torch.inference_mode():
            of_clean, of_corrupted = (
                batch.metric().of_logits(smollm2(side, attention_mask=batch.attention_mask), batch.attention_mask)
                for side in (batch.clean, batch.corrupted)
            )
        assert (of_clean > 0).float().mean() >= 0.75, batch.about
        assert of_clean.mean() > of_corrupted.mean() + 2, batch.about
