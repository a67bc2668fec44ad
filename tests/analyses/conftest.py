"""Ctrl-C reaches the scripts under test, however the tests themselves were started."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """Undo what a shell does to jobs in its background: they, and all that they start, ignore SIGINT."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
