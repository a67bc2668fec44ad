"""Attention patterns made small: the lower triangle, quantised, deflated, as base64.

A head is stored either as *scores* (16 bits between each row's lowest and highest visible score; 0 where hidden) or as
*weights* (a number of levels of each row's largest weight, 8 bits or less). All heads start as scores; while all
together exceed the budget, the largest head goes one step down the ladder. So sharp heads keep their precision, and
noisy ones, which have none to show, pay.

Layout of a packed head, little-endian: ``first [pos] f4, second [pos] f4, codes [pos (pos + 1) / 2]``; rows of the
triangle one after the other. For scores, first and second are a row's lowest and highest score and codes are u2; for
weights they are its largest weight and the log of its summed exp(score), and codes are u1.
"""

from __future__ import annotations

import base64
import heapq
import zlib
from dataclasses import dataclass

import numpy as np

from interp.readout.attention import AttentionResult
from interp.sites import Head

SCORE_LEVELS = 65534
LADDER = (SCORE_LEVELS, 255, 63, 15, 7, 3)
BUDGET = 16_000_000  # bytes, before base64 adds a third

Triangle = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class PackedHead:
    """One head as it lies in a page.

    Attributes:
        head: which.
        kind: ``scores`` or ``weights``.
        levels: quantisation steps; per row from its lowest to its highest score, or from 0 to its largest weight.
        error: largest error: of a score, absolute; of a weight, as a share of its row's largest.
        packed: deflate of the layout above.
    """

    head: Head
    kind: str
    levels: int
    error: float
    packed: bytes

    @property
    def text(self) -> str:
        """``packed`` as base64."""
        return base64.b64encode(self.packed).decode()


def pack_heads(result: AttentionResult, budget: int = BUDGET) -> list[PackedHead]:
    """Pack every head of a result into ``budget`` bytes in all, or as few as the lowest step of the ladder takes."""
    n = len(result.tokens)
    triangle = np.tril_indices(n)
    heads = [Head(layer, head) for layer in result.layers for head in range(result.n_heads)]
    sizes = [8 * n + 2 * len(triangle[0])] * len(heads)  # of scores, before deflate
    found: list[PackedHead | None] = [None] * len(heads)
    waiting = [(-size, i, 0) for i, size in enumerate(sizes)]
    while sum(sizes) > budget and waiting:
        _, i, rung = heapq.heappop(waiting)
        if rung + 1 == len(LADDER):
            continue
        coarser = _pack(result, heads[i], LADDER[rung + 1], triangle)
        found[i], sizes[i] = coarser, len(coarser.packed)
        heapq.heappush(waiting, (-sizes[i], i, rung + 1))
    return [
        _pack(result, head, SCORE_LEVELS, triangle) if one is None else one
        for head, one in zip(heads, found, strict=True)
    ]


def _quantised(
    result: AttentionResult, head: Head, levels: int, triangle: Triangle
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes ``[cell]``, and the two numbers of each row."""
    scores = result.head_scores(head.layer, head.head)
    rows, columns = triangle
    visible = np.isfinite(scores)
    highest = np.where(visible, scores, -np.inf).max(1)
    if levels == SCORE_LEVELS:
        lowest = np.where(visible, scores, np.inf).min(1)
        span = np.where(highest > lowest, highest - lowest, 1)
        share = (np.where(visible, scores, lowest[:, None]) - lowest[:, None]) / span[:, None]
        codes = np.where(visible, 1 + np.rint(share * levels), 0)[rows, columns].astype("<u2")
        return codes, lowest, highest
    weights = np.exp(scores - highest[:, None])
    codes = np.rint(weights[rows, columns] * levels).astype(np.uint8)  # relative to the row's largest, which is 1 here
    sums = weights.sum(1)
    return codes, 1 / sums, highest + np.log(sums)


def _pack(result: AttentionResult, head: Head, levels: int, triangle: Triangle) -> PackedHead:
    codes, first, second = _quantised(result, head, levels, triangle)
    raw = first.astype("<f4").tobytes() + second.astype("<f4").tobytes() + codes.tobytes()
    as_scores = levels == SCORE_LEVELS
    error = float((second - first).max()) / (2 * levels) if as_scores else 1 / (2 * levels)
    runs = zlib.compressobj(6, strategy=zlib.Z_RLE)  # codes have no phrases to find, only runs; ten times faster so
    return PackedHead(head, "scores" if as_scores else "weights", levels, error, runs.compress(raw) + runs.flush())
