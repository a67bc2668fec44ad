"""Heads by what they attend to: definitions, scores, statistics and causal evidence."""

from interp.detectors.find import THRESHOLDS, find_heads
from interp.detectors.kinds import KINDS

__all__ = ["KINDS", "THRESHOLDS", "find_heads"]
