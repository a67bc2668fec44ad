"""Interleaved timing: what is compared runs in turn, A B C B C A ..., and ratios are taken within a round.

A slow spell of the machine then falls on all alike, and the median over rounds forgets it. Each round starts with
another one, so that none always runs in the wake of the same neighbour.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds by name, one per round."""

    seconds: Mapping[str, tuple[float, ...]]

    def milliseconds(self, name: str) -> float:
        """Return the median over rounds."""
        return 1e3 * statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> float:
        """Return the median over rounds of ``name``'s time divided by ``to``'s in the same round."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 2,
    on_round: Callable[[], object] = lambda: None,
) -> Timings:
    """Time every function once per round.

    Args:
        runs: what to time, by name; its result is dropped before the next one starts.
        rounds: how many times each is timed.
        warm_up: rounds that are run first and not counted.
        on_round: called after each round, such as to move a progress bar.

    >>> from benchmarks.timing import interleaved
    >>> timings = interleaved({"short": lambda: sum(range(10)), "long": lambda: sum(range(100_000))}, rounds=3)
    >>> timings.ratio("long", to="short") > 1
    True
    """
    if rounds < 1 or warm_up < 0 or not runs:
        raise ValueError(
            f"{rounds} rounds, {warm_up} to warm up, of {len(runs)} functions; expected at least 1, 0 and 1"
        )
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(-warm_up, rounds):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            result = runs[name]()
            elapsed = time.perf_counter() - start
            del result
            if i >= 0:
                seconds[name].append(elapsed)
        on_round()
    return Timings({name: tuple(values) for name, values in seconds.items()})
