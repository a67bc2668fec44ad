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
    blocks = list(zip(loss, prompts.starts, prompts.lengths, strict=True))
    n = sorted(prompts.lengths, reverse=True)[-(-len(blocks) // 3) - 1]
    means = []
    for second in (False, True):
        for j in range(n):
            columns = [(row, start + j - (0 if second else length)) for row, start, length in blocks if j < length]
            means.append([row[column - 1] for row, column in columns if column > 0])
    first = 0 if prompts.n_prepended else 1  # without BOS nothing predicts the first token of all
    return np.array([np.mean(some) for some in means[first:]])
