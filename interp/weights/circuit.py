"""The induction circuit, told end to end (Elhage et al. 2021, Olsson et al. 2022).

    token before --previous-token head--> keys of --induction head--> its logit

1. ``find_heads``: which heads look one token back, which at what followed this token last time; what goes without them.
2. Links: a previous-token head's write taken from an induction head's keys alone; its composition score and both nulls.
3. Weights: whether induction heads copy, and whether previous-token heads look back by position alone.

A duplicate-token head can do the previous-token head's work by another route: it tells an induction head's *queries*
where this token stood, and positions do the rest. Its links are tested through the queries, beside the others.

Test of a link: the unit of replication is the sequence. On each, the fall of the induction score is set against the
largest fall that any other head of the same layer makes by the same route (heads found to be of either kind left out);
sign test, Holm over all links. A verdict needs a tenth of the intact score as well: with many sequences the slightest
effect is certain. Where no other head is left in the layer, the test is against zero, and ``null_heads`` is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.decoders import check_parts
from interp.detectors import duplicate_token
from interp.detectors.find import find_heads
from interp.detectors.statistics import bootstrap_interval, fewest_sequences, holm, sign_test
from interp.prompts import repeated_tokens
from interp.results import HeadReport
from interp.sites import Head
from interp.weights.circuit_result import HeadWeights, InductionCircuit, Link
from interp.weights.composition import CompositionScores, composition_scores, dimension_null
from interp.weights.copying import eigenvalue_copying_scores, output_copying_scores
from interp.weights.links import Pair, Route, link_effects, whole_effects
from interp.weights.positional import positional_qk
from models.parts.norm import NoNorm
from models.protocol import ResumableModel

KINDS = ("previous_token", "induction")
LEAST_SHARE = 0.1
N_SEQUENCES = 12
N_WHOLE = 2  # sequences on which heads are ablated for everything
N_ROTATIONS = 8
N_COPIED = 25

Progress = Callable[[str, float], None]


@torch.no_grad()
def induction_circuit(
    model: ResumableModel,
    *,
    name: str | None = None,
    seed: int = 0,
    alpha: float = 0.05,
    report: HeadReport | None = None,
    progress: Progress | None = None,
) -> InductionCircuit:
    """Find the parts of a model's induction circuit, and test every link between them.

    Args:
        model: a ``HookedDecoder``.
        name: what the result calls the model.
        seed: of sequences, bootstrap, rotations and random heads.
        alpha: family-wise error, over heads and over links.
        report: of ``find_heads`` on this model, for previous-token and induction heads; by default it is made.
        progress: called with what is being done and the share of it that is done, 0 to 1.

    Raises:
        InputError: no ``HookedDecoder``, or as ``find_heads``.

    >>> from models import DecoderConfig, HookedDecoder
    >>> untrained = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=64, n_ctx=64))
    >>> induction_circuit(untrained).links
    ()
    """
    check_parts(model)
    say: Progress = progress or (lambda stage, share: None)
    if report is None:
        report = find_heads(model, KINDS, name=name, seed=seed, alpha=alpha, progress=progress)
    later = [evidence.name for evidence in report.found("induction")]
    pairs: dict[Route, list[Pair]] = {
        "K": _pairs([evidence.name for evidence in report.found("previous_token")], later),
        "Q": _pairs(_duplicate_token_heads(report), later),
    }
    n_sequences = max(N_SEQUENCES, fewest_sequences(max(1, len(pairs["K"]) + len(pairs["Q"])), alpha))
    tokens = repeated_tokens(model, n_sequences, report.settings["length"], seed).repeated

    say("composition", 0.0)
    composition = {
        route: composition_scores(model, route, later=later, n_rotations=N_ROTATIONS, seed=seed)
        for route in pairs
        if later and (route == "K" or pairs[route])
    }
    tested = [
        link
        for route, some in pairs.items()
        if some
        for link in _measured(model, tokens, route, some, _bystanders(report), seed, partial(say, f"links ({route})"))
    ]
    say("weights", 0.0)
    weights, others = _weights(model, report, seed)
    return InductionCircuit(
        report=report,
        links=_judged(tested, composition, seed, alpha),
        weights=weights,
        copying_others=others,
        composition={
            str(head): composition["K"].scores[:, :, head.layer, head.head].double().cpu().numpy() for head in later
        },
        positional=_positional(model, tokens, report),
        dimension_null=dimension_null(model),
        settings={
            "alpha": alpha,
            "least_share": LEAST_SHARE,
            "n_sequences": n_sequences,
            "n_sequences_whole": N_WHOLE,
            "n_rotations": N_ROTATIONS,
            "n_tokens_copied": min(N_COPIED, model.cfg.d_vocab),
            "relative": composition["K"].relative if "K" in composition else None,
        },
    )


def _pairs(earlier: Sequence[Head], later: Sequence[Head]) -> list[Pair]:
    return [(one, other) for one in earlier for other in later if one.layer < other.layer]


def _duplicate_token_heads(report: HeadReport) -> list[Head]:
    """Return the heads whose duplicate-token score would pass; the links' own test is the evidence."""
    scores = {e.name: e.confounds["duplicate_token"] for e in report.of_kind("induction")}
    return [head for head, score in scores.items() if score >= duplicate_token.LEAST_SCORE]


