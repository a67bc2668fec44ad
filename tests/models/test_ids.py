"""Ids are taken as a tensor, an array or lists everywhere alike, and refused everywhere alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from interp import attention, logit_attribution, logit_lens, next_token
from interp.readout import lens_increments, stream_growth
from models import DecoderConfig, EncoderDecoderConfig, HookedDecoder, HookedEncoderDecoder
from models.errors import InputError
from models.text import SymbolTokenizer

IDS = [5, 9, 3, 5, 9]
MODEL = HookedDecoder(
    DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=16), tokenizer=SymbolTokenizer()
).requires_grad_(False)
BOTH = HookedEncoderDecoder(
    EncoderDecoderConfig(n_encoder_layers=1, n_decoder_layers=1, d_model=16, n_heads=2, d_vocab=65, n_ctx=16)
).requires_grad_(False)

TAKERS: dict[str, Callable[[Any], Any]] = {
    "model": lambda ids: MODEL(ids),
    "loss": lambda ids: MODEL(ids, return_type="loss"),
    "run_with_cache": lambda ids: MODEL.run_with_cache(ids)[1]["resid_post", -1],
    "generate": lambda ids: MODEL.generate(ids, 2, temperature=0),
    "logit_lens": lambda ids: torch.tensor(logit_lens(MODEL, ids).kl),
    "attention": lambda ids: torch.tensor(attention(MODEL, ids).scores),
    "next_token": lambda ids: torch.tensor(next_token(MODEL, ids).top_logits),
    "logit_attribution": lambda ids: logit_attribution(MODEL, ids, 1).values,
    "lens_increments": lambda ids: torch.tensor(lens_increments(MODEL, ids).raised_by),
    "stream_growth": lambda ids: stream_growth(MODEL, ids).norms,
    "to_str_tokens": lambda ids: torch.tensor([len(text) for text in MODEL.to_str_tokens(ids)]),
    "to_string": lambda ids: torch.tensor([ord(letter) for letter in MODEL.to_string(ids)]),
    "encoder-decoder": lambda ids: BOTH(ids, ids),
}
FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "int32 array": lambda ids: np.array(ids, dtype=np.int32),
    "tensor": torch.tensor,
    "int32 tensor": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "list of numpy ints": lambda ids: list(np.array(ids)),
}
BAD: dict[str, Any] = {
    "floats": [5.0, 9.0],
    "a float tensor": torch.tensor([5.0, 9.0]),
    "bools": [True, False],
    "a bool among ints": [5, True],
    "ragged rows": [[5, 9], [3]],
    "texts and ids": ["A", 3],
    "None": None,
    "a dict": {"input_ids": [5]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("taker", TAKERS)
def test_c6_ids_are_taken_in_every_form_by_every_way_in(taker, form):
    expected = TAKERS[taker](torch.tensor(IDS))
    torch.testing.assert_close(TAKERS[taker](FORMS[form](IDS)), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("taker", TAKERS)
def test_c6_what_is_no_ids_is_refused_by_every_way_in(taker, bad):
    with pytest.raises(InputError) as caught:
        TAKERS[taker](BAD[bad])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("taker", [taker for taker in TAKERS if not taker.startswith("to_")])
def test_c6_ids_outside_the_vocabulary_are_refused_by_every_way_in(taker):
    with pytest.raises(InputError, match="65"):
        TAKERS[taker]([5, 65])


def test_c6_masks_are_taken_as_lists_too():
    expected = MODEL(torch.tensor([IDS]), attention_mask=torch.tensor([[0, 1, 1, 1, 1]]))
    torch.testing.assert_close(MODEL([IDS], attention_mask=[[0, 1, 1, 1, 1]]), expected)
    with pytest.raises(InputError, match="attention_mask is 'yes'"):
        MODEL([IDS], attention_mask="yes")


def test_c5_a_text_with_an_undecodable_byte_is_one_line():
    with pytest.raises(InputError, match="the text is not UTF-8: the byte 0xFF at character 3 of 3"):
        MODEL.to_tokens("AB\udcff")
