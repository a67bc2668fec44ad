"""find_heads: which heads of a model are previous-token, sink, induction and duplicate-token heads, with evidence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from interp.head_evidence import KINDS, HeadEvidence, HeadKind
from interp.heads import duplicate_token, induction, previous_token, sink
from interp.heads.confirm import Confirmations, confirm
from interp.heads.scores import BATCH, Measured, measure, n_layers, shown_patterns, sink_alpha
from interp.heads.statistics import (
    bars,
    bootstrap_interval,
    fewest_sequences,
    holm,
    outcomes,
    share_interval,
    sign_test,
)
from interp.heads.token_loss import aligned
from interp.interventions.head_sets import TakenOut
from interp.prompts.corpus import text_sequences
from interp.prompts.random_tokens import RepeatedTokens, mixed_repeats, repeated_tokens
from interp.results import HeadReport, described
from interp.sites import Head
from models.errors import InputError, nearest
from models.protocol import HookedModel

N_SEQUENCES = 16
N_SHOWN = 3  # patterns kept per kind

_LEAST: dict[HeadKind, float] = {
    "previous_token": previous_token.LEAST_SCORE,
    "sink": sink.LEAST_SHARE,
    "induction": induction.LEAST_SCORE,
    "duplicate_token": duplicate_token.LEAST_SCORE,
}
THRESHOLDS: dict[HeadKind, str] = {
    kind: f"score > {least}, and twice what its confounds give" for kind, least in _LEAST.items() if kind != "sink"
} | {"sink": f"alpha_1 > {sink.EPSILON} on more than {sink.LEAST_SHARE:.0%} of sequences"}


@torch.inference_mode()
def find_heads(
    model: HookedModel,
    kinds: Sequence[HeadKind] = KINDS,
    *,
    name: str | None = None,
    seed: int = 0,
    n_sequences: int | None = None,
    length: int | None = None,
    alpha: float = 0.05,
    causal: bool = True,
    progress: Callable[[str, float], None] | None = None,
) -> HeadReport:
    """Score every head for every kind on repeated random tokens; take out what is found.

    A verdict has two steps. *Pattern*: the score lies above its bar, the kind's least score and twice what confounds
    would give (``THRESHOLDS``, ``interp.heads.statistics``; definitions: ``interp.heads.<kind>``). *Confirmed*: taking
    the heads out does what the kind predicts, beyond fair sets of other heads (``interp.heads.confirm``).

    Args:
        model: a decoder.
        kinds: the kinds to report; all four are measured, as each other's confounds.
        name: what the report calls the model; by default its own name.
        seed: of tokens, bootstrap and random sets.
        n_sequences: by default 16, or as many as significance over all heads takes.
        length: distinct tokens N in BOS + 2 N, the same in every sequence, as published; by default N is mixed, so
            that "look N - 1 back" is not taken for induction.
        alpha: family-wise error over the heads of the model, for each kind.
        causal: also take the second step.
        progress: called with what is being done and the share of it that is done, 0 to 1.

    Returns:
        A ``HeadReport``.

    Raises:
        InputError: an unknown kind, a model that is no decoder, a length or number of sequences that cannot work.
        NonFiniteError: NaN or inf in the model, with the first hook at which it appears.

    >>> from models import DecoderConfig, HookedDecoder
    >>> untrained = HookedDecoder(DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=64, n_ctx=64))
    >>> find_heads(untrained, ["induction"]).found("induction")
    ()
    """
    kinds = _checked_kinds(kinds)
    _check_decoder(model)
    n_sequences = _checked_sequences(n_sequences, n_layers(model) * model.cfg.n_heads, alpha)
    if length is None:
        prompts = mixed_repeats(model, n_sequences, seed=seed)
    else:
        prompts = repeated_tokens(model, n_sequences, length, seed)

    def ticker(stage: str) -> Callable[[int, int], None]:
        return lambda done, total: None if progress is None else progress(stage, done / total)

    n_tokens, scoring, batches = prompts.repeated.shape[1], ticker("scores"), itertools.count(1)
    measured = measure(model, prompts, lambda: scoring(next(batches), 2 * -(-n_sequences // BATCH)))
    notes = {"sink": sink.warning(n_tokens), "previous_token": previous_token.forced(model.cfg.narrowest_window)}
    evidence = {kind: _pattern_step(measured, kind, alpha, seed, notes.get(kind) is not None) for kind in KINDS}
    ranks = {kind: measured.best_first(kind) for kind in KINDS}
    found = {
        kind: sorted((one.name for one in evidence[kind] if one.found), key=lambda head: -ranks[kind][head])
        for kind in KINDS
    }
    caused = confirm(model, measured, found, kinds, seed, ticker) if causal else Confirmations()
    tokens_shown = tuple(model.to_str_tokens(prompts.repeated[0]))
    return HeadReport(
        **described(model) | ({} if name is None else {"model": name}),
        kinds=kinds,
        seed=seed,
        evidence=tuple(caused.of(one) for kind in kinds for one in evidence[kind]),
        causal=tuple(caused.evidence),
        settings={
            "n_sequences": n_sequences,
            "length": prompts.length,
            "lengths": list(prompts.lengths),
            "n_tokens": n_tokens,
            "prepended_bos": bool(prompts.n_prepended),
            "sink_token": tokens_shown[0] if prompts.n_prepended else "the first token, another in each sequence",
            "sink_length": min(sink.WINDOW, n_tokens),
            "alpha": alpha,
            "thresholds": {kind: THRESHOLDS[kind] for kind in kinds},
        },
        sink_share=_sink_share(model, measured) if "sink" in kinds else {},
        tokens_shown=tokens_shown,
        patterns=_patterns(model, prompts.repeated[0], ranks, kinds, found),
        token_loss=aligned(measured.loss, prompts),
        token_loss_ablated=_loss_without(model, prompts, measured, found["induction"]) if causal else None,
        warnings=(*(note for kind, note in notes.items() if note and kind in kinds), *caused.warnings),
    )


def _checked_kinds(kinds: Sequence[HeadKind]) -> tuple[HeadKind, ...]:
    if isinstance(kinds, str) or not kinds:
        raise InputError(f"kinds is {kinds!r}; expected a list of {', '.join(KINDS)}")
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(
                f"no kind of head {kind!r}{nearest(str(kind), KINDS)}; expected some of {', '.join(KINDS)}"
            )
    return tuple(dict.fromkeys(kinds))


def _check_decoder(model: HookedModel) -> None:
    if "blocks.0.attn.hook_pattern" not in model.hook_names():
        raise InputError(
            f"find_heads reads blocks.{{layer}}.attn.hook_pattern, which {type(model).__name__} does not have; "
            "give a decoder"
        )


def _checked_sequences(n_sequences: int | None, n_heads: int, alpha: float) -> int:
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}; expected a probability between 0 and 1, such as 0.05")
    fewest = fewest_sequences(n_heads, alpha)
    if n_sequences is None:
        return max(N_SEQUENCES, fewest)
    if n_sequences < fewest:
        raise InputError(
            f"with {n_sequences} sequences no head of {n_heads} can be significant at {alpha}: "
            f"use n_sequences {fewest} or more"
        )
    return n_sequences


def _pattern_step(
    measured: Measured, kind: HeadKind, alpha: float, seed: int, undecidable: bool
) -> tuple[HeadEvidence, ...]:
    """Return every head's evidence of one kind, without effects; where nothing can be decided, no head passes."""
    scores, nulls = measured.scores[kind], measured.nulls[kind]
    if kind == "sink":
        bar = np.full_like(scores, sink.LEAST_SHARE)
        low, high = share_interval(scores.sum(0), len(scores))
        over = (low - sink.LEAST_SHARE, high - sink.LEAST_SHARE)
    else:
        bar = bars(nulls, _LEAST[kind])
        low, high = bootstrap_interval(scores, seed)
        over = bootstrap_interval(scores - bar, seed)
    p_values = holm(sign_test(scores, bar))
    found = outcomes(*over, p_values, alpha)
    if undecidable:
        found[:] = "no"
    means = {other: measured.mean(other) for other in KINDS}
    return tuple(
        HeadEvidence(
            kind=kind,
            layer=head.layer,
            head=head.head,
            score=float(means[kind][head]),
            interval=(float(low[head]), float(high[head])),
            null=float(nulls.mean(0)[head]),
            bar=float(bar.mean(0)[head]),
            p_value=float(p_values[head]),
            pattern=found[head],
            by_third=_thirds(measured.thirds[kind][head]),
            confounds={other: float(means[other][head]) for other in KINDS if other != kind},
            details=_resting(measured, head) if kind == "sink" else {},
        )
        for head in (Head(*index) for index in np.ndindex(means[kind].shape))
    )


