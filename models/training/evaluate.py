"""What a trained toy model can do, and by which heads: the figures behind the shipped checkpoints' thresholds.

The test is BOS, n distinct tokens, and the same n again. Nothing in the first half can be predicted (ln 64 nats),
everything in the second half after its first token can. With columns counted from 0 (BOS):

    previous token   mean of pattern[i, i - 1]        over i >= 2
    induction        mean of pattern[i, i - n + 1]    over the second half
    sink             mean of pattern[i, 0]            over the first half, i >= 2; on the repeat, over the second half

Ablation replaces a head's z at every position by its mean over the batch at that position (the rows align); its
effect is the rise of the repeat loss in nats. The induction heads are held against every fair set: as many other heads
of the same layers.

Three figures are taken on whole contexts instead: the lowest accuracy at any place (``models.training.everywhere``),
and on distinct tokens the previous-token score by thirds of the context and whether a head rests on BOS, a sink in the
sense of Gu et al. (arXiv 2410.10781): on how many rows its mean attention to BOS exceeds .3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations, product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.decoder import HookedDecoder
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.training.everywhere import Place, lowest_accuracy
from models.training.tasks import N_SYMBOLS, after_bos, distinct_tokens, repeated_tokens

HEAD_THRESHOLD = 0.3
REST_THRESHOLD = 0.3
PERIOD = 20
ROWS_OF_SETS = 64
Head = tuple[int, int]
PerHead = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class ToyEvaluation:
    """Figures of one model. Losses in nats, scores and accuracies in [0, 1], per-head scores ``[layer][head]``.

    Attributes:
        repeat_loss, accuracy: on the second half after its first token.
        first_half_loss: on the first half.
        previous_token, induction, sink, sink_on_repeat: per head.
        accuracy_at: accuracy by period n.
        rise_best_previous: rise in repeat loss without the best previous-token head.
        rise_all_previous, rise_all_induction: without all heads whose score is above ``HEAD_THRESHOLD``.
        accuracy_without_induction: accuracy without the induction heads.
        fair_sets: how many there are to hold against the induction heads.
        rise_fair_set: without the fair set that costs most, 0 where there is none.
        rise_beyond_fair_sets: how much more the induction heads cost than a fair set: the lowest lower end, over all
            fair sets, of the 95 % interval over sequences; 0 where there is none.
        lowest_accuracy, lowest_at: over column, period and repeat, and where.
        previous_by_third: of the best previous-token head, by thirds of the context.
        rests_on_bos: per head.
    """

    repeat_loss: float
    accuracy: float
    first_half_loss: float
    previous_token: PerHead
    induction: PerHead
    sink: PerHead
    sink_on_repeat: PerHead
    accuracy_at: dict[int, float]
    rise_best_previous: float
    rise_all_previous: float
    rise_all_induction: float
    accuracy_without_induction: float
    fair_sets: int
    rise_fair_set: float
    rise_beyond_fair_sets: float
    lowest_accuracy: float
    lowest_at: Place
    previous_by_third: tuple[float, float, float]
    rests_on_bos: PerHead

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able values."""
        return asdict(self)


@torch.no_grad()
def repeat_figures(model: HookedDecoder, tokens: Int[Tensor, "batch pos"]) -> dict[str, float]:
    """Return the few figures that show the phase change.

    Args:
        tokens: from ``repeated_tokens``.

    Returns:
        ``repeat_loss`` and ``first_half_loss`` in nats, ``accuracy``, and the best head's ``previous_token`` and
        ``induction`` score.
    """
    logits, patterns = _run(model, tokens)
    scores = _scores(patterns, _period(tokens))
    return {
        **_losses(logits, tokens),
        "previous_token": scores["previous_token"].max().item(),
        "induction": scores["induction"].max().item(),
    }


@torch.no_grad()
def evaluate_toy(
    model: HookedDecoder, *, periods: Sequence[int] = (8, 11, 17, 23), seed: int = 0, batch: int = 256
) -> ToyEvaluation:
    """Measure a model of the toy vocabulary.

    Args:
        periods: at which to measure the accuracy too; the other figures are taken at period 20.
        seed: of the test's tokens.
        batch: rows.

    >>> from models.training.toys import TOYS
    >>> untrained = HookedDecoder(TOYS["toy"].config)
    >>> evaluate_toy(untrained, batch=8).accuracy < 0.2
    True
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = repeated_tokens(generator, batch, PERIOD).to(model.device)
    logits, patterns = _run(model, tokens)
    losses = _losses(logits, tokens)
    scores = _scores(patterns, PERIOD)
    previous, induction = scores["previous_token"], scores["induction"]

    def without(heads: list[Head]) -> dict[str, float]:
        return losses if not heads else _losses(_mean_ablated(model, tokens, heads), tokens)

    def rise(heads: list[Head]) -> float:
        return without(heads)["repeat_loss"] - losses["repeat_loss"]

    accuracy_at = {}
    for period in periods:
        other = repeated_tokens(generator, batch, period).to(model.device)
        accuracy_at[period] = _losses(model(other), other)["accuracy"]
    best = divmod(int(previous.argmax()), previous.shape[1])
    distinct = after_bos(distinct_tokens(generator, batch, min(N_SYMBOLS, model.cfg.n_ctx - 1))).to(model.device)
    whole = _run(model, distinct)[1]
    place, lowest = lowest_accuracy(model, seed=seed, rows=batch)
    rows: dict[str, PerHead] = {name: tuple(map(tuple, score.tolist())) for name, score in scores.items()}
    return ToyEvaluation(
        repeat_loss=losses["repeat_loss"],
        accuracy=losses["accuracy"],
        first_half_loss=losses["first_half_loss"],
        previous_token=rows["previous_token"],
        induction=rows["induction"],
        sink=rows["sink"],
        sink_on_repeat=rows["sink_on_repeat"],
        accuracy_at=accuracy_at,
        rise_best_previous=rise([best]),
        rise_all_previous=rise(_above(previous)),
        rise_all_induction=rise(_above(induction)),
        accuracy_without_induction=without(_above(induction))["accuracy"],
        **_beyond_fair_sets(model, tokens[:ROWS_OF_SETS], _above(induction)),
        lowest_accuracy=lowest,
        lowest_at=place,
        previous_by_third=_thirds(whole.mean(1)[best]),
        rests_on_bos=tuple(map(tuple, _rests(whole).tolist())),
    )


def _period(tokens: Int[Tensor, "batch pos"]) -> int:
    period = (tokens.shape[1] - 1) // 2
    if period < 2 or not torch.equal(tokens[:, 1 : 1 + period], tokens[:, 1 + period :]):
        raise InputError(f"tokens {tuple(tokens.shape)} are not BOS, n tokens, the same n again; use repeated_tokens")
    return period


def _run(model: HookedDecoder, tokens: Tensor) -> tuple[Tensor, Float[Tensor, "layer batch head query_pos key_pos"]]:
    cache: ActivationCache
    logits, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
    return logits, cache.stack("pattern")


def _losses(logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]) -> dict[str, float]:
    """Return losses and accuracy; the second half's first token cannot be predicted and belongs to neither half."""
    period = (tokens.shape[1] - 1) // 2
    log_p = logits[:, :-1].log_softmax(-1)
    loss = -log_p.gather(-1, tokens[:, 1:, None])[..., 0]
    right = log_p.argmax(-1) == tokens[:, 1:]
    return {
        "repeat_loss": loss[:, period + 1 :].mean().item(),
        "first_half_loss": loss[:, :period].mean().item(),
        "accuracy": right[:, period + 1 :].float().mean().item(),
    }


