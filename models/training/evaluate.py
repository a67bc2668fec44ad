"""What a trained toy model can do, and by which heads: the figures behind the shipped checkpoints' thresholds.

The test is BOS, n distinct tokens, and the same n again. Nothing in the first half can be predicted (ln 64 nats),
everything in the second half after its first token can. With columns counted from 0 (BOS):

    previous token   mean of pattern[i, i - 1]        over i >= 2
    induction        mean of pattern[i, i - n + 1]    over the second half
    sink             mean of pattern[i, 0]            over the first half, i >= 2; on the repeat, over the second half

Ablation replaces a head's z at every position by its mean over the batch at that position (the rows align); its
effect is the rise of the repeat loss in nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.decoder import HookedDecoder
from models.errors import InputError
from models.hooks.cache import ActivationCache
from models.hooks.module import Hook
from models.hooks.point import HookPoint
from models.training.tasks import repeated_tokens

HEAD_THRESHOLD = 0.3
PERIOD = 20
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
