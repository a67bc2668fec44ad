"""Reading the residual stream: what was written, what it says, and which write says it."""

from interp.readout.attention import AttentionResult, attention
from interp.readout.decompose import ResidualReads, ResidualWrites, residual_reads, residual_writes
from interp.readout.lens_increments import IncrementsResult, lens_increments
from interp.readout.lens_result import LensResult
from interp.readout.logit_attribution import (
    LogitAttribution,
    SourceAttribution,
    logit_attribution,
    source_attribution,
)
from interp.readout.logit_lens import logit_lens
from interp.readout.next_token import NextTokenResult, next_token
from interp.readout.stream_growth import StreamGrowth, stream_growth
from interp.readout.tuned_lens import TunedLens, own_text, train_tuned_lens
from interp.readout.writes import hooks_needed

__all__ = [
    "AttentionResult",
    "IncrementsResult",
    "LensResult",
    "LogitAttribution",
    "NextTokenResult",
    "ResidualReads",
    "ResidualWrites",
    "SourceAttribution",
    "StreamGrowth",
    "TunedLens",
    "attention",
    "hooks_needed",
    "lens_increments",
    "logit_attribution",
    "logit_lens",
    "next_token",
    "own_text",
    "residual_reads",
    "residual_writes",
    "source_attribution",
    "stream_growth",
    "train_tuned_lens",
]
