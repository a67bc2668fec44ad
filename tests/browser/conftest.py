"""One browser for all tests of this folder; where Chromium is absent they are skipped, with the install line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import INSTALL, chromium, chromium_path, opened
from interp.report import write_report


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if chromium_path() is None:
        pytest.skip(INSTALL)
    with chromium() as running:
        yield running


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Give ``visit(results, width=, theme=)`` -> page; afterwards nothing was asked for and the console is empty."""
    requests: list[str] = []
    complaints: list[str] = []
    contexts = []

    def go(results: Any, width: int = 1440, theme: str = "light") -> Any:
        path = write_report(results, tmp_path / f"report{len(contexts)}.html")
        context = opened(browser, path, width=width, theme=theme, requests=requests, complaints=complaints)
        contexts.append(context)
        return context.__enter__()

    yield go
    for context in contexts:
        context.__exit__(None, None, None)
    assert requests == []
    assert complaints == []
