"""Text goes in and comes out as the checkpoint's own tokenizer has it; BOS is never doubled (scenario 11)."""

import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from models.errors import InputError
from models.loading import load_model
from models.loading.tokenizer import PretrainedTokenizer, _byte_alphabet, from_folder
from tests.models.loading.families import build, save

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer(*, bos: bool, prepends: bool, merges: list[tuple[str, str]] | None = None):
    """Return a byte-level BPE tokenizer of transformers: 256 bytes, the merges, then BOS."""
    from transformers import PreTrainedTokenizerFast

    vocab = [*BYTES, *("".join(pair) for pair in merges or [])]
    inner = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocab)}, merges=merges or []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if bos:
        inner.add_special_tokens(["<s>"])
    if prepends:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", len(vocab))])
    return PreTrainedTokenizerFast(tokenizer_object=inner, **({"bos_token": "<s>"} if bos else {}))


KINDS = {"adds BOS": (True, True), "has BOS": (True, False), "no BOS": (False, False)}
BOS = 256


@pytest.fixture(params=KINDS)
def case(request, tmp_path):
    bos, prepends = KINDS[request.param]
    folder = save(build("GPT2", vocab_size=300), tmp_path / "model")
    byte_tokenizer(bos=bos, prepends=prepends).save_pretrained(folder)
    return load_model(folder), bos, prepends


def test_prepends_bos_is_measured(case):
    model, bos, prepends = case
    assert model.tokenizer.prepends_bos is prepends
    assert model.tokenizer.bos_token_id == (BOS if bos else None)


def test_what_is_prepended_is_shown(case):
    model, bos, prepends = case
    assert model.to_str_tokens("ab") == (["<s>", "a", "b"] if prepends else ["a", "b"])
    assert model.to_str_tokens("ab", prepend_bos=False) == ["a", "b"]
    if bos:
        assert model.to_str_tokens("ab", prepend_bos=True) == ["<s>", "a", "b"]
    else:
        with pytest.raises(InputError, match="no BOS"):
            model.to_tokens("ab", prepend_bos=True)


def test_a_leading_bos_is_never_doubled(case):
    model, bos, _ = case
    if bos:
        for prepend in (None, True):
            assert model.to_str_tokens("<s>ab", prepend_bos=prepend) == ["<s>", "a", "b"]
        assert model.to_str_tokens("<s>ab", prepend_bos=False) == ["a", "b"]


def test_a15_several_leading_bos(case):
    model, bos, _ = case
    if bos:
        assert model.to_str_tokens("<s><s>ab", prepend_bos=True) == ["<s>", "a", "b"]
        assert model.to_str_tokens("<s><s>ab", prepend_bos=False) == ["a", "b"]
        assert model.to_str_tokens("<s><s>ab") == ["<s>", "<s>", "a", "b"]
        assert model.to_str_tokens("<s><s>a<s>b", prepend_bos=False) == ["a", "<s>", "b"]
    else:
        assert model.to_str_tokens("<s>") == ["<", "s", ">"]


def test_encode_adds_nothing_and_decode_shows_everything(case):
    model, bos, _ = case
    assert BOS not in model.tokenizer.encode("a b")
    text = "two  spaces , and don 't tidy"
    assert model.to_string(model.tokenizer.encode(text)) == text
    if bos:
        assert model.tokenizer.decode([BOS, *model.tokenizer.encode(text)]) == "<s>" + text


def test_text_runs(case):
    model, *_ = case
    logits = model("hello")
    torch.testing.assert_close(logits, model(model.to_tokens("hello")))


def test_a_lone_token_is_printable():
    tokenizer = PretrainedTokenizer(byte_tokenizer(bos=True, prepends=False))
    for i in (*range(257), 999):
        text = tokenizer.decode([i])
        assert text
        assert text.isprintable() or text.isspace() or i in (BYTES.index(c) for c in BYTES if ord(c) > 255)
    fragments = [tokenizer.decode([i]) for i in tokenizer.encode("é")]
    assert fragments == ["\N{REPLACEMENT CHARACTER}"] * 2
    assert tokenizer.decode(tokenizer.encode("é")) == "é"
    assert tokenizer.decode([999]) == "<id 999>"


