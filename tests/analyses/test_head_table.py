"""The terminal: what a reader must find there, in 80 columns of plain text."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from analyses.head_table import show
from analyses.published import compare
from analyses.terminal import show_files
from tests.analyses.synthetic import synthetic_report

GPT2 = {"d_model": 768, "d_vocab": 50257, "positions": "learned", "n_kv_heads": 12}


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def shown(report, capsys, top=5) -> str:
    show(report, compare(report), top, 1234, "float32 on cpu")
    return capsys.readouterr().out


def toy(**options):
    return synthetic_report(positions="learned", n_kv_heads=4, **options)


def test_what_must_be_there(capsys):
    text = shown(toy(), capsys)
    flat = " ".join(text.split())
    for part in (
        "toy: 2 layers × 4 heads, learned positions, 1,234 parameters, float32 on cpu",
        "'<bos>' (prepended), 20 distinct random tokens, and the same again; 8 sequences, seed 0",
        "induction heads: 3 of 8, 3 confirmed look at what followed",
        "duplicate-token heads: 0 of 8",
        "+3.10 nats (95 % +2.90 to +3.40, 80% of what there is to lose): mean-ablating the detected heads raises the "
        "repeat loss; beside 4 other sets in the same layers, which give +0.10 to +0.20 (p .200, the least possible "
        ".200)",
        "warning the vocabulary is small",
    ):
        assert part in flat


def test_b4_b9_a_row_has_both_steps_and_what_each_was_decided_on(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    report = toy(heads={"induction": [(1, 3)]})
    (evidence,) = report.found("induction")
    low, high = (f"{end:.2f}".lstrip("0") for end in evidence.interval)
    row = next(line for line in shown(report, capsys).splitlines() if "L1H3" in line)
    bar = row.split()[3]
    assert set(bar) <= set("█▉▊▋▌▍▎▏")
    assert row.split() == [
        "yes", "L1H3", f"{evidence.score:.2f}".lstrip("0"), bar, low, "to", high, ".30", "<.001", "+1.25", "[1.00,",
        "1.50]", "jointly",
    ]  # fmt: skip
    header = next(line for line in shown(report, capsys).splitlines() if line.startswith("pattern"))
    assert "p (> bar)" in header
    assert "confirmed" in header


def test_b4_the_sink_table_shows_the_share_that_decides_and_how_a_sink_rests(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(toy(heads={"sink": [(1, 0)]}), capsys)
    assert "share" in next(line for line in text.splitlines() if line.startswith("pattern"))
    assert "alpha .40, value .20" in next(line for line in text.splitlines() if "L1H0" in line)
    assert "are sinks (Gu et al.): 25% on random tokens; the model reads no text" in " ".join(text.split())


def test_a_borderline_head_says_so_and_a_score_in_part_of_the_tokens_too(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    report = toy(heads={"induction": [(1, 3)]})
    evidence = tuple(
        replace(one, pattern="borderline", confirmed="not measured", by_third=(0.9, 0.1, None)) if one.found else one
        for one in report.evidence
    )
    text = shown(replace(report, evidence=evidence), capsys)
    assert next(line for line in text.splitlines() if "L1H3" in line).startswith("borderline")
    assert "in part  L1H3 (by thirds of the tokens .90 .10 -)" in text


@pytest.mark.parametrize("model", ["toy", "gpt2"])
def test_it_fits_and_is_plain_text(model, capsys):
    heads = {"previous_token": [(11, 11)], "induction": [(5, 1)], "sink": []}
    report = synthetic_report(12, 12, heads=heads, model=model, tokens=["\x1b[31m", "🙂", " a", "\n"] * 20, **GPT2)
    show_files(Path("out/x"), ["x.json", "x_scores.png"], {"loading": 0.12, "finding": 2.0})
    text = shown(report, capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "…" not in text.replace(" …", ""), "no cell is cut"


def test_nothing_found_is_said_plainly(capsys):
    report = toy(heads={"induction": []})
    best = report.of_kind("induction")[0]
    flat = " ".join(shown(report, capsys).split())
    assert "induction heads: 0 of 8" in flat
    assert "no head has the pattern; needed is score >= 0.3, with p < 0.05" in flat
    assert f"({best.name}, p 1)" in flat


def test_found_heads_beyond_top_are_still_named(capsys):
    text = shown(toy(), capsys, top=1)
    report = toy()
    _, *others = report.found("induction")
    assert f"also     {', '.join(str(e.name) for e in others)}" in text


def test_published_heads_stand_beside_the_found(capsys):
    report = synthetic_report(12, 12, heads={"induction": [(5, 1), (8, 8)]}, model="gpt2", **GPT2)
    text = shown(report, capsys)
    assert "beside the published heads of GPT-2 small" in text
    assert "induction: L8H8" in text


def test_bars_where_the_terminal_has_no_blocks(monkeypatch):
    page = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    monkeypatch.setattr(sys, "stdout", page)
    report = toy(heads={"induction": [(1, 3)]})
    show(report, None, 1, 1234, "float32 on cpu")
    page.flush()
    assert " #####" in page.buffer.getvalue().decode()


def test_b8_a_set_without_a_fair_comparison_says_so(capsys):
    report = toy(heads={"sink": [(1, 0)]})
    (causal,) = report.causal
    alone = replace(causal, null_effects=(), p_value=1.0, comparison="no fair comparison: layer 1 has 0 other heads")
    text = " ".join(shown(replace(report, causal=(alone,)), capsys).split())
    assert "raises the repeat loss; no fair comparison: layer 1 has 0 other heads" in text


def test_a_crowd_of_found_heads_is_counted(capsys):
    every = [(layer, head) for layer in range(6) for head in range(6)]
    text = shown(synthetic_report(6, 6, heads={"sink": every}, **GPT2), capsys, top=3)
    assert "and 13 more in the record" in " ".join(text.split())
    assert len(re.findall(r"L\d+H\d+", text)) == 3 + 20
