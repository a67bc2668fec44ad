"""A report in headless Chromium, the network refused: for benchmarks and for the browser tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
INSTALL = "chromium is not installed; on Debian: apt-get update && apt-get install -y chromium"
PATIENCE = 120_000  # milliseconds; machines that run tests may be busy


def chromium_path() -> str | None:
    """Return where Chromium is, None where it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Give a browser with a fresh profile. Raises FileNotFoundError, with the install line, where there is none."""
    from playwright.sync_api import sync_playwright

    path = chromium_path()
    if path is None:
        raise FileNotFoundError(INSTALL)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS), timeout=PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    path: Path,
    *,
    width: int = 1440,
    theme: Literal["light", "dark"] = "light",
    requests: list[str] | None = None,
    complaints: list[str] | None = None,
) -> Iterator[Page]:
    """Give a page that shows a report from its file.

    Args:
        browser: of ``chromium``.
        path: the report.
        width: of the window; 390 is a phone.
        theme: what the system prefers.
        requests: gets the address of everything the page asks for beyond itself; all of it is refused.
        complaints: gets errors and warnings of the console, and exceptions.
    """
    asked = [] if requests is None else requests
    said = [] if complaints is None else complaints
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, offline=True)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    address = path.absolute().as_uri()

    def refuse(route, request) -> None:  # type: ignore[no-untyped-def]  # playwright's own types are inferred
        if request.url == address and request.is_navigation_request():
            route.continue_()
            return
        asked.append(request.url)
        route.abort()

    page.route("**/*", refuse)
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        yield page
    finally:
        context.close()


@contextmanager
def open_report(path: Path, *, width: int = 1440) -> Iterator[Page]:
    """Give one page of a browser of its own."""
    with chromium() as browser, opened(browser, path, width=width) as page:
        yield page
