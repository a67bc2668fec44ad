"""find_heads: which heads of a model are previous-token, sink, induction and duplicate-token heads, with evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from interp.heads import duplicate_token, induction, previous_token, sink
from interp.heads.causes import Causes, causes
from interp.heads.knockout import BATCH
from interp.heads.scores import Measured, measure, n_layers, shown_patterns
from interp.heads.statistics import bootstrap_interval, fewest_sequences, holm, sign_test
from interp.prompts import repeated_tokens
from interp.results import KINDS, HeadEvidence, HeadKind, HeadReport, described
from interp.sites import Head
from models.errors import InputError, nearest
from models.protocol import HookedModel

N_SEQUENCES = 16
N_SHOWN = 3  # patterns kept per kind

THRESHOLDS: dict[HeadKind, str] = {
    "previous_token": f"score >= {previous_token.LEAST_SCORE}",
    "sink": (
        f"share of sequences with alpha_1 > {sink.EPSILON} at least {sink.LEAST_SHARE}, and the first value shorter "
        "than the others or half of the attention gone on a repeat"
    ),
    "induction": f"score >= {induction.LEAST_SCORE}",
    "duplicate_token": f"score >= {duplicate_token.LEAST_SCORE}",
}


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
    """Score every head for every kind on repeated random tokens; test, correct, and ablate what is found.

    A verdict is positive where the corrected p-value is below ``alpha`` and the score reaches its kind's threshold
    (``THRESHOLDS``). Definitions, nulls and causal evidence: ``interp.heads.<kind>``; statistics:
    ``interp.heads.statistics``.

    Args:
        model: a decoder.
        kinds: the kinds to report; all four are measured, as each other's confounds.
        name: what the report calls the model; by default its own name.
        seed: of tokens, bootstrap and random sets.
        n_sequences: by default 16, or as many as significance over all heads takes.
        length: distinct tokens N in BOS + 2 N; by default 50, or what context and vocabulary allow.
        alpha: family-wise error over the heads of the model, for each kind.
        causal: also measure causal effects: of all heads found together against 19 random sets, and singly of the
            best 8 of each kind, on 2 of the sequences.
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
    prompts = repeated_tokens(model, n_sequences, length, seed)
    n_tokens = prompts.repeated.shape[1]

    def ticker(stage: str, total: int) -> Callable[[], None]:
        done = 0

        def tick() -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(stage, done / total)

        return tick

    measured = measure(model, prompts, ticker("scores", 2 * -(-n_sequences // BATCH)))
    verdicts, p_values = _verdicts(measured, n_tokens, alpha)
    found = {kind: _best_first(measured, kind, verdicts[kind]) for kind in KINDS}
    caused = causes(model, prompts, measured, found, kinds, seed, ticker) if causal else Causes()
    too_short = sink.warning(n_tokens) if "sink" in kinds else None

    tokens_shown = tuple(model.to_str_tokens(prompts.repeated[0]))
    return HeadReport(
        **described(model) | ({} if name is None else {"model": name}),
        kinds=kinds,
        seed=seed,
        evidence=_evidence(measured, kinds, p_values, verdicts, caused.effects, seed),
        causal=tuple(caused.evidence),
        settings={
            "n_sequences": n_sequences,
            "length": prompts.length,
            "prepended_bos": bool(prompts.n_prepended),
            "sink_token": tokens_shown[0] if prompts.n_prepended else "the first token, another in each sequence",
            "sink_length": min(sink.WINDOW, n_tokens),
            "alpha": alpha,
            "thresholds": {kind: THRESHOLDS[kind] for kind in kinds},
        },
        tokens_shown=tokens_shown,
        patterns=_patterns(model, prompts.repeated[0], measured, kinds, found),
        token_loss=measured.loss.mean(0),
        token_loss_ablated=caused.token_loss_ablated,
        warnings=(*([too_short] if too_short else []), *caused.warnings),
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


def _verdicts(
    measured: Measured, n_tokens: int, alpha: float
) -> tuple[dict[HeadKind, np.ndarray], dict[HeadKind, np.ndarray]]:
    """Return verdicts and corrected p-values per kind, ``[layer, head]``."""
    enough = {
        "previous_token": measured.mean("previous_token") >= previous_token.LEAST_SCORE,
        "sink": (
            (sink.share(measured.sink_alpha) >= sink.LEAST_SHARE)
            & sink.rests(measured.dormant.mean(0), measured.active.mean(0), measured.value_ratio)
            & (sink.warning(n_tokens) is None)
        ),
        "induction": measured.mean("induction") >= induction.LEAST_SCORE,
        "duplicate_token": measured.mean("duplicate_token") >= duplicate_token.LEAST_SCORE,
    }
    p_values = {kind: holm(sign_test(measured.scores[kind], measured.nulls[kind])) for kind in KINDS}
    return {kind: enough[kind] & (p_values[kind] < alpha) for kind in KINDS}, p_values


def _best_first(measured: Measured, kind: HeadKind, among: np.ndarray) -> list[Head]:
    scores = measured.mean(kind)
    heads = [Head(int(layer), int(head)) for layer, head in np.argwhere(among)]
    return sorted(heads, key=lambda head: -scores[head])


def _evidence(
    measured: Measured,
    kinds: Sequence[HeadKind],
    p_values: Mapping[HeadKind, np.ndarray],
    verdicts: Mapping[HeadKind, np.ndarray],
    effects: Mapping[HeadKind, Mapping[Head, float]],
    seed: int,
) -> tuple[HeadEvidence, ...]:
    scores = {kind: measured.mean(kind) for kind in KINDS}
    evidence = []
    for kind in kinds:
        low, high = bootstrap_interval(measured.scores[kind], seed)
        nulls = measured.nulls[kind].mean(0)
        for head in (Head(*index) for index in np.ndindex(scores[kind].shape)):
            evidence.append(
                HeadEvidence(
                    kind=kind,
                    layer=head.layer,
                    head=head.head,
                    score=float(scores[kind][head]),
                    interval=(float(low[head]), float(high[head])),
                    null=float(nulls[head]),
                    p_value=float(p_values[kind][head]),
                    confounds={other: float(scores[other][head]) for other in KINDS if other != kind},
                    effect=effects.get(kind, {}).get(head),
                    verdict=bool(verdicts[kind][head]),
                )
            )
    return tuple(evidence)


def _patterns(
    model: HookedModel,
    tokens: torch.Tensor,
    measured: Measured,
    kinds: Sequence[HeadKind],
    found: Mapping[HeadKind, Sequence[Head]],
) -> dict[str, np.ndarray]:
    """Return the patterns of the best heads found of each kind, or of its best head where none was, to five digits."""
    best = {
        head
        for kind in kinds
        for head in (found[kind][:N_SHOWN] or _best_first(measured, kind, np.ones_like(measured.value_ratio, bool))[:1])
    }
    by_layer = shown_patterns(model, tokens, sorted({head.layer for head in best}))
    return {str(head): by_layer[head.layer][head.head].round(5) for head in sorted(best)}