def _bystanders(report: HeadReport) -> list[Head]:
    """Return the heads that are in no part of the circuit: what links are compared with."""
    taken = {e.name for kind in KINDS for e in report.found(kind)} | set(_duplicate_token_heads(report))
    return [e.name for e in report.evidence if e.kind == "induction" and e.name not in taken]


@dataclass(frozen=True, eq=False)
class _Measured:
    """One link before it is judged; effects are per sequence."""

    route: Route
    pair: Pair
    effect: Float[np.ndarray, "sequence"]
    intact: float
    null: Float[np.ndarray, "sequence"]
    null_heads: tuple[Head, ...]
    whole: float
    whole_null: float | None


def _measured(
    model: ResumableModel,
    tokens: Int[Tensor, "sequence pos"],
    route: Route,
    pairs: Sequence[Pair],
    bystanders: Sequence[Head],
    seed: int,
    say: Callable[[float], None],
) -> list[_Measured]:
    """Measure the links of one route, and the same links from other heads of the earlier heads' layers."""
    beside = {earlier: [head for head in bystanders if head.layer == earlier.layer] for earlier, _ in pairs}
    nulls = {(head, later) for earlier, later in pairs for head in beside[earlier]}
    rng = np.random.default_rng(seed)
    stand_in = {layer: heads[rng.integers(len(heads))] for layer, heads in _by_layer(beside) if heads}
    whole_pairs = [*pairs, *{(stand_in[a.layer], b) for a, b in pairs if a.layer in stand_in}]
    n_steps = len({a.layer for a, _ in pairs}) + len({a for a, _ in whole_pairs})
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        say(done / n_steps)

    found, intact = link_effects(model, tokens, [*pairs, *sorted(nulls)], route, tick)
    whole = whole_effects(model, tokens[:N_WHOLE], whole_pairs, tick)
    effects = {pair: _numpy(effect) for pair, effect in found.items()}
    measured = []
    for earlier, later in pairs:
        others = beside[earlier]
        null = [effects[head, later] for head in others] or [np.zeros(len(tokens))]
        other = stand_in.get(earlier.layer)
        measured.append(
            _Measured(
                route=route,
                pair=(earlier, later),
                effect=effects[earlier, later],
                intact=float(intact[later].mean()),
                null=np.max(null, axis=0),
                null_heads=tuple(others),
                whole=float(whole[earlier, later].mean()),
                whole_null=None if other is None else float(whole[other, later].mean()),
            )
        )
    return measured


