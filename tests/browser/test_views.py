"""Every view in a browser: it shows the result's numbers and answers taps, keys and drags, without the network."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from interp.readout.logit_attribution import logit_attribution
from interp.readout.logit_lens import logit_lens
from models.generate import prune_logits
from tests.browser.reading import chance, number
from tests.interp.report import examples

IN_VIEW = """
(element) => new Promise((done) => {
  const watch = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && done());
  watch.observe(element);
})
"""  # resolves once the element is in the window, however long a smooth scroll takes
SIZES = pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])


@SIZES
def test_the_lens_by_click_and_by_slider(visit, width, theme):
    result = examples.lens()
    page = visit(result, width, theme)
    cells = page.locator("table.lens td")
    assert cells.count() == len(result.rows) * 11
    for row in range(len(result.rows)):
        for pos in (1, 10):
            cell = page.locator(f"td[data-row='{row}'][data-pos='{pos}']")
            assert cell.inner_text() == result.guess(row, 0, pos)[0]
            assert ("settled" in (cell.get_attribute("class") or "")) == (result.stable_from[0, pos] == row > 0)
    page.locator("td[data-row='1'][data-pos='7']").click()
    check_depth(page, result, 1, 7)
    slider = page.get_by_label("Depth", exact=True)
    slider.fill("0")
    check_depth(page, result, 0, 7)
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    check_depth(page, result, 2, 7)
    page.locator(".chart").first.click(position={"x": 46, "y": 50})
    check_depth(page, result, 0, 7)


def check_depth(page, result, row, pos):
    """Compare the panel below the grid with the result at one depth and position."""
    guesses = page.locator(".guesses li")
    assert guesses.count() == result.top_tokens.shape[-1]
    for k in range(guesses.count()):
        text = result.top_texts[int(result.top_tokens[row, 0, pos, k])]
        assert guesses.nth(k).locator(".token").inner_text() == text
        shown = chance(guesses.nth(k).locator(".weight").inner_text())
        assert shown == pytest.approx(result.top_probabilities[row, 0, pos, k], abs=0.0006)
    facts = dict(
        zip(page.locator(".facts dt").all_inner_texts(), page.locator(".facts dd").all_inner_texts(), strict=True)
    )
    assert number(facts["residual norm"]) == pytest.approx(result.residual_norm[row, 0, pos], abs=0.06)
    assert number(facts["entropy"].split()[0]) == pytest.approx(result.entropy[row, 0, pos], abs=0.006)
    assert number(facts["KL to output"].split()[0]) == pytest.approx(result.kl[row, 0, pos], abs=0.006)
    assert facts["target’s rank"] == str(1 + result.target_rank[row, 0, pos])
    assert number(facts["target’s logit"]) == pytest.approx(result.target_logit[row, 0, pos], abs=0.006)
    assert page.locator("td[aria-selected=true]").get_attribute("data-row") == str(row)


def test_the_lens_grid_by_keys_and_colours(visit):
    result = examples.lens()
    page = visit(result)
    page.locator("td[tabindex='0']").focus()
    page.keyboard.press("PageUp")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    selected = page.locator("td[aria-selected=true]")
    assert (selected.get_attribute("data-row"), selected.get_attribute("data-pos")) == ("0", "1")
    colours = set()
    for metric, value in [
        ("entropy", result.entropy[0, 0, 1]),
        ("kl", result.kl[0, 0, 1]),
        ("rank", 1 + result.target_rank[0, 0, 1]),
        ("target", result.target_probability[0, 0, 1]),
    ]:
        page.get_by_label("Colour by").select_option(metric)
        shown = selected.get_attribute("title").rsplit(" ", 1)[1]
        assert chance(shown) == pytest.approx(value, abs=0.006)
        colours.add(selected.evaluate("one => one.style.background"))
    assert len(colours) >= 3
    assert result.guess(-1)[0] in page.locator(".takeover").inner_text()
    assert result.rows[result.stable_from[0, -1]] in page.locator(".takeover").inner_text()


@SIZES
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, None, None), (0.5, 5, None), (1.5, None, 0.5), (1.3, 10, 0.8)]
)
def test_the_playground_prunes_as_generation_does(visit, width, theme, temperature, top_k, top_p):
    result = examples.following()
    logits = examples.model()(examples.model().to_tokens(examples.TEXT))[0, -1].detach().double()
    expected = prune_logits(logits[None], temperature, top_k, top_p).softmax(-1)[0]
    page = visit(result, width, theme)
    steps = [1, 2, 3, 4, 5, 8, 10, 15, 20]
    page.get_by_label("Temperature").fill(str(round(20 * temperature)))
    page.get_by_label("Top-k").fill(str(len(steps) if top_k is None else steps.index(top_k)))
    page.get_by_label("Top-p").fill(str(20 if top_p is None else round(20 * top_p)))
    for row in page.locator("li[data-token]").all():
        shown = chance(row.locator(".weight").inner_text())
        assert shown == pytest.approx(float(expected[int(row.get_attribute("data-token"))]), abs=0.0006)
        logit = number(row.locator(".score").inner_text())
        assert logit == pytest.approx(float(logits[int(row.get_attribute("data-token"))]), abs=0.006)
    if top_k is not None and top_p is None:
        assert f"{top_k} of 65 tokens" in page.locator("#view-0 [role=status]").inner_text()


def test_the_playground_draws_reproducibly_and_greedily(visit):
    result = examples.following()
    page = visit(result)
    draw = page.get_by_role("button", name="Draw a token")
    for _ in range(5):
        draw.click()
    first = page.locator(".drawn .chip").all_inner_texts()
    page.get_by_role("button", name="Reset").click()
    for _ in range(5):
        draw.click()
    assert page.locator(".drawn .chip").all_inner_texts() == first
    page.get_by_label("Temperature").fill("0")
    draw.click()
    assert page.locator(".drawn .chip").last.inner_text() == result.top_texts[0]
    assert "Greedy" in page.locator("#view-0 [role=status]").inner_text()


@SIZES
def test_the_head_report(visit, width, theme):
    result = examples.report()
    page = visit(result, width, theme)
    for kind in ("induction", "previous_token"):
        page.locator(f"[data-value={kind}]").click()
        ranked, found = result.of_kind(kind), result.found(kind)
        names = page.locator("table.data tbody tr th").all_inner_texts()
        assert names == [str(one.name) for one in ranked]
        steps = page.locator("table.data tbody td:nth-child(2)").all_inner_texts()
        assert steps == [one.pattern for one in ranked]
        confirmed = page.locator("table.data tbody td:nth-child(3)").all_inner_texts()
        assert confirmed == [one.confirmed.replace("not measured", "–") for one in ranked]
        scores = page.locator("table.data tbody td:nth-child(4)").all_inner_texts()
        assert [chance(score.strip()) for score in scores] == pytest.approx([one.score for one in ranked], abs=0.0006)
        assert page.locator("tr.marked").count() == len(found)
        assert page.locator(".takeover").inner_text().startswith(str(len(found)))
        assert f"+{result.causal[0].effect:.2f} nats" in page.locator("p.evidence").inner_text()
    page.get_by_role("button", name="p (> bar)", exact=True).click()
    column = [chance(text.strip()) for text in page.locator("table.data tbody td:nth-child(7)").all_inner_texts()]
    assert column == sorted(column, reverse=True)
    canvas = page.locator(".matrix canvas").first
    canvas.focus()
    page.keyboard.press("Home")
    first = next(one for one in result.of_kind("previous_token") if (one.layer, one.head) == (0, 0))
    assert f"L0H0 score {first.score:.3f}".replace("0.", ".", 1) in page.locator(".readout").first.inner_text().replace(
        "0.", "."
    )
    assert "the vocabulary is small" in page.locator(".warning").inner_text()


@SIZES
def test_d6_a_head_without_a_stored_pattern_says_so(visit, width, theme):
    result = examples.report()
    page = visit(result, width, theme)
    page.locator("[data-value=induction]").click()
    canvas, title = page.locator(".matrix canvas").first, page.locator(".ruled h3").first
    assert {"L1H3", "L0H2"} <= result.patterns.keys()
    assert "L0H1" not in result.patterns
    before, told = title.inner_text(), page.locator(".ruled .note")
    assert not told.is_visible()
    for moves, head in [(["Home", "ArrowRight"], "L0H1"), (["ArrowDown", "ArrowRight", "ArrowRight"], "L1H3")]:
        canvas.focus()
        for key in [*moves, "Enter"]:
            page.keyboard.press(key)
        if head in result.patterns:
            assert title.inner_text() == f"Where {head} looks"
            assert not told.is_visible()
            page.locator(".ruled .matrix").evaluate(IN_VIEW)
            assert "Choose it to see where it looks" in page.locator(".readout").first.inner_text()
        else:
            assert title.inner_text() == before
            assert f"Where {head} looks is not stored" in told.inner_text()
            assert "L1H3" in told.inner_text()
            assert "not stored" in page.locator(".readout").first.inner_text()
    assert "a dot marks those whose pattern is stored" in page.locator(".legend").first.inner_text()


@SIZES
@pytest.mark.parametrize("name", ["sweep", "ablation"])
def test_a_sweep(visit, width, theme, name):
    result = examples.ALL[name]()
    page = visit(result, width, theme)
    change = result.change()
    order = np.argsort(-np.abs(change).ravel(), kind="stable")
    shown = [number(text) for text in page.locator("table.data tbody td:nth-child(4)").all_inner_texts()]
    assert shown == pytest.approx(change.ravel()[order][: len(shown)].tolist(), abs=0.006)
    page.get_by_role("button", name="layer").click()
    layers = page.locator("table.data tbody th").all_inner_texts()
    assert layers == sorted(layers)
    page.get_by_label("Rows by").select_option("effect")
    canvas = page.locator(".matrix canvas")
    canvas.focus()
    page.keyboard.press("Home")
    strongest = int(np.abs(change).max(1).argmax())
    assert f"layer L{strongest}" in page.locator(".readout").inner_text()
    page.get_by_label("Show").select_option("mean")
    assert "mean" in page.locator(".legend").inner_text()


def test_a_sweep_of_one_pair_shows_both_prompts_and_both_tokens(visit):
    page = visit(examples.patching())
    assert page.locator(".prompts dd").all_inner_texts() == ["<bos>ABCDEFABCD", "<bos>ABCXEFABCD"]
    assert page.locator(".prompts .differs").all_inner_texts() == ["D", "X"]
    assert "D/X 4" in page.locator("table.data tbody td:nth-child(2)").all_inner_texts()
    strongest = int(np.abs(examples.patching().change()).argmax())
    assert strongest == 4
    assert "layer L0, pos D/X 4" in page.locator(".readout").inner_text()


def test_parts_together(visit):
    result = examples.joint()
    page = visit(result)
    said = page.locator("#view-0 [role=status]").first.inner_text()
    together, alone = number(said.partition("change it by ")[2].partition(";")[0]), said.partition("add up to ")[2]
    assert together == pytest.approx(result.joint_change(), abs=0.006)
    assert number(alone.rstrip(".")) == pytest.approx(result.sum_of_singles(), abs=0.006)


def test_an_estimate_beside_the_exact_effects(visit):
    result = examples.comparison()
    page = visit(result)
    order = np.argsort(-np.abs(result.exact), kind="stable")
    assert page.locator("table.data tbody th").all_inner_texts() == [result.cells[i] for i in order[:15]]
    shown = [number(text.strip()) for text in page.locator("table.data tbody td:nth-child(3)").all_inner_texts()]
    assert shown == pytest.approx(result.estimated[order[:15]].tolist(), abs=6e-4)
    assert page.locator(".takeover").inner_text() == f"{str(result).capitalize()}."


def test_a_circuit(visit):
    result = examples.circuit()
    page = visit([result, result.report])
    first = page.locator("#view-0 table.data").first
    assert first.locator("tbody th").all_inner_texts() == ["L0H0 → L1H2.k", "L0H1 → L1H2.k"]
    assert first.locator("tr.marked").count() == 1
    assert page.locator("#view-0 .takeover").inner_text().startswith("1 of 2")
    canvas = page.locator("#view-0 .matrix canvas")
    canvas.focus()
    page.keyboard.press("Home")
    assert page.locator("#view-0 .readout").inner_text() == "L0H0 composes with L1H2: .200"
    page.keyboard.press("ArrowDown")
    assert page.locator("#view-0 .readout").inner_text() == "L1H0 does not come before L1H2"


def test_an_attribution(visit):
    result = examples.attribution()
    page = visit(result)
    rows = page.locator(".bars li[data-label]")
    values = result.values.mean(1)
    shown = {row.get_attribute("data-label"): number(row.locator(".weight").inner_text()) for row in rows.all()}
    assert shown == pytest.approx({label: float(values[result.labels.index(label)]) for label in shown}, abs=6e-4)
    assert f"{float(result.logit.mean()):.3f}".replace("-", "−") in page.locator("#view-0 [role=status]").inner_text()
    page.get_by_label("Prompt").select_option("1")
    label = result.labels[int(result.values[:, 1].abs().argmax())]
    assert rows.first.get_attribute("data-label") == label


def test_a_difference_of_logits_is_called_one(visit):
    tokens = examples.model().to_tokens(examples.TEXT)
    page = visit([logit_attribution(examples.model(), tokens, 4, 7), logit_attribution(examples.model(), tokens, 4)])
    assert "the logit difference 'E' - 'H'" in page.locator("#view-0 [role=status]").inner_text()
    assert "the logit of 'E'" in page.locator("#view-1 [role=status]").inner_text()


def test_short_streams_have_an_axis(visit):
    result = examples.lens()
    page = visit(dataclasses.replace(result, residual_norm=result.residual_norm / 1000))
    ticks = page.locator(".chart").nth(1).locator("text.end").all_text_contents()
    assert len(set(ticks)) == 3


def test_prompts_of_a_batch_are_numbered_without_their_padding(visit):
    result = logit_lens(examples.model(), ["ABCABC", "ABCABC", "ABABABABABAB"], target="A")
    page = visit(result)
    options = page.get_by_label("Prompt").locator("option").all_inner_texts()
    assert options == ["1: <bos>ABCABC", "2: <bos>ABCABC", "3: <bos>ABABABABABAB"]


def test_increments(visit):
    result = examples.increments()
    page = visit(result)
    order = np.argsort(-np.abs(result.target_by), kind="stable")
    shown = page.locator("table.data tbody th").all_inner_texts()
    assert shown == [result.labels[i] for i in order][: len(shown)]
    first = page.locator("table.data tbody tr").first.locator("td")
    assert number(first.nth(0).inner_text().strip()) == pytest.approx(result.target_by[order[0]], abs=0.006)
    assert first.nth(1).locator(".chip .token").first.inner_text() == result.texts[int(result.raised[order[0], 0])]
    amount = first.nth(1).locator(".chip .quiet").first.inner_text()
    assert number(amount.strip()) == pytest.approx(result.raised_by[order[0], 0], abs=0.006)
    assert "over what it adds to the mean logit of the vocabulary" in page.locator("#view-0 .where").inner_text()


def test_long_prompts_are_paged(visit):
    from dataclasses import replace

    from tests.configurations import CONFIGS, random_model, random_tokens

    model = random_model(CONFIGS["gpt2"].replace(n_ctx=120), dtype=torch.float32)
    result = replace(logit_lens(model, random_tokens(model.cfg, 2, 100)), model="long")
    page = visit(result)
    columns = page.locator("table.lens thead th.word-head .place")
    assert columns.all_inner_texts() == [str(i) for i in range(60, 100)]
    page.get_by_label("Tokens").fill("10")
    assert page.get_by_label("Tokens").get_attribute("aria-valuetext").startswith("10 to ")
    assert {"10", "20"} < set(columns.all_inner_texts())
    page.get_by_label("Prompt").select_option("1")
    assert page.locator("td[data-row='2'][data-pos='99']").inner_text() == result.guess(2, 1, 99)[0]
