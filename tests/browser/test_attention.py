"""The attention view in a browser: the tapped token's weights and scores, the mask, all heads, packed heads."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.browser.reading import chance, number
from tests.interp.report import examples

CHOICES = [["layers", 1], ["heads", 0]]
SIZES = pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])


def bars(page) -> dict[int, tuple[float, float]]:
    """Return {key: (weight, score)} of the attention view's bars."""
    rows = page.locator(".bars li[data-key]")
    found = {}
    for i in range(rows.count()):
        row = rows.nth(i)
        found[int(row.get_attribute("data-key"))] = (
            chance(row.locator(".weight").inner_text()),
            number(row.locator(".score").inner_text()),
        )
    return found


@SIZES
def test_attention_of_a_tapped_token(visit, width, theme):
    result = examples.heads_attention()
    page = visit(result, width, theme)
    page.get_by_label("Layer", exact=True).select_option("1")
    page.get_by_label("Head", exact=True).select_option("0")
    for query in (9, 4, 0):
        page.locator(f".word[data-pos='{query}']").click()
        pattern, scores = result.pattern(1, 0), result.head_scores(1, 0)
        shown = bars(page)
        assert sorted(shown) == list(range(query + 1))
        for key, (weight, score) in shown.items():
            assert weight == pytest.approx(pattern[query, key], abs=0.0007)
            assert score == pytest.approx(scores[query, key], abs=0.006)
        widths = page.locator(".bars .fill").evaluate_all("all => all.map((one) => parseFloat(one.style.width))")
        np.testing.assert_allclose(np.array(widths) / 100, pattern[query, : query + 1], atol=1e-3)
        assert page.locator(".arcs path").count() == (pattern[query, : query + 1] >= 0.01).sum()
    assert page.locator("[aria-current=true]").get_attribute("data-pos") == "0"


def test_tokens_are_chosen_by_keys_too(visit):
    page = visit(examples.heads_attention())
    page.locator(".word[tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("[aria-current=true]").get_attribute("data-pos") == "2"
    assert page.locator(".word[tabindex='0']").count() == 1
    assert sorted(bars(page)) == [0, 1, 2]


@SIZES
def test_the_mask_says_who_may_see_whom(visit, width, theme):
    result = examples.heads_attention()
    page = visit(result, width, theme)
    page.get_by_label("Layer", exact=True).select_option("0")
    page.get_by_label("Head", exact=True).select_option("1")
    canvas = page.locator(".matrix canvas")
    readout = page.locator(".readout")
    canvas.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    canvas.press("Home")
    assert "weight" in readout.inner_text()
    page.keyboard.press("End")
    assert "future" in readout.inner_text()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    corner = {"x": box["width"] - 4, "y": box["height"] - 4}
    canvas.hover(position=corner)
    shown = readout.inner_text().partition("weight ")[2].partition(",")[0]
    assert chance(shown) == pytest.approx(float(result.pattern(0, 1)[-1, -1]), abs=0.001)
    canvas.click(position=corner)
    assert page.locator("[aria-current=true]").get_attribute("data-pos") == "10"


def test_all_heads_are_drawn_when_seen_and_chosen_by_a_tap(visit):
    page = visit(examples.heads_attention())
    assert page.locator("[data-drawn]").count() == 0
    page.locator("[data-value=all]").click()
    page.locator("[data-drawn]").nth(3).wait_for()
    page.locator("[data-head=L1H1]").click()
    assert page.locator("[data-head=L1H1]").get_attribute("aria-pressed") == "true"
    page.locator(".columns h3").first.filter(has_text="L1H1").wait_for()


def test_a_packed_head_shows_its_weights_as_near_as_it_says(visit, monkeypatch):
    monkeypatch.setattr("interp.report.packing.pack_heads.__defaults__", (400,))
    result = examples.heads_attention()
    page = visit(result)
    page.get_by_label("Layer", exact=True).select_option("0")
    page.get_by_label("Head", exact=True).select_option("0")
    note = page.locator(".note").inner_text()
    assert note.startswith("Weights are stored to ±")
    error = float(note.split("±")[1].split()[0]) / 100
    pattern = result.pattern(0, 0)[10]
    for row in page.locator(".bars li[data-key]").all():
        weight = row.locator(".weight").inner_text()
        true = pattern[int(row.get_attribute("data-key"))]
        if weight.startswith("<"):
            assert true <= float(weight[1:]) + 1e-3
            assert row.locator(".score").inner_text().startswith("<")
        else:
            assert float(weight) == pytest.approx(float(true), abs=float(error * pattern.max()) + 1e-3)


def test_of_two_heads_asked_for_quickly_the_later_is_shown(visit):
    page = visit(examples.heads_attention())
    page.evaluate(
        """() => {
        const inflate = window.DecompressionStream; // the first pattern asked for arrives last
        let first = true, arrived;
        window.late = new Promise((done) => { arrived = done; });
        window.DecompressionStream = class { constructor(kind) {
            const own = new inflate(kind), slow = first; first = false;
            this.writable = own.writable;
            this.readable = slow ? own.readable.pipeThrough(new TransformStream({ async transform(chunk, to) {
                await new Promise((done) => setTimeout(done, 400)); to.enqueue(chunk); },
                flush() { setTimeout(arrived, 100); } })) : own.readable;
        } };
        const [layers, heads] = document.querySelectorAll("select");
        for (const [list, to] of LIST) {
            const one = { layers, heads }[list];
            one.value = to; one.dispatchEvent(new Event("change"));
        }
    }""".replace("LIST", json.dumps(CHOICES))
    )
    page.evaluate("window.late")  # a promise: the slow one has arrived, and what followed it is done
    page.locator(".columns h3", has_text="L1H0").wait_for()
    assert page.locator("[aria-pressed=true]").get_attribute("data-head") == "L1H0"
    assert "L1H0" in page.locator(".columns h3").first.inner_text()
    assert [page.locator("select").nth(i).input_value() for i in range(2)] == ["1", "0"]
