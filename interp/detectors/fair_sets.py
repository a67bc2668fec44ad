"""Fair sets to hold against a set of heads: as many heads of the same layers, none of them of the set.

All other heads are eligible, those of other kinds too: that they matter in their own way is what the set must surpass.
Where there are few such sets all are taken, else some are drawn. A layer with fewer heads left than the set has there
allows no fair set, and a comparison with sets of another size or of other layers would say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod

import numpy as np

from interp.sites import Head

N_DRAWN = 19  # the fewest with which p can reach .05
MOST_ENUMERATED = 40
FEWEST = 4  # with fewer, a set without effect surpasses them all too often to say anything


@dataclass(frozen=True)
class FairSets:
    """The sets, and what they are.

    Attributes:
        sets: empty where no fair comparison can be made.
        note: what they are, or why there are none.
    """

    sets: tuple[tuple[Head, ...], ...]
    note: str

    @property
    def least_p(self) -> float:
        """The least p that so many sets allow."""
        return 1 / (1 + len(self.sets))


def fair_sets(heads: Sequence[Head], n_heads: int, seed: int) -> FairSets:
    """Return the sets to compare ``heads`` with, in a model of ``n_heads`` heads per layer.

    >>> found = fair_sets([Head(1, 0), Head(1, 2)], 8, seed=0)
    >>> len(found.sets), found.note
    (15, 'all 15 other sets of 2 heads in the same layers')
    >>> fair_sets([Head(0, 0), Head(0, 1)], 3, seed=0).note
    'no fair comparison: layer 0 has 1 other head, and the set has 2 there'
    """
    wanted = {layer: sum(head.layer == layer for head in heads) for layer in sorted({head.layer for head in heads})}
    others = {layer: [Head(layer, i) for i in range(n_heads) if Head(layer, i) not in heads] for layer in wanted}
    for layer, n in wanted.items():
        if len(left := others[layer]) < n:
            return FairSets(
                (),
                f"no fair comparison: layer {layer} has {_count(len(left), 'other head')}, and the set has {n} there",
            )
    possible = prod(comb(len(others[layer]), n) for layer, n in wanted.items())
    what = f"other sets of {_count(len(heads), 'head')} in the same layers"
    if possible < FEWEST:
        return FairSets((), f"no fair comparison: there are only {possible} {what}, and {FEWEST} are needed")
    if possible <= MOST_ENUMERATED:
        choices = product(*(combinations(others[layer], n) for layer, n in wanted.items()))
        return FairSets(
            tuple(tuple(h for some in choice for h in some) for choice in choices), f"all {possible} {what}"
        )
    rng = np.random.default_rng(seed)

    def draw() -> tuple[Head, ...]:
        return tuple(
            others[layer][i] for layer, n in wanted.items() for i in sorted(rng.permutation(len(others[layer]))[:n])
        )

    drawn: dict[tuple[Head, ...], None] = {}
    while len(drawn) < N_DRAWN:  # more than that exist
        drawn[draw()] = None
    return FairSets(tuple(drawn), f"{N_DRAWN} {what}, drawn at random from {possible:,}")


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
