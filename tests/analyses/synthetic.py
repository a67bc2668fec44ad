"""A HeadReport of any size, made by hand: what figures, tables and records are tested on."""

from __future__ import annotations

import numpy as np

from interp.detectors.kinds import KINDS
from interp.head_evidence import CausalEvidence, HeadEvidence
from interp.results import HeadReport
from interp.sites import Head

TOY_HEADS = {
    "previous_token": [(0, 2)],
    "sink": [(1, 0), (1, 3)],
    "induction": [(1, 0), (1, 1), (1, 3)],
    "duplicate_token": [],
}


def synthetic_report(
    n_layers: int = 2,
    n_heads: int = 4,
    *,
    heads: dict[str, list[tuple[int, int]]] | None = None,
    length: int = 20,
    tokens: list[str] | None = None,
    model: str = "toy",
    seed: int = 0,
    **config: object,
) -> HeadReport:
    """Return a report in which ``heads`` (kind -> (layer, head)) are found, every other head scoring near .05."""
    heads = TOY_HEADS if heads is None else heads
    rng = np.random.default_rng(seed)
    n = 2 * length + 1
    evidence, patterns = [], {}
    for kind in heads:
        for layer, head in np.ndindex(n_layers, n_heads):
            found = (layer, head) in heads[kind]
            score = float(rng.uniform(0.75, 0.97) if found else rng.uniform(0, 0.1))
            evidence.append(
                HeadEvidence(
                    kind=kind,
                    layer=layer,
                    head=head,
                    score=score,
                    interval=(score - 0.02, score + 0.02),
                    null=0.05,
                    bar=0.3,
                    p_value=0.0004 if found else 1.0,
                    pattern="yes" if found else "no",
                    by_third=(None, score, score),
                    confounds={other: 0.1 for other in heads if other != kind},
                    details={"alpha_1": 0.4, "value_norm_ratio": 0.2} if kind == "sink" else {},
                    effect=1.25 if found else None,
                    effect_interval=(1.0, 1.5) if found else None,
                    confirmed="jointly" if found else "not measured",
                )
            )
            if found:
                patterns[f"L{layer}H{head}"] = _pattern(kind, n, length)
    causal = tuple(
        CausalEvidence(
            kind=kind,
            heads=tuple(Head(*head) for head in found),
            description="mean-ablating the detected heads raises the repeat loss",
            effect=3.1,
            interval=(2.9, 3.4),
            unit="nats",
            share=0.8,
            null_effects=(0.1, 0.2, 0.15, 0.12),
            comparison="4 other sets in the same layers",
            p_value=0.2,
            least_p=0.2,
            confirmed="yes",
            details={"loss before": 0.1},
        )
        for kind, found in heads.items()
        if found
    )
    loss = np.where(np.arange(2 * length) <= length, 4.17, 0.1)
    return HeadReport(
        model=model,
        kinds=tuple(kind for kind in KINDS if kind in heads),
        seed=seed,
        evidence=tuple(evidence),
        causal=causal,
        config={"n_layers": n_layers, "n_heads": n_heads, "d_model": 64, "d_vocab": 65, "n_ctx": 64} | config,
        versions={"residscope": "0.1.0"},
        settings={
            "length": length,
            "lengths": [length] * 8,
            "n_tokens": n,
            "n_sequences": 8,
            "alpha": 0.05,
            "thresholds": dict.fromkeys(heads, "score >= 0.3"),
            "prepended_bos": True,
            "sink_token": "<bos>",
        },
        sink_share={"random": 0.25} if "sink" in heads else {},
        tokens_shown=tuple(tokens or ["<bos>", *(chr(65 + i % length) for i in range(2 * length))])[:n],
        patterns=patterns,
        token_loss=loss,
        token_loss_ablated=np.full(2 * length, 4.0) if heads.get("induction") else None,
        warnings=("the vocabulary is small",),
    )


def _pattern(kind: str, n: int, length: int) -> np.ndarray:
    offset = {"previous_token": 1, "induction": length - 1, "duplicate_token": length, "sink": n}[kind]
    pattern = np.zeros((n, n))
    for query in range(n):
        target = max(0, query - offset)
        pattern[query, : query + 1] = 0.2 / (query + 1)
        pattern[query, target] += 0.8
    return pattern
