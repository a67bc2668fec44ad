"""What every result can do: be saved and loaded, draw itself, and show itself in a notebook."""

from __future__ import annotations

import importlib
import io
import pkgutil
from inspect import isabstract

import pytest
from matplotlib.figure import Figure

import interp
from interp.report import show, to_html
from interp.report.show import LARGEST, Shown
from interp.results import Result
from tests.interp.report import examples


def every_result() -> set[type[Result]]:
    for module in pkgutil.walk_packages(interp.__path__, "interp."):
        importlib.import_module(module.name)
    waiting, found = [Result], set()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not isabstract(kind):
            found.add(kind)
    return found


def test_every_kind_of_result_has_an_example():
    assert {type(make()) for make in examples.ALL.values()} == every_result()


@pytest.mark.parametrize("name", examples.ALL)
def test_what_is_loaded_is_what_was_saved(name, tmp_path):
    result = examples.ALL[name]()
    assert type(result).load(result.save(tmp_path / "result.json")) == result


@pytest.mark.parametrize("name", examples.ALL)
def test_its_repr_is_one_short_line(name):
    result = examples.ALL[name]()
    assert repr(result) == f"<{type(result).__name__}: {result.headline()}>"
    assert "\n" not in repr(result)
    assert len(repr(result)) < 220


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", examples.ALL)
def test_it_draws_itself(name, dark):
    figure = examples.ALL[name]().plot(dark=dark)
    assert isinstance(figure, Figure)
    for dpi in (100, 200):
        figure.savefig(io.BytesIO(), dpi=dpi)
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert -0.01 <= drawn.x0 <= drawn.x1 <= width + 0.01, "something is cut off at a side"
    assert -0.01 <= drawn.y0 <= drawn.y1 <= height + 0.01, "something is cut off above or below"


@pytest.mark.parametrize("name", examples.ALL)
def test_it_shows_itself_in_a_notebook_as_its_page_with_a_table_for_viewers_without_scripts(name):
    result = examples.ALL[name]()
    html = result._repr_html_()
    assert html == show(result)._repr_html_()
    frame, _, table = html.partition("</iframe>")
    assert "srcdoc=" in frame
    assert result.summary_html() in table
    assert "<script>alert" not in html


def test_a_page_that_is_too_large_for_a_notebook_gives_its_table_and_the_way_out():
    html = Shown("x" * (LARGEST + 1), "<table></table>", 100)._repr_html_()
    assert "write_report" in html
    assert "<table></table>" in html
    assert "iframe" not in html


def test_a_framed_page_is_the_page_made_smaller():
    options = {"title": "One"}
    framed, page = to_html(examples.following(), framed=True, **options), to_html(examples.following(), **options)
    assert framed == page.replace("<body>", '<body class="framed">')
    assert "<h1>" not in to_html(examples.following(), framed=True), "the view's own heading says the same"
