"""On paper: light colours that stay, nothing cut off, sections that may break."""

from __future__ import annotations

import pytest

from tests.interp.report import examples

HIDDEN_CELL = """() => { const canvas = document.querySelector('.matrix canvas');
  const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, 6 - canvas.width, -canvas.height / 2);
  return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3); }"""


@pytest.mark.parametrize("choose", [False, True])
def test_a_dark_page_prints_light_and_is_dark_again(visit, choose):
    page = visit([examples.heads_attention(), examples.lens()], 720, "dark")
    if choose:
        page.get_by_role("radio", name="Dark").click()
    ink = "() => getComputedStyle(document.querySelector('h2')).color"
    assert max(page.evaluate(HIDDEN_CELL)) < 60
    before = page.evaluate(ink)
    page.emulate_media(media="print")
    page.locator("html[data-theme=light]").wait_for()
    assert page.evaluate(ink) == "rgb(22, 32, 44)"
    assert min(page.evaluate(HIDDEN_CELL)) > 200, "canvases are painted anew"
    page.emulate_media(media="screen")
    page.locator("html:not([data-theme=light])").wait_for()
    assert page.evaluate(ink) == before
    assert max(page.evaluate(HIDDEN_CELL)) < 60


def test_everything_lies_on_the_sheet(visit):
    page = visit([make() for make in examples.ALL.values()], 720)
    page.emulate_media(media="print")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # drawn anew
    width = page.evaluate("document.documentElement.clientWidth")
    outside = page.evaluate(
        """(width) => [...document.querySelectorAll('.word, canvas, svg, table, .bar')].filter((one) =>
        one.offsetParent && one.getBoundingClientRect().right > width + 1).map((one) => one.className)""",
        width,
    )
    assert outside == []
    for section in page.locator("section").all():
        style = section.evaluate("one => [getComputedStyle(one).breakInside, getComputedStyle(one).printColorAdjust]")
        assert style == ["auto", "exact"]
    assert not page.locator(".toolbar select, .copy, #theme, nav").first.is_visible()
