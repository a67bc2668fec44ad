"""The page as a whole: themes, widths, keyboard, contrast, odd tokens, and the data it gives away."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from tests.interp.report import examples

COPIED = """
() => {
  window.copied = [];
  const value = { writeText: async (text) => window.copied.push(text) };
  Object.defineProperty(navigator, 'clipboard', { value });
}
"""
CONTRAST = """
() => {
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parse = (colour) => colour.match(/[\\d.]+/g).map((n) => Number(n) * (colour.startsWith('color(') ? 255 : 1));
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour.startsWith('rgb(') || colour.startsWith('color(srgb')) return parse(colour);
      if (!colour.startsWith('rgba(') || parse(colour)[3] !== 0) return null;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const texts = 'p, h1, h2, h3, h4, td, th, a, dt, dd, li > span, button, label > span, output, .mark';
  for (const element of document.querySelectorAll(texts)) {
    if (!element.textContent.trim() || !element.offsetParent) continue;
    if (element.closest('.cut, .word[aria-current] ~ .word')) continue; // shown as switched off
    const back = behind(element);
    if (back === null) continue;
    const { color, opacity } = getComputedStyle(element);
    const ink = parse(color).map((channel, i) => Number(opacity) * channel + (1 - opacity) * back[i]);
    const [light, dark] = [luminance(ink), luminance(back)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) poor.push([element.tagName, element.className, element.textContent.slice(0, 30), ratio]);
  }
  return poor;
}
"""


@pytest.fixture
def everything() -> list:
    return [make() for make in examples.ALL.values()]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(visit, everything, theme):
    page = visit(everything, 1440, theme)
    assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_nothing_is_wider_than_the_window(visit, everything, width):
    page = visit(everything, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("section[data-ready]").count() == len(everything)


def test_the_theme_switch(visit, everything):
    page = visit(everything, theme="light")
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("radio", name="Dark").click()
    dark = page.evaluate(background)
    assert light != dark
    assert page.evaluate(CONTRAST) == []
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("radio", name="Light").get_attribute("aria-checked") == "true"
    assert page.evaluate(background) == light
    page.get_by_role("radio", name="Dark").click()
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate(background) == dark


def test_every_control_is_reached_by_tab_and_shows_its_focus(visit, everything):
    page = visit(everything)
    seen = set()
    for _ in range(200):
        page.keyboard.press("Tab")
        state = page.evaluate(
            """() => { const one = document.activeElement; if (!one || one === document.body) return null;
            const section = one.closest('section'); const style = getComputedStyle(one);
            return [section ? section.dataset.view : 'page', one.tagName, style.outlineStyle !== 'none']; }"""
        )
        if state is None:
            break
        view, tag, outlined = state
        assert outlined, state
        seen.add((view, tag))
    for needed in [("attention", "CANVAS"), ("attention", "BUTTON"), ("attention", "SELECT"), ("lens", "TD")]:
        assert needed in seen
    for needed in [("lens", "INPUT"), ("playground", "INPUT"), ("heads", "CANVAS"), ("sweep", "CANVAS")]:
        assert needed in seen


def test_odd_tokens_can_be_read(visit):
    page = visit(examples.heads_attention())
    shown = page.locator(".word").all_inner_texts()
    assert shown == [
        "<bos>",
        "<script>alert(1)</script>",
        "␣the",
        "↵",
        "⟨U+0000⟩",
        "⟨U+200B⟩",
        "👩‍🚀",
        "שלום",
        "&amp;",
        "∅",
        "◌\u0301",
    ]
    assert page.locator(".word bdi[dir=auto]").count() == len(shown)
    assert page.evaluate("document.querySelectorAll('.word script').length") == 0


@pytest.mark.parametrize("name", ["lens", "playground", "heads", "sweep", "increments"])
def test_copied_json_is_the_result(visit, name):
    result = examples.ALL[name]()
    page = visit(result)
    page.evaluate(COPIED)
    page.get_by_role("button", name="Copy JSON").click()
    copied = json.loads(page.evaluate("window.copied[0]"))
    assert type(result).from_dict(copied).to_dict().keys() == result.to_dict().keys()
    assert copied["result"] == type(result).__name__


def test_copied_csv_has_the_rows_of_the_result(visit, everything):
    page = visit(everything)
    page.evaluate(COPIED)
    for section in page.locator("section").all():
        section.get_by_role("button", name="Copy CSV").click()
    tables = {
        name: list(csv.DictReader(io.StringIO(text)))
        for name, text in zip(examples.ALL, page.evaluate("window.copied"), strict=True)
    }
    assert len(tables["lens"]) == 3 * 11
    last = tables["lens"][-1]
    assert float(last["target_logit"]) == pytest.approx(examples.lens().target_logit[-1, 0, -1], rel=1e-5)
    assert len(tables["attention"]) == 11 * 12 / 2
    assert sum(float(row["weight"]) for row in tables["attention"]) == pytest.approx(11, abs=1e-3)
    assert tables["attention"][1]["key_token"] == examples.ODD[0]
    assert len(tables["playground"]) == 20
    assert len(tables["heads"]) == 4 * 8
    assert len(tables["sweep"]) == examples.patching().change().size
    assert float(tables["sweep"][0]["change"]) == pytest.approx(examples.patching().change().ravel()[0], abs=1e-6)
    assert len(tables["attribution"]) == len(examples.attribution().labels)
    assert len(tables["increments"]) == len(examples.increments().labels)


def test_it_keeps_still_for_who_asks(browser, tmp_path):
    from interp.report import write_report

    path = write_report(examples.following(), tmp_path / "report.html")
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".fill").first.evaluate("one => getComputedStyle(one).transitionDuration") == "0s"
    context.close()


def test_emoji_stay_whole_and_what_has_no_width_is_written_out(visit):
    tokens = (
        "👩\u200d🚀",
        "\u200d",
        "👩\u200d",
        "क\u200d",
        "👍🏽",
        "🇩🇪",
        "1\ufe0f\u20e3",
        "\u00a0",
        "\t\r",
        "⟨F0 9F⟩",
        "\ufeff",
    )
    page = visit(replace(examples.heads_attention(), tokens=tokens))
    shown = page.locator(".word").all_inner_texts()
    assert shown == [
        "👩\u200d🚀",
        "⟨U+200D⟩",
        "👩⟨U+200D⟩",
        "क⟨U+200D⟩",
        "👍🏽",
        "🇩🇪",
        "1\ufe0f\u20e3",
        "⟨U+00A0⟩",
        "⇥⟨U+000D⟩",
        "⟨F0 9F⟩",
        "⟨U+FEFF⟩",
    ]
    assert page.locator(".word").nth(9).locator(".mark").inner_text() == "⟨F0 9F⟩"


def test_fragments_of_characters_are_told_apart_by_their_ids(visit):
    following, lens = examples.following(), examples.lens()
    odd = ("\ufffd",) * len(following.top_texts)
    page = visit([replace(following, top_texts=odd), replace(lens, top_texts=dict.fromkeys(lens.top_texts, "\ufffd"))])
    shown = page.locator("#view-0 .bars li[data-token] .token").all_inner_texts()
    assert shown == [f"\ufffd⟨#{token}⟩" for token in following.top_tokens[: len(shown)]]
    guesses = page.locator("#view-1 .guesses .token").all_inner_texts()
    assert guesses == [f"\ufffd⟨#{token}⟩" for token in lens.top_tokens[-1, 0, -1]]


@pytest.mark.parametrize("width", [320, 390, 1440])
def test_long_names_and_tokens_overflow_nothing(visit, width):
    long = "a" * 500
    results = [
        replace(examples.lens(), tokens=((long,) * 11,), top_texts=dict.fromkeys(examples.lens().top_texts, long)),
        replace(examples.heads_attention(), tokens=(long,) * 11, model=long),
        replace(examples.following(), tokens=(long,) * 11, top_texts=(long,) * 20),
        replace(examples.increments(), texts=dict.fromkeys(examples.increments().texts, long), target=long),
        replace(examples.patching(), model=long),
    ]
    page = visit(results, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    chips = page.locator(".chip .token").evaluate_all("all => all.map((one) => one.offsetWidth)")
    assert max(chips) < 200
    assert page.locator(".chip .token").first.get_attribute("title") == long
    page = visit(replace(examples.following(), model=long), width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#theme").bounding_box()["height"] < 50


def test_tables_explain_their_columns_and_their_headers_can_be_hit(visit):
    page = visit([examples.circuit(), examples.report()])
    note = page.locator("#view-0 .note").first.inner_text()
    for name in ("fall", "share", "null", "p (effect > null)", "z"):
        assert f"{name}: " in note
    assert "effect: " in page.locator("#view-1 .note").first.inner_text()
    for button in page.locator("table.data th button").all():
        box = button.bounding_box()
        assert min(box["width"], box["height"]) >= 24


def test_copied_csv_holds_no_formulas(visit):
    texts = ("=1+1", "+2", "-3", "@x", "a=b", *"abcdefghijklmno")
    page = visit(replace(examples.following(), top_texts=texts))
    page.evaluate(COPIED)
    page.get_by_role("button", name="Copy CSV").click()
    rows = list(csv.DictReader(io.StringIO(page.evaluate("window.copied[0]"))))
    assert [row["text"] for row in rows[:6]] == ["'=1+1", "'+2", "'-3", "'@x", "a=b", "a"]
    assert [float(row["logit"]) for row in rows] == pytest.approx(examples.following().top_logits.tolist(), rel=1e-6)
