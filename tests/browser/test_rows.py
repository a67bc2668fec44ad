"""Pages as they are read: at the width of a phone, of long prompts, of deep models, on paper, and copied."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from interp.readout.logit_lens import logit_lens
from interp.report import write_report
from tests.browser.reading import number
from tests.browser.test_page import COPIED
from tests.configurations import CONFIGS, random_model, random_tokens
from tests.interp.report import examples

SCROLL = """(one) => { one.scrollLeft += 300;
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))); }"""


def two_pairs(*values: float, width: int = 8):
    """A patching result of two pairs whose cells have these changes, the clean run 4 above the corrupted."""
    result = examples.patching()
    into = np.array([-2.0, -2.0])
    grid = np.resize(values, (2, width, 1)) + into
    tokens = tuple(tuple("ABCDEFGHIJKLMNOP"[:width]) for _ in range(2))
    other = tuple(("Z", *one[1:]) for one in tokens)
    return replace(
        result, values={"logit_difference": grid}, clean={"logit_difference": into + 4}, clean_tokens=tokens,
        corrupted={"logit_difference": into}, corrupted_tokens=other, direction="denoise", axes=("layer", "pos"),
    )  # fmt: skip


@pytest.mark.parametrize("width", [320, 390, 820, 1440])
def test_d4_numbers_stand_in_every_cell_or_in_none(visit, width):
    written = {}
    for name, values in {"up": [2.42], "down": [-2.42], "both": [2.42, -2.42]}.items():
        page = visit(two_pairs(*values), width)
        written[name] = page.locator(".matrix canvas").first.get_attribute("data-written")
    assert written["both"] == written["down"], "the widest text decides, wherever it stands"


def test_d7_the_answer_to_a_click_stays_in_view(visit):
    model = random_model(CONFIGS["gpt2"].replace(n_layers=30, n_ctx=16), dtype=torch.float32)
    page = visit(replace(logit_lens(model, random_tokens(model.cfg, 1, 8)), model="deep"), 390)
    for row in (2, 15, 29):
        cell = page.locator(f"td[data-row='{row}'][data-pos='1']")
        cell.click()
        answer = page.locator(".answer")
        box = answer.bounding_box()
        assert 0 <= box["y"] <= box["y"] + box["height"] <= 901
        assert f"block {row - 1}" in answer.inner_text()
        assert cell.inner_text() in answer.inner_text()


def test_d9_answers_recovered_and_positions_of_a_batch(browser, tmp_path):
    path = write_report(two_pairs(2.0, -1.0, 0.0), tmp_path / "a.html", answers=[(" Mary", " John"), (" Ann", " Bob")])
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.locator(".answers").inner_text() == "␣Mary rather than ␣John"
    page.get_by_label("Pair").select_option("1")
    assert page.locator(".answers").inner_text() == "␣Ann rather than ␣Bob"
    page.get_by_label("Show").select_option("recovered")
    assert "100 % the clean one" in page.locator(".legend").inner_text()
    assert "tokens are those of the first of 2 prompts" in page.locator(".legend").inner_text()
    assert "50 % recovered" in page.locator(".readout").inner_text()
    rows = page.locator("table.data tbody tr").all_inner_texts()
    assert any("A/Z 0" in row and "50 %" in row for row in rows)
    context.close()


@pytest.mark.parametrize("width", [390, 1440])
def test_d15_slider_and_sideways_scroll_agree(visit, width):
    model = random_model(CONFIGS["gpt2"].replace(n_ctx=120), dtype=torch.float32)
    page = visit(replace(logit_lens(model, random_tokens(model.cfg, 1, 100)), model="long"), width)
    seen = """(grid) => { const corner = grid.querySelector('thead th').getBoundingClientRect().right;
      return Number([...grid.querySelectorAll('.word-head')].find((one) =>
        one.getBoundingClientRect().left >= corner - 0.6 * one.offsetWidth).querySelector('.place').textContent); }"""
    grid, slider = page.locator(".lens-grid"), page.get_by_label("Tokens")
    for to in ("10", "55", "0", "31"):
        slider.fill(to)
        assert abs(grid.evaluate(seen) - int(to)) <= 1
        assert slider.get_attribute("aria-valuetext").startswith(f"{slider.input_value()} to ")
    for _ in range(30):  # on to the end: the window goes along
        grid.evaluate(SCROLL)
    page.locator(".lens-grid thead .word-head:last-child .place", has_text="99").wait_for()
    assert abs(grid.evaluate(seen) - int(slider.input_value())) <= 1


def test_d15_paper_says_temperature_and_top_p(visit):
    page = visit(examples.following())
    page.get_by_label("Temperature").fill("10")
    page.get_by_label("Top-p").fill("16")
    page.emulate_media(media="print")
    said = page.locator("#view-0 [role=status]")
    assert said.is_visible()
    assert "Temperature 0.50, top-k off, top-p 0.80" in said.inner_text()


def test_d15_a_lone_sign_is_copied_plainly(visit):
    texts = ("-", "+", "=", "@", "=1+1", "-x", "\t", *"abcdefghijklm")
    page = visit(replace(examples.following(), top_texts=texts))
    page.evaluate(COPIED)
    page.get_by_role("button", name="Copy CSV").click()
    rows = list(csv.DictReader(io.StringIO(page.evaluate("window.copied[0]"))))
    assert [row["text"] for row in rows[:7]] == ["-", "+", "=", "@", "'=1+1", "'-x", "'\t"]
    assert number(rows[0]["logit"]) == pytest.approx(float(examples.following().top_logits[0]), rel=1e-6)


def test_d5_titles_keep_their_direction(visit):
    result = replace(examples.lens(), tokens=(("a\u202eb", *examples.ODD[1:]),), model="m\u202ex")
    other = replace(examples.lens(), tokens=(("⟨F0 9F⟩", "⟨99 82⟩", *("c",) * 9),), model="m\u202ex")
    page = visit([result, other])
    titles = page.locator("h2[id^=title]").all_inner_texts()
    assert "⟨U+202E⟩" in titles[0]
    assert "🙂c" in titles[1]
    everything = page.evaluate("document.title + document.body.innerText")
    assert "\u202e" not in everything
    assert page.locator("h1 bdi").count() == 1