def _by_layer(beside: dict[Head, list[Head]]) -> list[tuple[int, list[Head]]]:
    return sorted({earlier.layer: heads for earlier, heads in beside.items()}.items())


def _judged(
    measured: Sequence[_Measured], composition: dict[Route, CompositionScores], seed: int, alpha: float
) -> tuple[Link, ...]:
    if not measured:
        return ()
    effects = np.stack([one.effect for one in measured], axis=1)
    p_values = holm(sign_test(effects, np.stack([one.null for one in measured], axis=1)))
    lows, highs = bootstrap_interval(effects, seed)
    links = []
    for i, one in enumerate(measured):
        scores, (earlier, later) = composition[one.route], one.pair
        at = (*earlier, *later)
        effect, share = float(one.effect.mean()), float(one.effect.mean()) / one.intact
        links.append(
            Link(
                earlier=earlier,
                later=later,
                route=one.route,
                composition=float(scores.scores[at]),
                null_mean=float(scores.null_mean[at]),
                null_sd=float(scores.null_sd[at]),
                effect=effect,
                interval=(float(lows[i]), float(highs[i])),
                share=share,
                null=float(one.null.mean()),
                null_heads=one.null_heads,
                p_above_null=float(p_values[i]),
                whole=one.whole,
                whole_null=one.whole_null,
                verdict=bool(p_values[i] < alpha and share >= LEAST_SHARE),
            )
        )
    return tuple(sorted(links, key=lambda link: (not link.verdict, -link.effect)))


def _weights(
    model: ResumableModel, report: HeadReport, seed: int
) -> tuple[tuple[HeadWeights, ...], tuple[tuple[float, float], tuple[float, float]]]:
    """Return the copying scores of the heads found, and mean and spread over all others."""
    eigen = _numpy(eigenvalue_copying_scores(model))
    output = _numpy(output_copying_scores(model, n_tokens=min(N_COPIED, model.cfg.d_vocab), seed=seed))
    found = {e.name: kind for kind in KINDS for e in report.found(kind)}
    rest = np.ones_like(eigen, dtype=bool)
    for head in found:
        rest[head] = False
    weights = [HeadWeights(head, kind, float(eigen[head]), float(output[head])) for head, kind in found.items()]
    if not rest.any():
        rest[:] = True
    (mean_a, sd_a), (mean_b, sd_b) = ((float(x[rest].mean()), float(x[rest].std())) for x in (eigen, output))
    return tuple(weights), ((mean_a, sd_a), (mean_b, sd_b))


def _positional(
    model: ResumableModel, tokens: Int[Tensor, "sequence pos"], report: HeadReport
) -> dict[str, Float[np.ndarray, "query_pos key_pos"]]:
    """Return the patterns that positions alone would give the previous-token heads.

    The stream that rotary queries and keys share is the mean of what the layer reads on the sequences, without the
    first position, which in many models is like no other.
    """
    heads = [evidence.name for evidence in report.found("previous_token")]
    rotary = model.blocks[0].attn.rotary is not None
    if not heads or not (rotary or "hook_pos_embed" in model.hook_names()):
        return {}
    streams: dict[int, Tensor] = {}
    if rotary:
        hook = "hook_resid_pre" if isinstance(model.blocks[0].attention.norm_in, NoNorm) else "ln1.hook_normalized"
        names = sorted({f"blocks.{head.layer}.{hook}" for head in heads})
        _, cache = model.run_with_cache(tokens[:N_WHOLE], names_filter=names, return_type=None)
        streams = {head.layer: cache[f"blocks.{head.layer}.{hook}"][:, 1:].mean((0, 1)) for head in heads}
    return {
        str(head): _numpy(positional_qk(model, *head, stream=streams.get(head.layer)).softmax(-1)).round(5)
        for head in heads
    }


def _numpy(x: Tensor) -> np.ndarray:
    return x.double().cpu().numpy()
