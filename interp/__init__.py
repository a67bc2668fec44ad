"""The tools that take the models apart."""

from interp.heads.find import find_heads
from interp.results import HeadReport
from interp.sites import Head, parse_head

__all__ = ["Head", "HeadReport", "find_heads", "parse_head"]
