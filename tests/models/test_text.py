"""Scenario 11: text to tokens and back; a BOS is never doubled and never added behind anyone's back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import InputError, TokenizerMissing
from models.text import SymbolTokenizer, Tokenizer

CFG = DecoderConfig(n_layers=1, d_model=8, n_heads=2, d_vocab=6, n_ctx=12)
BOS = 5


class NoBos:
    """A tokenizer like GPT-2's family without any BOS; ids are the letters a to f."""

    bos_token_id = None
    prepends_bos = False

    def encode(self, text):
        return ["abcdef".index(letter) for letter in text]

    def decode(self, ids):
        return "".join("abcdef"[i] for i in ids)


def model_with(tokenizer):
    return HookedDecoder(CFG, tokenizer=tokenizer)


@pytest.fixture
def adds():
    return model_with(SymbolTokenizer("ABCDE"))


@pytest.fixture
def adds_none():
    return model_with(SymbolTokenizer("ABCDE", prepends_bos=False))


def test_the_tokenizers_fit_the_protocol():
    assert isinstance(SymbolTokenizer(), Tokenizer)
    assert isinstance(NoBos(), Tokenizer)
    assert SymbolTokenizer().bos_token_id == 64


@pytest.mark.parametrize(
    ("prepends", "text", "prepend_bos", "expected"),
    [
        (True, "AB", None, [BOS, 0, 1]),
        (True, "<bos>AB", None, [BOS, 0, 1]),
        (True, "<bos>AB", True, [BOS, 0, 1]),
        (True, "AB", False, [0, 1]),
        (True, "<bos>AB", False, [0, 1]),
        (True, "", None, [BOS]),
        (False, "AB", None, [0, 1]),
        (False, "AB", True, [BOS, 0, 1]),
        (False, "<bos>AB", None, [BOS, 0, 1]),
        (False, "<bos>AB", True, [BOS, 0, 1]),
        (False, "<bos>AB", False, [0, 1]),
        (False, "A<bos>B", True, [BOS, 0, BOS, 1]),
    ],
)
def test_bos(prepends, text, prepend_bos, expected):
    model = model_with(SymbolTokenizer("ABCDE", prepends_bos=prepends))
    assert model.to_tokens(text, prepend_bos).tolist() == [expected]
    assert model.to_batch([text], prepend_bos)[0].tolist() == [expected]
    assert model.to_str_tokens(text, prepend_bos) == [model.tokenizer.decode([i]) for i in expected]
    torch.testing.assert_close(model(text, prepend_bos=prepend_bos), model(torch.tensor([expected])))


@pytest.mark.parametrize("prepends", [True, False])
@pytest.mark.parametrize("leading", [0, 1, 2, 3])
@pytest.mark.parametrize("body", ["AB", "A<bos>B", "A<bos><bos>"])
def test_a15_true_leads_with_one_bos_and_false_with_none(body, leading, prepends):
    model = model_with(SymbolTokenizer("ABCDE", prepends_bos=prepends))
    text, rest = "<bos>" * leading + body, model.tokenizer.encode(body)
    as_typed = [BOS] * (leading or prepends) + rest
    for prepend_bos, expected in ((None, as_typed), (True, [BOS, *rest]), (False, rest)):
        assert model.to_tokens([text, text], prepend_bos).tolist() == [expected, expected]
        assert model.to_str_tokens(text, prepend_bos) == [model.tokenizer.decode([i]) for i in expected]
        made = model.generate(text, 1, temperature=0, prepend_bos=prepend_bos)
        assert made.tolist() == model.generate(torch.tensor([expected]), 1, temperature=0).tolist()
        for padding in ("left", "right"):
            tokens, real = model.to_batch([text, body + "CD"], prepend_bos, padding)
            assert tokens[0][real[0]].tolist() == expected


def test_a15_a_text_of_bos_alone():
    model = model_with(SymbolTokenizer("ABCDE"))
    assert model.to_tokens("<bos><bos>", prepend_bos=True).tolist() == [[BOS]]
    assert model.to_tokens("<bos><bos>").tolist() == [[BOS, BOS]]
    with pytest.raises(InputError, match="the text has no tokens"):
        model.to_tokens("<bos><bos>", prepend_bos=False)


