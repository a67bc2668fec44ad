"""Tools that read blocks and weights say so to models that do not give them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from interp import composition_scores, induction_circuit, logit_attribution, ov_circuit, qk_circuit, residual_writes
from interp.decoders import check_decoder
from interp.precision import at_least_float32
from interp.readout import (
    TunedLens,
    attention,
    lens_increments,
    logit_lens,
    next_token,
    own_text,
    residual_reads,
    stream_growth,
    train_tuned_lens,
)
from interp.weights import (
    eigenvalue_copying_scores,
    fired_memories,
    full_ov_circuit,
    link_effects,
    memories,
    output_copying_scores,
    positional_qk,
    singular_directions,
    whole_effects,
)
from models import ActivationCache, EncoderDecoderConfig, HookedEncoderDecoder
from models.errors import InputError
from tests.configurations import CONFIGS, random_model

TOKENS = torch.tensor([[1, 2, 3, 1, 2, 3]])
CALLS: dict[str, Callable] = {
    "residual_writes": lambda m: residual_writes(m, ActivationCache({})),
    "residual_reads": lambda m: residual_reads(m, ActivationCache({}), 0),
    "stream_growth": lambda m: stream_growth(m, TOKENS),
    "logit_lens": lambda m: logit_lens(m, TOKENS),
    "lens_increments": lambda m: lens_increments(m, TOKENS[0]),
    "attention": lambda m: attention(m, TOKENS[0]),
    "next_token": lambda m: next_token(m, TOKENS[0]),
    "train_tuned_lens": lambda m: train_tuned_lens(m, [TOKENS], n_steps=1),
    "TunedLens.identity": TunedLens.identity,
    "own_text": own_text,
    "logit_attribution": lambda m: logit_attribution(m, TOKENS, 1),
    "qk_circuit": lambda m: qk_circuit(m, 0, 0),
    "ov_circuit": lambda m: ov_circuit(m, 0, 0),
    "composition_scores": composition_scores,
    "eigenvalue_copying_scores": eigenvalue_copying_scores,
    "output_copying_scores": output_copying_scores,
    "positional_qk": lambda m: positional_qk(m, 0, 0),
    "singular_directions": lambda m: singular_directions(m, 0, 0),
    "full_ov_circuit": lambda m: full_ov_circuit(m, 0, 0, TOKENS[0]),
    "memories": lambda m: memories(m, 0, [0]),
    "fired_memories": lambda m: fired_memories(m, TOKENS, 1),
    "link_effects": lambda m: link_effects(m, TOKENS, [], "K"),
    "whole_effects": lambda m: whole_effects(m, TOKENS, []),
    "induction_circuit": induction_circuit,
}


@pytest.mark.parametrize("name", CALLS)
def test_an_encoder_decoder_is_refused(name):
    cfg = EncoderDecoderConfig(n_encoder_layers=1, n_decoder_layers=1, d_model=8, n_heads=2, d_vocab=11, n_ctx=12)
    with pytest.raises(InputError, match="reads a decoder's blocks and weights, which HookedEncoderDecoder does not"):
        CALLS[name](HookedEncoderDecoder(cfg))


def test_decoders_pass():
    for cfg in CONFIGS.values():
        check_decoder(random_model(cfg))


def test_precision_is_raised_and_never_lowered():
    for dtype, expected in (
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.int64, torch.float32),
    ):
        assert at_least_float32(torch.ones(1, dtype=dtype)).dtype == expected
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        x = torch.ones(1, dtype=dtype)
        assert at_least_float32(x) is x
