"""Numbers as a page writes them, read back."""

from __future__ import annotations


def chance(text: str) -> float:
    """Read a probability as the page writes it; what is below .001 counts as 0."""
    return 0.0 if text.startswith("<") else float(text)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", "").replace("≈", ""))
