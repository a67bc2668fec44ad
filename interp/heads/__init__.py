"""Heads by what they attend to: definitions, scores, statistics and causal evidence."""

from interp.heads.find import THRESHOLDS, find_heads

__all__ = ["THRESHOLDS", "find_heads"]
