"""The kinds of head that are looked for: one detector each, in the order in which they are reported."""

from __future__ import annotations

from interp.detectors.current_token import CurrentToken
from interp.detectors.detector import Detector
from interp.detectors.duplicate_token import DuplicateToken
from interp.detectors.induction import Induction
from interp.detectors.previous_token import PreviousToken
from interp.detectors.sink import Sink

DETECTORS: dict[str, Detector] = {
    one.name: one for one in (PreviousToken(), Sink(), Induction(), DuplicateToken(), CurrentToken())
}
KINDS = tuple(DETECTORS)
