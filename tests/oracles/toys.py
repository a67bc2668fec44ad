"""What a toy can do and by which heads, in loops over rows and columns; knows nothing of ``models.training``."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import torch

N_SYMBOLS = 64
BOS = 64
N_CTX = 64


def row_with_a_block_at(column: int, period: int, rng: random.Random) -> list[int]:
    """BOS, other tokens up to ``column``, then a block of ``period`` that repeats; one column more than the context."""
    symbols = rng.sample(range(N_SYMBOLS), column - 1 + period)
    row = [BOS, *symbols]
    while len(row) < N_CTX + 1:
        row.append(row[len(row) - period])
    return row[: N_CTX + 1]


def copied_right(model, blocks: list[tuple[int, int]], n_rows: int, seed: int) -> dict[tuple[int, int, int], float]:
    """Share of right predictions by (column, period, repeat); repeat 1 is the second occurrence, 12 the last read."""
    rng = random.Random(seed)
    right: dict[tuple[int, int, int], list[bool]] = {}
    for start in range(0, len(blocks), 64):
        some = [block for block in blocks[start : start + 64] for _ in range(n_rows)]
        rows = [row_with_a_block_at(column, period, rng) for column, period in some]
        with torch.no_grad():
            said = model(torch.tensor(rows)[:, :N_CTX]).argmax(-1).tolist()
        for (column, period), row, answers in zip(some, rows, said, strict=True):
            for i in range(column + period, N_CTX):
                repeat = (i - column) // period
                if repeat <= 12:
                    right.setdefault((column, period, repeat), []).append(answers[i] == row[i + 1])
    return {place: sum(answers) / len(answers) for place, answers in right.items()}


def places_not_copied(model, least: float, seed: int = 0) -> dict[tuple[int, int, int], float]:
    """The places whose accuracy is below ``least``: on few rows first, and what falls there on 200 others."""
    blocks = [(column, period) for period in range(3, 29) for column in range(1, N_CTX) if column + period <= 63]
    doubtful = {place for place, share in copied_right(model, blocks, 4, seed).items() if share < least}
    again = copied_right(model, sorted({place[:2] for place in doubtful}), 200, seed + 1)
    return {place: again[place] for place in doubtful if again[place] < least}


def distinct_rows(n_rows: int, seed: int) -> torch.Tensor:
    """BOS and 63 tokens of which none comes twice."""
    rng = random.Random(seed)
    return torch.tensor([[BOS, *rng.sample(range(N_SYMBOLS), N_CTX - 1)] for _ in range(n_rows)])


def repeated_rows(n_rows: int, period: int, seed: int) -> torch.Tensor:
    """BOS, ``period`` distinct tokens, the same again."""
    rng = random.Random(seed)
    halves = [rng.sample(range(N_SYMBOLS), period) for _ in range(n_rows)]
    return torch.tensor([[BOS, *half, *half] for half in halves])


def patterns(model, tokens: torch.Tensor) -> list[torch.Tensor]:
    """The attention of each layer, ``[batch, head, query, key]``."""
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=lambda name: name.endswith("hook_pattern"))
    return [cache["pattern", layer] for layer in range(model.cfg.n_layers)]


def previous_token_by_thirds(pattern: torch.Tensor) -> np.ndarray:
    """Mean attention to the token before over the early, middle and late columns, ``[head, third]``."""
    n = pattern.shape[-1]
    columns = list(range(2, n))
    size = -(-len(columns) // 3)
    thirds = [columns[:size], columns[size : 2 * size], columns[2 * size :]]
    means = [
        [pattern[:, h, third, [i - 1 for i in third]].mean().item() for third in thirds]
        for h in range(pattern.shape[1])
    ]
    return np.array(means)


def induction_scores(pattern: torch.Tensor, period: int) -> np.ndarray:
    """Mean attention, on the second half, to the token after the earlier occurrence, ``[head]``."""
    queries = range(period + 1, 2 * period + 1)
    return np.mean([pattern[:, :, i, i - period + 1].mean(0).numpy() for i in queries], axis=0)


def repeat_losses(model, tokens: torch.Tensor, layer: int = 0, heads: tuple[int, ...] = ()) -> np.ndarray:
    """Loss of each row on its second half; what ``heads`` of ``layer`` say is replaced by its mean over everything."""

    def ablate(z, hook):
        for head in heads:
            z[:, :, head] = z[:, :, head].mean((0, 1))

    with torch.no_grad():
        logits = model.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", ablate)])
    period = (tokens.shape[1] - 1) // 2
    log_p = logits.log_softmax(-1)
    columns = range(period + 1, 2 * period)
    return np.array([
        np.mean([-log_p[row, i, tokens[row, i + 1]].item() for i in columns]) for row in range(len(tokens))
    ])  # fmt: skip


def fair_sets(heads: tuple[int, ...], n_heads: int) -> list[tuple[int, ...]]:
    """Every set of as many other heads of one layer."""
    return list(combinations([head for head in range(n_heads) if head not in heads], len(heads)))


def lower_end(differences: np.ndarray, seed: int = 0) -> float:
    """Lower end of the 95 % bootstrap interval of the mean over sequences."""
    rng = np.random.default_rng(seed)
    n = len(differences)
    return float(np.quantile(differences[rng.integers(n, size=(2000, n))].mean(1), 0.025))
