"""The page in a notebook's frame, which has no address and no clipboard of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.browser import PATIENCE
from interp.report import show
from tests.interp.report import examples


@pytest.fixture
def notebook(browser: Any, tmp_path: Any) -> Iterator[Any]:
    """Give ``notebook(results)`` -> (page, frame); afterwards nothing was complained about."""
    context = browser.new_context(offline=True)
    context.set_default_timeout(PATIENCE)
    complaints: list[str] = []

    def go(results: Any) -> Any:
        path = tmp_path / "notebook.html"
        path.write_text(f"<!doctype html><meta charset=utf-8>{show(results)._repr_html_()}", encoding="utf-8")
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(path.as_uri())
        page.frame_locator("iframe").locator("body[data-ready]").wait_for()
        return page, page.frames[1]

    yield go
    context.close()
    assert complaints == []


def test_it_shows_the_result(notebook):
    _, frame = notebook(examples.following())
    assert frame.locator("li[data-token] .token").first.inner_text() == examples.following().top_texts[0]


def test_links_to_views_stay_in_the_frame(notebook):
    from playwright.sync_api import expect

    page, frame = notebook([examples.following(), examples.lens(), examples.patching()])
    address = page.url
    frame.locator("nav a").nth(2).click()
    expect(frame.locator("#title-2")).to_be_in_viewport()
    assert frame.evaluate("document.activeElement.id") == "title-2"
    assert frame.locator("section[data-ready]").count() == 3
    assert page.url == address
    assert page.frames[1].url == "about:srcdoc"


def test_links_lead_to_views_on_a_page_of_its_own(visit):
    page = visit([examples.following(), examples.lens()])
    page.locator("nav a").nth(1).click()
    assert page.url.endswith("#view-1")
    assert page.evaluate("document.activeElement.id") == "title-1"


def test_what_is_copied_and_what_is_not_is_said(notebook):
    _, frame = notebook(examples.following())
    frame.get_by_role("button", name="Copy CSV").click()
    said = frame.locator(".copy [aria-live]")
    said.filter(has_text="Copied.").wait_for()
    frame.evaluate(
        """() => {
        document.execCommand = () => false;
        Object.defineProperty(navigator, 'clipboard', { value: undefined });
        }"""
    )
    frame.get_by_role("button", name="Copy CSV").click()
    said.filter(has_text="may not use the clipboard").wait_for()
    assert frame.locator(".uncopied").is_visible()
    assert frame.locator(".uncopied").input_value().startswith("token,text,logit")
    assert frame.evaluate("document.activeElement.className") == "uncopied"
