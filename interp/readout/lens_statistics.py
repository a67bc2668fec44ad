"""What a lens says of logits, gathered over the vocabulary in chunks, so that no full row of logits is ever kept.

For every row of streams and every column, in one pass over the vocabulary (log-sum-exp and expectations are updated
online, relative to a running maximum):

    log p(w) = logit_w - lse        entropy = lse - E_p[logit]        KL(final || row) = E_f[log f - logit] + lse
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.precision import at_least_float32
from models.protocol import ResumableModel

Rows = Float[Tensor, "row token d_model"]
PerRow = Float[Tensor, "row token"]


@dataclass
class _Softmax:
    """Running log-sum-exp and expected logit."""

    peak: Tensor
    mass: Tensor
    weighted: Tensor

    @staticmethod
    def empty(n_rows: int, like: Rows) -> _Softmax:
        zero = like.new_zeros(n_rows, like.shape[1])
        return _Softmax(torch.full_like(zero, -torch.inf), zero, zero.clone())

    def add(self, logits: Float[Tensor, "token chunk"], row: int) -> None:
        peak = torch.maximum(self.peak[row], logits.amax(-1))
        fade = (self.peak[row] - peak).exp()
        weight = (logits - peak[:, None]).exp_()
        self.mass[row] = self.mass[row] * fade + weight.sum(-1)
        self.weighted[row] = self.weighted[row] * fade + (weight.mul_(logits)).sum(-1)
        self.peak[row] = peak

    @property
    def log_normaliser(self) -> Tensor:
        return self.peak + self.mass.log()

    @property
    def expected_logit(self) -> Tensor:
        return self.weighted / self.mass


@dataclass(frozen=True, eq=False)
class LensStatistics:
    """Per row and token; probabilities are of the row's softmax, KL and entropy in nats.

    Attributes:
        top_tokens, top_logits: ``[row, token, k]``, best first.
        log_normaliser, entropy, kl: ``[row, token]``; KL from the last row's distribution to this row's.
        target_logit, target_rank: ``[row, token]``; rank 0 is the top guess.
    """

    top_tokens: Int[Tensor, "row token k"]
    top_logits: Float[Tensor, "row token k"]
    log_normaliser: PerRow
    entropy: PerRow
    kl: PerRow
    target_logit: PerRow | None
    target_rank: Int[Tensor, "row token"] | None


def unembedding_chunks(
    model: ResumableModel, chunk: int
) -> Iterator[tuple[int, Float[Tensor, "d_model chunk"], Float[Tensor, "chunk"]]]:
    """Yield (first token, columns of W_U, entries of b_U)."""
    W_U, b_U = model.W_U, model.b_U
    for start in range(0, W_U.shape[1], chunk):
        stop = start + chunk
        yield start, at_least_float32(W_U[:, start:stop]), at_least_float32(b_U[start:stop])


def lens_statistics(
    model: ResumableModel,
    normed: Rows,
    *,
    top_k: int,
    target: Int[Tensor, "token"] | None = None,
    chunk: int = 2048,
) -> LensStatistics:
    """Read rows of normalised streams through the unembedding; the last row is the model's own.

    Peak memory beside the rows: six buffers of token x chunk, and of row x token x k.

    Args:
        normed: streams behind the final norm, at least float32.
        top_k: guesses to keep.
        target: per column, a token of the vocabulary whose logit and rank are wanted.
        chunk: tokens of the vocabulary at a time.
    """
    n_rows, n_tokens, _ = normed.shape
    softmax, final = _Softmax.empty(n_rows, normed), _Softmax.empty(1, normed)
    crossed = normed.new_zeros(n_rows, n_tokens)  # sum of exp(final logit - its peak) * row logit
    top_logits = normed.new_full((n_rows, n_tokens, top_k), -torch.inf)
    top_tokens = torch.zeros((n_rows, n_tokens, top_k), dtype=torch.long, device=normed.device)
    target_logit = rank = None
    if target is not None:
        target_logit = _target_logit(model, normed, target)
        rank = torch.zeros((n_rows, n_tokens), dtype=torch.long, device=normed.device)
    for first, W, b in unembedding_chunks(model, chunk):
        final_logits = normed[-1] @ W + b
        before = final.peak[0].clone()
        final.add(final_logits, 0)
        crossed *= (before - final.peak[0]).exp()  # exp(-inf) is 0 in the first chunk, and so is what it scales
        final_weight = (final_logits - final.peak[0][:, None]).exp_()
        for row in range(n_rows):
            logits = final_logits if row == n_rows - 1 else normed[row] @ W + b
            crossed[row] += (final_weight * logits).sum(-1)
            softmax.add(logits, row)
            best = logits.topk(min(top_k, logits.shape[1]))
            both = torch.cat([top_logits[row], best.values], 1).topk(top_k)
            tokens = torch.cat([top_tokens[row], best.indices + first], 1)
            top_logits[row], top_tokens[row] = both.values, tokens.gather(1, both.indices)
            if target is not None and target_logit is not None and rank is not None:
                rank[row] += _above(logits, target_logit[row], target - first)
    lse = softmax.log_normaliser
    negative_entropy = final.expected_logit[0] - final.log_normaliser[0]
    kl = negative_entropy - crossed / final.mass[0] + lse
    return LensStatistics(
        top_tokens, top_logits, lse, lse - softmax.expected_logit, kl.clamp(min=0), target_logit, rank
    )


def _target_logit(model: ResumableModel, normed: Rows, target: Int[Tensor, "token"]) -> PerRow:
    columns, bias = at_least_float32(model.W_U.T[target]), at_least_float32(model.b_U[target])
    return torch.stack([(row * columns).sum(-1) for row in normed]) + bias


def _above(
    logits: Float[Tensor, "token chunk"], bar: Float[Tensor, "token"], own: Int[Tensor, "token"]
) -> Int[Tensor, "token"]:
    """Count the logits above a bar, but for the target's own, which rounding may put on either side of itself."""
    above = logits > bar[:, None]
    within = (own >= 0) & (own < logits.shape[1])
    itself = above.gather(1, own.clamp(0, logits.shape[1] - 1)[:, None]).squeeze(1) & within
    return above.sum(-1) - itself.long()
