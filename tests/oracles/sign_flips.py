"""Sign-flip max-T p-values by their definition: all 2^n flips, one cell and one flip at a time, in whole fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product


def step_down_p_values(changes: list[list[Fraction]]) -> list[Fraction]:
    """Return p of each cell from ``changes[example][cell]`` (Westfall and Young 1993, free step-down max-T).

    Cells are taken from the largest sum to the smallest; each is compared with the largest flipped sum of itself and
    the cells below it, and is never given a smaller p than a cell above it.
    """
    n, n_cells = len(changes), len(changes[0])

    def size(cell: int, signs: tuple[int, ...]) -> Fraction:
        return abs(sum((sign * changes[i][cell] for i, sign in enumerate(signs)), Fraction(0)))

    observed = [size(cell, (1,) * n) for cell in range(n_cells)]
    left = sorted(range(n_cells), key=lambda cell: -observed[cell])
    p, least = [Fraction(0)] * n_cells, Fraction(0)
    while left:
        cell = left[0]
        all_signs = list(product((1, -1), repeat=n))
        reached = sum(max(size(other, signs) for other in left) >= observed[cell] for signs in all_signs)
        p[cell] = least = max(least, Fraction(reached, len(all_signs)))
        left = left[1:]
    return p
