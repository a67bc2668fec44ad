"""Tables in a window of any width: fewer columns where it is narrow, never a part of a name or of a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from rich.console import Console

from analyses import attribution, cell_table, circuit_table, head_table, lens_table, train_toy
from analyses.published import compare
from analyses.table import Table
from analyses.terminal import say, show_files
from interp.readout import logit_attribution, source_attribution
from interp.sites import Head
from interp.weights import fired_memories
from tests.analyses.synthetic import synthetic_report
from tests.interp.report import examples

SHAPE = {"d_model": 768, "d_vocab": 50257, "positions": "learned", "n_kv_heads": 12}


def heads() -> None:
    report = synthetic_report(12, 12, heads={"induction": [(5, 1), (10, 11)], "sink": []}, model="gpt2", **SHAPE)
    head_table.show(report, compare(report), 5, 1234, "float32 on cpu")


def circuits() -> None:
    found = examples.circuit()
    links = [replace(link, earlier=Head(23, 15), later=Head(29, 10 + i)) for i, link in enumerate(found.links)]
    report = replace(found.report, config={**found.report.config, **SHAPE})
    circuit = replace(found, links=tuple(links), report=report, settings={"n_sequences": 8})
    circuit_table.show(circuit, 5, 1234, "float32 on cpu")


def lens() -> None:
    lens_table.show(examples.lens(), 1234, "float32 on cpu", True, chosen=False)


def parts() -> None:
    model, tokens = examples.model(), examples.model().to_tokens(examples.TEXT)
    found = logit_attribution(model, tokens, 4, by="neuron")
    sources = [source_attribution(model, tokens, head, 4) for head in ("L0H0", "L1H1")]
    memories = fired_memories(model, tokens, 4, n_memories=3)
    attribution._show("toy", found, sources, memories, 5)


def cells() -> None:
    rows = cell_table.cell_rows(examples.ablation(), examples.ablation().change())
    rows = [row | {"cell": f"L23H15[{10 + i},10]"} for i, row in enumerate(rows)]
    cell_table.show_cells(Console(highlight=False), "pattern over layer", "about", rows, 5, 2)


def toys() -> None:
    what = "loss on the repeat, over the second half of all positions"
    check = SimpleNamespace(what=what, value=0.1, relation="<=", bound=0.2, holds=True)
    train_toy._show("toy", SimpleNamespace(steps=(100,)), 50, [check] * 2)


ALL: Mapping[str, Callable[[], None]] = {
    "heads": heads, "circuits": circuits, "lens": lens, "attribution": parts, "cells": cells, "toys": toys
}  # fmt: skip


@pytest.mark.parametrize("columns", [50, 60, 80, 120])
@pytest.mark.parametrize("name", ALL)
def test_d3_columns_are_dropped_heads_and_numbers_never_cut(name, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    ALL[name]()
    whole = set(capsys.readouterr().out.split())
    monkeypatch.setenv("COLUMNS", str(columns))
    ALL[name]()
    text = capsys.readouterr().out
    assert max(map(cell_len, text.splitlines())) <= columns
    assert set(text.split()) - whole <= told_of_hidden(text), "a word that is no whole word of the wide table"


def told_of_hidden(text: str) -> set[str]:
    """Return the words of the lines that say which columns are not shown, which wrap in a narrow window."""
    at = [part.partition("has all)")[0] for part in text.replace("has\nall)", "has all)").split("not shown: ")[1:]]
    return {"not", "shown:"} | {word for part in at for word in f"{part}has all)".split()}


def test_d3_the_first_to_go_goes_first_and_a_line_says_so(capsys):
    table = Table("head", "score>", "null>", "also", spare=("also", "null", "absent"))
    table.add_row("L10H11", "0.91", "0.05", "previous .20", style="green")
    for width, shown in [
        (40, ["head    score  null  also", "L10H11   0.91  0.05  previous .20"]),
        (32, ["head    score  null", "L10H11   0.91  0.05", "not shown: also"]),
        (18, ["head    score", "L10H11   0.91", "not shown: also, null"]),
        (10, ["head    score", "L10H11   0.91", "not shown: also, null"]),
    ]:
        table.show(Console(width=width))
        header, row, *below = capsys.readouterr().out.splitlines()
        told = " ".join(" ".join(below).split()).partition(" (")[0]
        assert [header, row, *filter(None, [told])] == shown


def test_d3_a_last_column_of_words_goes_on_below_and_wide_characters_count(capsys):
    table = Table("头", "tokens")
    table.add_row("L0H1", "one two three four five")
    table.show(Console(width=24))
    assert capsys.readouterr().out.splitlines() == ["头    tokens", "L0H1  one two three four", "      five"]


def test_d3_paragraphs_and_files_fit_a_narrow_window(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    say(Console(), "prompt", "長い文" * 20, "")
    show_files(Path("out/heads"), ["a.json"] * 9, {"loading": 1.0})
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= 40
