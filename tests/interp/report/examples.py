"""One small result of every type that a report shows, with tokens that are hard to show."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

from interp.interventions.ablation import ablation_sweep
from interp.interventions.activation_patching import activation_patching
from interp.metrics import LogitDifference
from interp.readout.attention import AttentionResult, attention
from interp.readout.lens_increments import IncrementsResult, lens_increments
from interp.readout.logit_attribution import LogitAttribution, logit_attribution
from interp.readout.logit_lens import LensResult, logit_lens
from interp.readout.next_token import NextTokenResult, next_token
from models import DecoderConfig, HookedDecoder
from models.text import SymbolTokenizer
from tests.analyses.synthetic import synthetic_report
from tests.configurations import random_model

TEXT = "ABCDEFABCD"
ODD = (
    "<bos>",
    "<script>alert(1)</script>",
    " the",
    "\n",
    "\x00",
    "\u200b",
    "👩‍🚀",
    "שלום",
    "&amp;",
    "",
    "\u0301",
)


@cache
def model() -> HookedDecoder:
    cfg = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=48, d_mlp=32)
    made = random_model(cfg, dtype=torch.float32)
    made.tokenizer = SymbolTokenizer()
    return made


@cache
def lens() -> LensResult:
    found = logit_lens(model(), TEXT, target="E", top_k=5)
    return replace(found, tokens=(ODD,))


@cache
def heads_attention() -> AttentionResult:
    return replace(attention(model(), TEXT), tokens=ODD)


@cache
def following() -> NextTokenResult:
    return next_token(model(), TEXT, keep=20)


@cache
def increments() -> IncrementsResult:
    return lens_increments(model(), TEXT, target="E", by="head")


@cache
def attribution() -> LogitAttribution:
    tokens = model().to_tokens(["ABCDEFABCD", "QBCDEFQBCD"])
    return logit_attribution(model(), tokens, 4)


def report() -> object:
    return synthetic_report(tokens=[*ODD, *("ab"[i % 2] for i in range(30))])


@cache
def patching() -> object:
    return activation_patching(model(), TEXT, "ABCXEFABCD", LogitDifference(4, 23))


@cache
def ablation() -> object:
    return ablation_sweep(model(), ["ABCDEFABCD", "QBCDEFQBCD"], LogitDifference(4, 23), site="z")


ALL = {
    "lens": lens,
    "attention": heads_attention,
    "playground": following,
    "increments": increments,
    "attribution": attribution,
    "heads": report,
    "sweep": patching,
    "ablation": ablation,
}
