"""A tie broken or made by hand comes through every way of saving and copying."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from models.config import DecoderConfig
from models.decoder import HookedDecoder
from models.loading import load_model, load_native, save_hugging_face, save_native
from models.loading.fold import fold

TIED = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=20, n_ctx=12, tied=True, init="torch")
TOKENS = torch.tensor([[3, 1, 2, 3, 1, 2]])


def assigned(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["unembed.weight"] += torch.randn(20, 16, generator=torch.Generator().manual_seed(3))
    model.load_state_dict(state, assign=True)


def new_unembedding(model):
    model.unembed.weight = nn.Parameter(torch.randn(20, 16, generator=torch.Generator().manual_seed(1)))


def new_embedding(model):
    model.embed.W_E = nn.Parameter(torch.randn(20, 16, generator=torch.Generator().manual_seed(2)))


BREAKS = (assigned, new_unembedding, new_embedding)


def native(model, folder):
    save_native(model, folder / "model.safetensors", {})
    return load_native(folder / "model.safetensors")


def hugging_face(model, folder):
    save_hugging_face(model, folder / "model")
    return load_model(folder / "model")


def folded(model, folder):
    return fold(model, norm=False, centre_writes=False, centre_unembed=False)


def deep(model, folder):
    return copy.deepcopy(model).to(torch.float64).to(torch.float32)


COPIES = (native, hugging_face, folded, deep)


@pytest.mark.parametrize("make", COPIES)
@pytest.mark.parametrize("break_tie", BREAKS)
def test_a5_a_broken_tie_is_kept_as_it_is(break_tie, make, tmp_path):
    model = HookedDecoder(TIED, seed=4)
    whole = model(TOKENS)
    break_tie(model)
    logits = model(TOKENS)
    assert (logits - whole).abs().max() > 0.5
    torch.testing.assert_close(make(model, tmp_path)(TOKENS), logits)


def test_a5_hugging_face_itself_reads_a_broken_tie(tmp_path):
    from transformers import GPT2LMHeadModel

    model = HookedDecoder(TIED, seed=4)
    assigned(model)
    save_hugging_face(model, tmp_path / "model")
    with torch.no_grad():
        theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "model").eval()(TOKENS).logits
    torch.testing.assert_close(theirs, model(TOKENS).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", COPIES)
def test_a5_a_tie_made_by_hand_is_kept_too(make, tmp_path):
    model = HookedDecoder(TIED.replace(tied=False), seed=4)
    model.unembed.weight = model.embed.W_E
    torch.testing.assert_close(make(model, tmp_path)(TOKENS), model(TOKENS))


@pytest.mark.parametrize("make", [native, hugging_face])
def test_a5_a_tie_that_holds_is_written_once(make, tmp_path):
    loaded = make(HookedDecoder(TIED), tmp_path)
    assert loaded.cfg.tied
    assert loaded.unembed.weight is loaded.embed.W_E
