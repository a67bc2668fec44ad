"""The loss of next tokens, sequences of mixed lengths laid on each other where their blocks begin."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from interp.prompts import RepeatedTokens


def aligned(loss: Float[np.ndarray, "sequence pos-1"], prompts: RepeatedTokens) -> Float[np.ndarray, "aligned"]:
    """Return the mean loss on [BOS] + N tokens and the same N; entry i is the prediction of token i + 1.

    N is the largest that a third of the sequences reach; each token is averaged over the sequences that have it.

    Args:
        loss: entry i of a sequence is the prediction of its token i + 1.
        prompts: the sequences.
    """
    lengths = sorted(prompts.lengths, reverse=True)
    n = lengths[-(-len(lengths) // 3) - 1]
    columns = [
        [start - length + j if which == 0 else start + j for start, length in blocks if j < length]
        for which in (0, 1)
        for j in range(n)
        for blocks in [list(zip(prompts.starts, prompts.lengths, strict=True))]
    ]
    rows = [[row for row, length in enumerate(prompts.lengths) if j < length] for _ in (0, 1) for j in range(n)]
    first = 0 if prompts.n_prepended else 1  # without BOS nothing predicts the first token of all
    return np.array(
        [
            np.mean([loss[row, column - 1] for row, column in zip(some, where, strict=True) if column > 0])
            for some, where in zip(rows[first:], columns[first:], strict=True)
        ]
    )
