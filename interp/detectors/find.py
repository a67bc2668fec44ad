"""find_heads: which heads of a model are of which kind, with evidence."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from interp.detectors import sink
from interp.detectors.confirm import Confirmations, confirm
from interp.detectors.detector import Detector
from interp.detectors.kinds import DETECTORS, KINDS
from interp.detectors.measure import BATCH, Measured, measure, n_layers, shown_patterns
from interp.detectors.statistics import fewest_sequences, holm, outcomes, sign_test
from interp.detectors.token_loss import aligned
from interp.head_evidence import HeadEvidence
from interp.interventions.head_sets import TakenOut
from interp.prompts.random_tokens import RepeatedTokens, mixed_repeats, repeated_tokens
from interp.results import HeadReport, described
from interp.sites import Head
from models.errors import InputError, nearest
from models.protocol import HookedModel

N_SEQUENCES = 16
N_SHOWN = 3  # patterns kept per kind

THRESHOLDS = {kind: one.threshold for kind, one in DETECTORS.items()}


@torch.inference_mode()
def find_heads(
    model: HookedModel,
    kinds: Sequence[str] = KINDS,
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
    would give (``THRESHOLDS``, ``interp.detectors.statistics``; definitions: ``interp.detectors.<kind>``). *Confirmed*:
    taking the heads out does what the kind predicts, beyond fair sets of other heads (``interp.detectors.confirm``).

    Args:
        model: a decoder.
        kinds: the kinds to report, see ``interp.detectors.kinds``; all are measured, as each other's confounds.
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
    n_batches = 2 * -(-n_sequences // BATCH)
    measured = measure(model, prompts, DETECTORS.values(), lambda: scoring(next(batches), n_batches))
    notes = {kind: one.undecidable(model.cfg, n_tokens) for kind, one in DETECTORS.items()}
    evidence = {kind: _pattern_step(measured, one, alpha, seed, notes[kind]) for kind, one in DETECTORS.items()}
    ranks = {kind: one.rank(measured) for kind, one in DETECTORS.items()}
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
            "score_names": {kind: DETECTORS[kind].score_name for kind in kinds},
        },
        sink_share=next((DETECTORS[kind].of_model(model, measured) for kind in kinds if kind == "sink"), {}),
        tokens_shown=tokens_shown,
        patterns=_patterns(model, prompts.repeated[0], ranks, kinds, found),
        token_loss=aligned(measured.loss, prompts),
        token_loss_ablated=_loss_without(model, prompts, measured, found["induction"]) if causal else None,
        warnings=(*(note for kind, note in notes.items() if note and kind in kinds), *caused.warnings),
    )


def _checked_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
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
    measured: Measured, detector: Detector, alpha: float, seed: int, undecidable: str | None
) -> tuple[HeadEvidence, ...]:
    """Return every head's evidence of one kind, without effects; where nothing can be decided, no head passes."""
    kind = detector.name
    scores, nulls = measured.scores[kind], measured.nulls[kind]
    bar = detector.bars(nulls)
    (low, high), over = detector.intervals(scores, bar, seed)
    p_values = holm(sign_test(scores, bar))
    found = outcomes(*over, p_values, alpha)
    if undecidable is not None:
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
            details=detector.details(measured, head),
            bar_of_thirds=detector.bar_of_thirds,
        )
        for head in (Head(*index) for index in np.ndindex(means[kind].shape))
    )


def _thirds(scores: np.ndarray) -> tuple[float | None, float | None, float | None]:
    first, second, third = (None if np.isnan(score) else float(score) for score in scores)
    return first, second, third


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
    ranks: Mapping[str, np.ndarray],
    kinds: Sequence[str],
    found: Mapping[str, Sequence[Head]],
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
