"""Figures: what they show, for models of any shape and tokens of any kind, without touching pyplot or warning."""

from __future__ import annotations

import io
import subprocess
import sys
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from interp.plots import plot_attention_patterns, plot_head_scores, plot_token_loss, printable, style, style_file
from interp.plots.attention_patterns import best_heads
from tests.analyses.synthetic import TOY_HEADS, synthetic_report

PLOTS = [plot_head_scores, plot_attention_patterns, plot_token_loss]
ODD_TOKENS = ["<bos>", " the", "\n", "\x00", "漢字", "🙂", "$x^2$", "_a_", "", "x" * 80, "שלום", "\ufffd"]


def png(figure: Figure, dpi: int = 100) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi)
    return file.getvalue()


def frames(figure: Figure, title: str) -> set[tuple[int, int]]:
    """Return the (layer, head) of the framed cells in the panel whose title begins so."""
    (panel,) = (ax for ax in figure.axes if ax.get_title(loc="left").startswith(title))
    boxes = [patch for patch in panel.patches if isinstance(patch, Rectangle)]
    return {(round(box.get_y() + 0.5), round(box.get_x() + 0.5)) for box in boxes}


@pytest.mark.parametrize("kind", TOY_HEADS)
def test_detected_heads_are_framed_where_they_are(kind):
    figure = plot_head_scores(synthetic_report())
    assert frames(figure, kind.replace("_", " ")) == set(TOY_HEADS[kind])


def test_a_heatmap_holds_the_scores():
    report = synthetic_report(3, 2, heads={"induction": [(2, 1)]})
    (image,) = plot_head_scores(report).axes[0].images
    np.testing.assert_array_equal(image.get_array(), report.scores("induction"))


@pytest.mark.parametrize("shape", [(1, 1), (12, 12), (30, 9), (3, 48)])
def test_every_shape_of_model_is_drawn_without_overlap(shape):
    layers, heads = shape
    kinds = {"induction": [(layers - 1, heads - 1)], "sink": []}
    figure = plot_head_scores(synthetic_report(*shape, heads=kinds))
    assert png(figure).startswith(b"\x89PNG")
    for ax in figure.axes[:-1]:
        for labels, axis in ((ax.get_xticklabels(), 0), (ax.get_yticklabels(), 1)):
            boxes = sorted(
                (label.get_window_extent().intervalx if axis == 0 else label.get_window_extent().intervaly).tolist()
                for label in labels
            )
            assert all(left[1] <= right[0] for left, right in pairwise(boxes))


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("length", [2, 120])
def test_any_length_and_any_tokens(plot, length):
    tokens = [ODD_TOKENS[i % len(ODD_TOKENS)] for i in range(2 * length + 1)]
    png(plot(synthetic_report(length=length, tokens=tokens)))


@pytest.mark.parametrize("plot", PLOTS)
def test_nothing_lies_outside_the_page(plot):
    figure = plot(synthetic_report(model="/a/folder/" + "a-model-with-a-very-long-name" * 3))
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= drawn.x0 <= drawn.x1 <= width
    assert 0 <= drawn.y0 <= drawn.y1 <= height


def test_patterns_show_the_best_heads_of_each_kind():
    report = synthetic_report()
    captions = best_heads(report, per_kind=1)
    best = {kind: str(report.found(kind)[0].name) for kind in ("previous_token", "sink", "induction")}
    for kind, name in best.items():
        assert any(line.startswith(kind.replace("_", " ")) for line in captions[name])
    assert all("not detected" not in line for name in best.values() for line in captions[name] if "dup" not in line)


def test_a_pattern_keeps_its_orientation():
    report = synthetic_report(heads={"previous_token": [(0, 2)]})
    (image,) = plot_attention_patterns(report).axes[0].images
    shown = image.get_array()
    assert shown[7, 6] > 0.7, "row 7 is a query, column 6 its previous token"
    assert np.ma.is_masked(shown[6, 7]), "what a query cannot see is not drawn"


def test_nothing_found_still_gives_figures():
    report = synthetic_report(heads={kind: [] for kind in TOY_HEADS})
    for plot in PLOTS:
        png(plot(report))
    assert all("none found" in ax.get_title(loc="left") for ax in plot_head_scores(report).axes[:-1])


def test_loss_is_drawn_at_the_predicted_position():
    report = synthetic_report()
    ax = plot_token_loss(report).axes[0]
    intact, ablated = (line for line in ax.lines if len(line.get_xdata()) == 40)
    assert intact.get_xdata().tolist() == list(range(1, 41))
    assert "0.10 nats" in intact.get_label()
    assert "without" in ablated.get_label()


@pytest.mark.parametrize("plot", PLOTS)
def test_dark_figures_are_dark_and_settings_are_restored(plot):
    before = dict(matplotlib.rcParams)
    light, dark = (plot(synthetic_report(), dark=dark) for dark in (False, True))
    assert dict(matplotlib.rcParams) == before
    assert sum(light.get_facecolor()[:3]) > 2.9
    assert sum(dark.get_facecolor()[:3]) < 0.5
    ink = [text.get_color() for text in dark.axes[0].get_xticklabels()]
    assert all(sum(matplotlib.colors.to_rgb(colour)) > 1.5 for colour in ink)


def test_the_same_report_gives_the_same_png():
    first, second = (png(plot_head_scores(synthetic_report())) for _ in range(2))
    assert first == second


def test_styles_set_the_same_keys():
    keys = []
    for dark in (False, True):
        lines = style_file(dark).read_text().splitlines()
        keys.append([line.split(":")[0] for line in lines if line and not line.startswith("#")])
    assert keys[0] == keys[1]


def test_printable_keeps_what_the_font_has():
    assert printable("Ünïcode") == "Ünïcode"
    assert printable(" a\n\tb") == "␣a↵⇥b"
    assert printable("x" * 13) == "x" * 11 + "…"
    assert printable("x" * 12) == "x" * 12


def test_tokens_that_no_font_has_can_be_told_apart(monkeypatch):
    monkeypatch.setattr(style, "_glyphs", lambda: frozenset(range(0x250)))  # as where no fallback is installed
    assert printable("漢") == "U+6F22"
    assert printable("\x07b") == "U+0007b"
    tokens = ["漢字", "漢語", "字", "🙂", "🙃", "हि", "हा", "\x00", "\x07"]
    assert len({printable(token) for token in tokens}) == len(tokens)
    assert len({printable(token, longest=8) for token in ("🙂", "🙃", "漢", "字")}) == 4


def test_fallback_fonts_are_asked_where_they_are_installed(monkeypatch):
    monkeypatch.setattr(style, "FALLBACKS", ("DejaVu Serif", "No Such Font"))
    style._fonts.cache_clear()
    try:
        with style.styled_figure(2, 2) as figure:
            text = figure.text(0, 0, "a")
        assert text.get_fontfamily() == ["DejaVu Sans", "DejaVu Serif"]
    finally:
        style._fonts.cache_clear()


def test_pyplot_is_never_imported():
    code = "import sys, interp.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