def test_a_tokenizer_without_bos():
    model = model_with(NoBos())
    assert model.to_tokens("abc").tolist() == [[0, 1, 2]]
    assert model.to_tokens("abc", prepend_bos=False).tolist() == [[0, 1, 2]]
    with pytest.raises(InputError, match="prepend_bos=True, but this tokenizer has no BOS token"):
        model.to_tokens("abc", prepend_bos=True)


def test_several_texts(adds):
    assert adds.to_tokens(["AB", "CD"]).tolist() == [[BOS, 0, 1], [BOS, 2, 3]]
    assert adds.to_tokens(("AB", "CD"), prepend_bos=False).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(
        InputError, match=r"the texts have \[3, 2\] tokens; to_tokens needs equal lengths, to_batch pads"
    ):
        adds.to_tokens(["AB", "C"])
    tokens, real = adds.to_batch(["AB", "C"])
    assert real.tolist() == [[True] * 3, [True, True, False]]
    assert tokens[real].tolist() == [BOS, 0, 1, BOS, 2]
    tokens, real = adds.to_batch(["AB", "C"], padding="left")
    assert real.tolist() == [[True] * 3, [False, True, True]]
    assert tokens[real].tolist() == [BOS, 0, 1, BOS, 2]
    assert adds.to_batch("AB")[0].tolist() == [[BOS, 0, 1]]
    logits = adds(["AB", "C"])
    torch.testing.assert_close(logits[1, :2], adds("C")[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.to_tokens([]), r"the texts have \[\] tokens"),
        (lambda model: model.to_batch([]), "no texts were given"),
        (lambda model: model([]), "no texts were given"),
        (lambda model: model.to_tokens("", prepend_bos=False), "the text has no tokens"),
        (lambda model: model.to_tokens("AxB"), "'x' is not in this model's vocabulary 'ABCDE'"),
        (lambda model: model.to_batch(["A"], padding="middle"), "padding is 'middle'; expected 'left' or 'right'"),
        (lambda model: model(["A", 2]), "the input mixes texts and ids"),
        (lambda model: model(np.array(["A"])), "token ids is .*; expected integers"),
        (lambda model: model(None), "expected token ids or text, got NoneType"),
        (lambda model: model("AB", attention_mask=torch.ones(1, 3)), "attention_mask goes with token ids"),
        (lambda model: model.to_single_token("AB"), r"'AB' is 2 tokens, \['A', 'B'\]; a single token is needed"),
        (lambda model: model.to_single_token(""), "'' is 0 tokens"),
        (lambda model: model.to_string([6]), "id 6 is not in this model's vocabulary, 0 to 5"),
        (lambda model: model.to_string(-1), "id -1 is not in"),
        (lambda model: model.to_string(torch.zeros(2, 2).long()), r"one sequence of ids is needed; got one of shape"),
        (lambda model: model.to_str_tokens(["A", "B"]), r"a sequence of token ids is \['A', 'B'\]; expected integers"),
        (lambda model: model.to_string([0.5]), r"a sequence of token ids is \[0\.5\]; expected integers"),
    ],
)
def test_refusals(adds, call, message):
    with pytest.raises(InputError, match=message):
        call(adds)


def test_ids_to_text(adds):
    ways = [[5, 0, 1], (5, 0, 1), torch.tensor([5, 0, 1]), torch.tensor([[5, 0, 1]]), np.array([5, 0, 1])]
    for ids in ways:
        assert adds.to_string(ids) == "<bos>AB"
        assert adds.to_str_tokens(ids) == ["<bos>", "A", "B"]
    assert adds.to_string(2) == adds.to_string(torch.tensor(2)) == adds.to_string(np.int64(2)) == "C"
    assert adds.to_string([]) == ""


def test_single_tokens(adds, adds_none):
    for model in (adds, adds_none):
        assert model.to_single_token("C") == 2
        assert model.to_single_token("<bos>") == BOS


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model("AB"),
        lambda model: model.to_tokens("AB"),
        lambda model: model.to_batch(["AB"]),
        lambda model: model.to_string([1]),
        lambda model: model.to_str_tokens("AB"),
        lambda model: model.to_single_token("A"),
        lambda model: model.generate("A", 1),
    ],
)
def test_without_a_tokenizer(call):
    with pytest.raises(TokenizerMissing, match="this model has no tokenizer"):
        call(HookedDecoder(CFG))


def test_ids_without_a_tokenizer_are_shown_as_they_are():
    assert HookedDecoder(CFG).to_str_tokens(torch.tensor([3, 4])) == ["3", "4"]
