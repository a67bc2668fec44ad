"""One small result of every type that a report shows, with tokens that are hard to show."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from interp.interventions.ablation import ablate, ablation_sweep
from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.path_patching import path_patching
from interp.metrics import LogitDifference
from interp.readout.attention import AttentionResult, attention
from interp.readout.lens_increments import IncrementsResult, lens_increments
from interp.readout.logit_attribution import LogitAttribution, logit_attribution
from interp.readout.logit_lens import LensResult, logit_lens
from interp.readout.next_token import NextTokenResult, next_token
from interp.sites import Head
from interp.weights.circuit_result import HeadWeights, InductionCircuit, Link
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


@cache
def joint() -> object:
    return ablate(model(), ["ABCDEFABCD", "QBCDEFQBCD"], LogitDifference(4, 23), ["L0H1", "L1H0"])


@cache
def comparison() -> object:
    exact = activation_patching(model(), TEXT, "ABCXEFABCD", LogitDifference(4, 23), site="z")
    options = {"site": "z", "over": exact.axes}
    return attribution_patching(model(), TEXT, "ABCXEFABCD", LogitDifference(4, 23), **options).compare(exact)


@cache
def estimates() -> object:
    return attribution_patching(model(), TEXT, "ABCXEFABCD", LogitDifference(4, 23), site="z", over=("layer", "head"))


@cache
def paths() -> object:
    return path_patching(
        model(), TEXT, "ABCXEFABCD", LogitDifference(4, 23), senders=["L0H0", "mlp0"], receivers=["L1H0.k", "logits"]
    )


@cache
def circuit() -> InductionCircuit:
    links = [
        Link(
            earlier=Head(0, head),
            later=Head(1, 2),
            route="K",
            composition=0.2 + 0.1 * head,
            null_mean=0.15,
            null_sd=0.01,
            effect=0.9 - 0.5 * head,
            interval=(0.3, 0.95),
            share=0.8,
            null=0.01,
            null_heads=(Head(0, 3),),
            p_above_null=0.002,
            whole=0.95,
            whole_null=None,
            verdict=head == 0,
        )
        for head in (0, 1)
    ]
    return InductionCircuit(
        report=synthetic_report(),
        links=tuple(links),
        weights=(HeadWeights(Head(1, 2), "induction", 0.91, -0.4),),
        copying_others=((0.0, 0.1), (0.0, 0.2)),
        composition={"L1H2": np.array([[0.2, 0.3, 0.1, 0.15], [np.nan] * 4])},
        positional={},
        dimension_null=0.125,
        settings={},
    )


ALL = {
    "lens": lens,
    "attention": heads_attention,
    "playground": following,
    "increments": increments,
    "attribution": attribution,
    "heads": report,
    "sweep": patching,
    "ablation": ablation,
    "joint": joint,
    "estimates": estimates,
    "paths": paths,
    "comparison": comparison,
    "circuit": circuit,
}
CELLS = ("ablation", "joint", "estimates", "paths")  # shown as sweeps