def test_a_lone_sentencepiece_token_keeps_its_space():
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE(vocab={"▁": 0, "a": 1, "▁a": 2, "b": 3}, merges=[("▁", "a")]))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    tokenizer = PretrainedTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner))
    assert [tokenizer.decode([i]) for i in tokenizer.encode("ab a")] == [" a", "b", " a"]
    assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"


def test_a_long_text_gives_no_warning(case):
    model, *_ = case
    model.tokenizer.inner.model_max_length = 4
    assert len(model.tokenizer.encode("a" * 100)) == 100


def test_c3_a_tokenizer_of_vocab_txt_is_not_lost(tmp_path):
    from transformers import BertTokenizerFast

    folder = save(build("GPT2", vocab_size=300), tmp_path / "model")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b"]))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    expected = BertTokenizerFast(str(folder / "vocab.txt")).encode("ab b", add_special_tokens=False)
    assert load_model(folder).tokenizer.encode("ab b") == expected == [5, 7, 6]


@pytest.mark.parametrize(
    ("name", "text"), [("vocab.txt", "[UNK]\nhello"), ("tokenizer_config.json", '{"tokenizer_class": "GPT2Tokenizer"}')]
)
def test_c3_a_tokenizer_without_a_vocabulary_is_none(tmp_path, name, text):
    folder = save(build("GPT2", vocab_size=300), tmp_path / "model")
    (folder / name).write_text(text)
    assert load_model(folder).tokenizer is None


def test_c3_vocab_json_and_merges_are_not_lost(tmp_path):
    import json

    folder = save(build("GPT2", vocab_size=300), tmp_path / "model")
    vocab = {token: i for i, token in enumerate([*BYTES, "ab"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    assert load_model(folder).tokenizer.encode("ab") == [256]


def test_c4_a_vocabulary_of_board_squares_without_an_unknown_token_loads(tmp_path):
    from transformers import PreTrainedTokenizerFast

    squares = [f"{column}{row}" for column in "ABCDEFGH" for row in range(1, 9)]
    inner = Tokenizer(models.WordLevel({square: i for i, square in enumerate(["<s>", *squares])}))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for prepends in (False, True):
        folder = save(build("GPT2", vocab_size=65), tmp_path / str(prepends))
        if prepends:
            inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>").save_pretrained(folder)
        model = load_model(folder)
        assert model.tokenizer.prepends_bos is prepends
        assert model.to_str_tokens("A1 C4", prepend_bos=False) == ["A1", "C4"]
        with pytest.raises(InputError, match="cannot encode '0'"):
            model.to_tokens("0")


def test_a_folder_without_tokenizer_has_none(tmp_path):
    assert from_folder(tmp_path) is None


@pytest.mark.smollm2
def test_fragments_of_a_character_are_shown_as_their_bytes():
    model = load_model("smollm2")
    shown = model.to_str_tokens("a 🦩 b")
    assert "".join(shown).startswith("a ")
    assert not any("\ufffd" in one for one in shown), "fragments would look alike"
    assert bytes.fromhex("".join(re.findall("⟨([0-9A-F ]+)⟩", "".join(shown)))) == "🦩".encode()
    assert model.to_string(model.to_tokens("a 🦩 b")[0]) == "a 🦩 b"


def test_the_byte_alphabet_is_that_of_byte_level_vocabularies():
    assert sorted(_byte_alphabet()) == BYTES
    tokenizer = PretrainedTokenizer(byte_tokenizer(bos=False, prepends=False))
    assert [tokenizer.bytes_of(tokenizer.encode(one)[0]) for one in ("a", " ", "\n")] == [b"a", b" ", b"\n"]
    assert tokenizer.bytes_of(100_000) is None