def _thirds(scores: np.ndarray) -> tuple[float | None, float | None, float | None]:
    first, second, third = (None if np.isnan(score) else float(score) for score in scores)
    return first, second, third


def _resting(measured: Measured, head: Head) -> dict[str, float]:
    return {
        "alpha_1": float(measured.alpha.mean(0)[head]),
        "value_norm_ratio": float(measured.value_ratio[head]),
        "dormant": float(measured.dormant.mean(0)[head]),
        "active": float(measured.active.mean(0)[head]),
    }


def _sink_share(model: HookedModel, measured: Measured) -> dict[str, float]:
    """Return the share of heads that are sinks, as Gu et al. publish it, on random tokens and on text."""
    shares = {"random": float(measured.scores["sink"].mean())}
    try:
        text = text_sequences(model, BATCH, sink.WINDOW)
    except InputError:
        return shares
    return shares | {"text": float(sink.rests(sink_alpha(model, text)).mean())}


def _loss_without(
    model: HookedModel, prompts: RepeatedTokens, measured: Measured, heads: Sequence[Head]
) -> np.ndarray | None:
    if not heads:
        return None
    losses = TakenOut(model, prompts.repeated, measured.mean_z).losses([heads], slice(None))[0]
    return aligned(losses.numpy(), prompts)


def _patterns(
    model: HookedModel,
    tokens: torch.Tensor,
    ranks: Mapping[HeadKind, np.ndarray],
    kinds: Sequence[HeadKind],
    found: Mapping[HeadKind, Sequence[Head]],
) -> dict[str, np.ndarray]:
    """Return the patterns of the best heads found of each kind, or of its best head where none was, to five digits."""
    best = {
        head
        for kind in kinds
        for head in found[kind][:N_SHOWN]
        or [Head(*map(int, np.unravel_index(ranks[kind].argmax(), ranks[kind].shape)))]
    }
    by_layer = shown_patterns(model, tokens, sorted({head.layer for head in best}))
    return {str(head): by_layer[head.layer][head.head].round(5) for head in sorted(best)}
