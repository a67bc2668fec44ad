"""The recovered fraction: where a patched run lies between two others."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from models.errors import InputError


def recovered_fraction(
    patched: Float[np.ndarray, "..."],
    clean: float,
    corrupted: float,
    *,
    name: str = "the metric",
    unit: str = "",
    higher_is_better: bool = True,
) -> Float[np.ndarray, "..."]:
    """Return (patched - corrupted) / (clean - corrupted): 1 is the clean run, 0 the corrupted one.

    Raises:
        InputError: the two runs hardly differ in this metric, or differ the wrong way round.

    >>> recovered_fraction(np.array([1.0, 2.0, 4.0]), clean=3.0, corrupted=1.0).tolist()
    [0.0, 0.5, 1.5]
    """
    gap = clean - corrupted
    found = f"{name} is {clean:.4g} {unit}".rstrip() + f" on the clean run and {corrupted:.4g} on the corrupted one"
    if not abs(gap) > 1e-3 * max(abs(clean), abs(corrupted), 1e-6):  # NaN too
        raise InputError(f"no fraction can be recovered: {found}. Choose prompts or a metric on which the runs differ")
    if (gap > 0) != higher_is_better:
        raise InputError(
            f"no fraction can be recovered: {found}, the wrong way round. Swap the prompts, or answer and wrong answer"
        )
    return (patched - corrupted) / gap
