"""Ctrl-C, and SIGTERM, a time limit's way to stop us: remembered until it is carried out.

Python raises KeyboardInterrupt wherever a program happens to be. In a callback of the import system, or in a library
that catches everything, that exception is lost, and the program goes on as if nothing had been asked, or breaks in
another way because an import broke off. So what was asked is kept here, and asked again at the next safe point
(``heed``). Before there is anything to clean up, a script ends at once.

Each script calls ``listen`` in its first lines: nothing here takes time to import.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # signal itself takes many times longer to import
import os
import sys

LINE = "interrupted; no file is half-written"
STOPS = (signal.SIGINT, signal.SIGTERM)  # plain numbers


class _State:
    asked = 0  # the signal of a stop that is not carried out yet
    held = False  # whether a stop is carried out at safe points only
    exits = False  # whether this is a script that has nothing to clean up yet
    script = False  # whether this process is a script of ours


def listen() -> None:
    """Let a stop end this script where it stands, until ``begin``; for the first lines of a script."""
    _State.exits = _State.script = True
    install()


def install() -> None:
    """Remember stops from now on. A shell's background job, whose Ctrl-C is ignored, goes on ignoring it."""
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def in_script() -> bool:
    """Return whether this process is a script that listens, and not somebody's Python that calls us."""
    return _State.script


def begin() -> None:
    """Say that from now on there is something to clean up."""
    _State.exits = False


def asked() -> int:
    """Return the signal of a stop that is still to be carried out, else 0."""
    return _State.asked


def answered() -> None:
    """Say that the stop that was asked for has been carried out."""
    _State.asked = 0


def hold() -> None:
    """From now on carry stops out at safe points only, so that nothing that is finished gets lost between them."""
    _State.held = True


def holding() -> bool:
    """Return whether stops are carried out at safe points only."""
    return _State.held


def heed() -> None:
    """Carry out a stop that was asked for: a safe point."""
    if _State.asked:
        raise KeyboardInterrupt


class stops_held:
    """A block in which stops are carried out at safe points only, or, given False, where they come."""

    def __init__(self, held: bool = True) -> None:
        self._held = held

    def __enter__(self) -> None:
        self._before, _State.held = _State.held, self._held

    def __exit__(self, *error: object) -> None:
        _State.held = self._before


def _stop(number: int, frame: object) -> None:
    _State.asked = number
    if _State.exits:
        if number == signal.SIGINT:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{LINE}\n".encode())
        os._exit(128 + number)
    if not _State.held:
        raise KeyboardInterrupt
