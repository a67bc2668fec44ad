"""Reading the residual stream: what was written, what it says, and which write says it."""

from interp.readout.decompose import ResidualReads, ResidualWrites, residual_reads, residual_writes
from interp.readout.logit_attribution import (
    LogitAttribution,
    SourceAttribution,
    logit_attribution,
    source_attribution,
)
from interp.readout.stream_growth import StreamGrowth, stream_growth
from interp.readout.writes import hooks_needed

__all__ = [
    "LogitAttribution",
    "ResidualReads",
    "ResidualWrites",
    "SourceAttribution",
    "StreamGrowth",
    "hooks_needed",
    "logit_attribution",
    "residual_reads",
    "residual_writes",
    "source_attribution",
    "stream_growth",
]
