"""A GPT-2-style model goes out as a Hugging Face folder and comes back the same."""

import pytest
import torch

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.errors import InputError, UnsupportedModel
from models.loading import load_model, save_hugging_face
from models.text import SymbolTokenizer

TOY = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=12, init="torch")
CONFIGS = {
    "untied": TOY,
    "tied": TOY.replace(tied=True),
    "wide": TOY.replace(d_mlp=20, act="gelu", norm_eps=1e-3),
    "relu": TOY.replace(act="relu"),
    "silu": TOY.replace(act="silu"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_computes_the_same_logits(name, tmp_path):
    from transformers import GPT2LMHeadModel

    ours = HookedDecoder(CONFIGS[name], seed=1, tokenizer=SymbolTokenizer())
    save_hugging_face(ours, tmp_path / "model")
    ids = ours.to_tokens("ABCabc+")
    with torch.no_grad():
        theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "model").eval()(ids).logits
        torch.testing.assert_close(theirs, ours(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_our_loader_gives_the_same_model_back(name, tmp_path):
    ours = HookedDecoder(CONFIGS[name], seed=1)
    save_hugging_face(ours, tmp_path / "new" / "model")
    loaded = load_model(tmp_path / "new" / "model")
    assert loaded.cfg == ours.cfg.replace(init="gpt2")
    assert loaded.tokenizer is None
    for parameter, value in ours.named_parameters():
        assert torch.equal(loaded.get_parameter(parameter), value), parameter


@pytest.mark.parametrize("prepends", [True, False])
def test_the_text_interface_comes_back(prepends, tmp_path):
    ours = HookedDecoder(TOY, tokenizer=SymbolTokenizer(prepends_bos=prepends))
    save_hugging_face(ours, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.tokenizer.prepends_bos is prepends
    assert loaded.tokenizer.bos_token_id == 64
    for text in ("ABz9+-", "<bos>AB", "A<bos>B"):
        assert loaded.to_tokens(text).tolist() == ours.to_tokens(text).tolist()
        assert loaded.to_str_tokens(text) == ours.to_str_tokens(text)
    assert loaded.to_string([64, 0, 63]) == "<bos>A-"
    with pytest.raises(InputError, match="cannot encode 'é'"):
        loaded.to_tokens("é")


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "rotary"},
        {"norm": "rms"},
        {"norm_position": "post"},
        {"gated": True},
        {"n_kv_heads": 1},
        {"attn_only": True, "d_mlp": None},
        {"qkv_bias": False},
        {"out_bias": False},
        {"mlp_bias": False},
        {"unembed_bias": True},
        {"norm_bias": False},
        {"parallel": True},
        {"scale_embedding": True},
        {"sliding_window": 4},
        {"d_head": 4},
    ],
    ids=str,
)
def test_what_gpt2_does_not_have_is_refused_by_name(changes, tmp_path):
    model = HookedDecoder(TOY.replace(**changes))
    with pytest.raises(UnsupportedModel, match=f"this one has .*{next(iter(changes))} = "):
        save_hugging_face(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not an empty folder"):
        save_hugging_face(HookedDecoder(TOY), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_failed_write_leaves_nothing(tmp_path):
    class Other:
        bos_token_id = None
        prepends_bos = False

    with pytest.raises(InputError, match="a Other cannot be saved"):
        save_hugging_face(HookedDecoder(TOY, tokenizer=Other()), tmp_path / "model")
    assert not list(tmp_path.iterdir())
