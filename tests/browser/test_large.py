"""Large results: thousands of cells, hundreds of columns, long prompts; work is counted, not timed."""

from __future__ import annotations

import dataclasses

import numpy as np

from interp.readout.attention import AttentionResult
from tests.interp.report import examples

COUNT = (
    "() => { window.calls = 0; const was = Array.isArray; Array.isArray = (x) => { window.calls++; return was(x); }; }"
)

INKED = """(left) => { const canvas = document.querySelector('.matrix canvas');
  const ratio = canvas.width / canvas.offsetWidth;
  const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  copy.drawImage(canvas, -left * ratio, 60 - canvas.height);
  const { data } = copy.getImageData(0, 0, 14, 60);
  return [...data].filter((value, i) => i % 4 === 0 && value < 150).length; }"""


def sweep(n_layers: int, n_pos: int, strongest: tuple[int, int]):
    """Return a patching result with so many cells, one of them far stronger than the others."""
    small = examples.patching()
    values = np.random.default_rng(0).uniform(-1, 1, (n_layers, n_pos, 1)) + small.into()
    values[strongest] += 50
    tokens = (tuple("ab"[i % 2] for i in range(n_pos)),)
    return dataclasses.replace(small, values={"logit_difference": values}, clean_tokens=tokens, corrupted_tokens=tokens)


def sharp(n: int, layers: int = 1, heads: int = 1) -> AttentionResult:
    """Return attention over n tokens, each looking at the one before."""
    scores = np.where(np.tril(np.ones((n, n), bool)), 0, -np.inf) + 9 * np.eye(n, k=-1)
    made = np.broadcast_to(scores.astype(np.float32), (layers, heads, n, n)).copy()
    tokens = tuple(f"w{i}" for i in range(n))
    return AttentionResult(
        tokens=tokens, layers=tuple(range(layers)), scores=made, model="made", config={}, versions={}
    )


def test_many_cells_are_shown_page_by_page_and_walked_through_once(visit):
    page = visit(sweep(24, 366, (3, 5)))
    rows = page.locator(".strongest tbody tr")
    more = page.locator(".strongest .plain")
    page.evaluate(COUNT)
    assert rows.count() == 12
    assert more.inner_text() == "Show 200 more of 8,784"
    more.click()
    assert rows.count() == 212
    assert more.evaluate("one => one === document.activeElement")
    page.keyboard.press("Enter")
    assert rows.count() == 412
    page.get_by_role("button", name="pos", exact=True).click()
    assert rows.count() == 12
    assert page.evaluate("window.calls") == 0, "cells were found when the page was made"
    assert rows.first.inner_text().split("\t")[:2] == ["L0", "a 0"]


def test_all_rows_shown_the_button_stays_and_folds_them(visit):
    page = visit(sweep(2, 10, (1, 1)))
    more = page.locator(".strongest .plain")
    more.click()
    assert page.locator(".strongest tbody tr").count() == 20
    assert more.evaluate("one => one === document.activeElement")
    assert more.inner_text() == "Show fewer"
    more.click()
    assert page.locator(".strongest tbody tr").count() == 12


def test_the_strongest_cell_of_a_wide_matrix_is_in_sight(visit):
    page = visit(sweep(4, 400, (2, 390)))
    box = page.locator(".matrix")
    assert "layer L2, pos a 390" in page.locator(".readout").inner_text()
    scrolled = "one => [one.scrollLeft, one.scrollLeft + one.clientWidth]"
    left, right = box.evaluate(scrolled)
    assert page.evaluate(INKED, left) > 20, "the rows' names stand at the left of what is in sight"
    cell = box.evaluate("one => (one.scrollWidth / 400)") * 390
    assert left < cell < right
    page.locator(".matrix canvas").focus()
    page.keyboard.press("Home")
    assert box.evaluate(scrolled)[0] < 20
    page.keyboard.press("End")
    assert box.evaluate(scrolled)[0] > left - 1


def test_a_row_picked_in_the_mask_is_in_sight_in_the_sentence(visit):
    page = visit(sharp(300))
    canvas = page.locator(".matrix canvas")
    canvas.scroll_into_view_if_needed()
    page.mouse.wheel(0, 400)
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] / 3, "y": box["height"] / 3})
    word = page.locator(".word[aria-current=true]")
    assert 60 < int(word.get_attribute("data-pos")) < 140
    at, strip = word.bounding_box(), page.locator(".strip-box").bounding_box()
    assert strip["x"] <= at["x"]
    assert at["x"] + at["width"] <= strip["x"] + strip["width"]
    assert strip["y"] >= 0, "the sentence stays at the top of the window"
    arc = page.locator(".arcs path").last.bounding_box()
    assert strip["x"] <= arc["x"] <= strip["x"] + strip["width"]


def test_twelve_heads_stand_in_one_row(visit):
    page = visit(sharp(6, 2, 12))
    page.locator("[data-value=all]").click()
    tops = page.locator(".heads-row").first.locator("button").evaluate_all("all => all.map((one) => one.offsetTop)")
    assert len(tops) == 12
    assert len(set(tops)) == 1


def test_tokens_that_were_clicked_leave_no_listeners(visit):
    page = visit(examples.lens())
    page.evaluate(
        """() => { window.added = 0; const was = document.addEventListener.bind(document);
        document.addEventListener = (...args) => { window.added++; was(...args); }; }"""
    )
    themed = page.locator("[data-themed]").count()
    for pos in (1, 3, 5, 7):
        page.locator(f"td[data-row='1'][data-pos='{pos}']").click()
    assert page.evaluate("window.added") == 0
    assert page.locator("[data-themed]").count() == themed
    cell = page.locator("td[data-row='1'][data-pos='7']")
    light = cell.evaluate("one => one.style.background")
    page.get_by_role("radio", name="Dark").click()
    assert cell.evaluate("one => one.style.background") != light