def _scores(
    patterns: Float[Tensor, "layer batch head query_pos key_pos"], period: int
) -> dict[str, Float[Tensor, "layer head"]]:
    pattern = patterns.mean(1)
    queries = torch.arange(pattern.shape[-1], device=pattern.device)
    late, first, second = queries[2:], queries[2 : period + 1], queries[period + 1 :]
    return {
        "previous_token": pattern[..., late, late - 1].mean(-1),
        "induction": pattern[..., second, second - period + 1].mean(-1),
        "sink": pattern[..., first, 0].mean(-1),
        "sink_on_repeat": pattern[..., second, 0].mean(-1),
    }


def _thirds(pattern: Float[Tensor, "query_pos key_pos"]) -> tuple[float, float, float]:
    """Return the mean attention to the token before, by thirds of the queries that have one."""
    first, second, third = (part.mean().item() for part in pattern.diagonal(-1)[1:].tensor_split(3))
    return first, second, third


def _rests(patterns: Float[Tensor, "layer batch head query_pos key_pos"]) -> Float[Tensor, "layer head"]:
    """Return the share of rows on which a head's mean attention to BOS exceeds the threshold."""
    return (patterns[..., 0].mean(-1) > REST_THRESHOLD).float().mean(1)


def _beyond_fair_sets(model: HookedDecoder, tokens: Int[Tensor, "batch pos"], heads: list[Head]) -> dict[str, Any]:
    """Return what the fair sets cost, and how much more ``heads`` do."""
    sets = list(_fair_sets(heads, model.cfg.n_heads)) if heads else []
    if not sets:
        return {"fair_sets": 0, "rise_fair_set": 0.0, "rise_beyond_fair_sets": 0.0}
    intact, without = _repeat_loss(model(tokens), tokens), _repeat_loss(_mean_ablated(model, tokens, heads), tokens)
    fair = torch.stack([_repeat_loss(_mean_ablated(model, tokens, chosen), tokens) for chosen in sets])
    more = without - fair
    lower = more.mean(1) - 1.96 * more.std(1) / len(tokens) ** 0.5
    return {
        "fair_sets": len(sets),
        "rise_fair_set": (fair - intact).mean(1).max().item(),
        "rise_beyond_fair_sets": lower.min().item(),
    }


def _fair_sets(heads: Sequence[Head], n_heads: int) -> Iterator[list[Head]]:
    """Yield every set of as many other heads of the same layers."""
    choices = []
    for layer in sorted({layer for layer, _ in heads}):
        taken = {head for at, head in heads if at == layer}
        others = [(layer, head) for head in range(n_heads) if head not in taken]
        choices.append(list(combinations(others, len(taken))))
    for chosen in product(*choices):
        yield list(chain.from_iterable(chosen))


def _repeat_loss(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch"]:
    """Return each row's repeat loss."""
    period = (tokens.shape[1] - 1) // 2
    log_p = logits[:, :-1].log_softmax(-1)
    return -log_p.gather(-1, tokens[:, 1:, None])[:, period + 1 :, 0].mean(1)


def _above(scores: Float[Tensor, "layer head"]) -> list[Head]:
    return [(layer, head) for layer, head in (scores > HEAD_THRESHOLD).nonzero().tolist()]


def _mean_ablated(
    model: HookedDecoder, tokens: Int[Tensor, "batch pos"], heads: Sequence[Head]
) -> Float[Tensor, "batch pos d_vocab"]:
    """Run with the z of ``heads`` replaced by their means over the batch."""

    def ablate(z: Tensor, hook: HookPoint) -> None:
        for layer, head in heads:
            if layer == hook.layer:
                z[:, :, head] = z[:, :, head].mean(0)

    hooks: list[Hook] = [(f"blocks.{layer}.attn.hook_z", ablate) for layer in sorted({layer for layer, _ in heads})]
    return model.run_with_hooks(tokens, fwd_hooks=hooks)
