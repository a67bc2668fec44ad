"""The page as text: whole, escaped, asking for nothing; what it cannot show is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import interp.report
from interp.report import show, to_html, view_of, write_report
from interp.report.page import SCRIPTS, STYLES
from models.errors import InputError
from tests.interp.report import examples


class Elements(HTMLParser):
    """Collect elements with attributes, and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._id: str | None = None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._id = dict(attributes).get("id", "script") if tag == "script" else None

    def handle_data(self, data):
        if self._id is not None:
            self.scripts[self._id] = self.scripts.get(self._id, "") + data

    def handle_endtag(self, tag):
        self._id = None


@pytest.fixture(scope="module")
def page() -> str:
    return to_html([make() for make in examples.ALL.values()], title="<b>&", command="python x.py --prompt '<i>'")


def test_every_type_has_a_view(page):
    sections = [attributes for tag, attributes in Elements(page).elements if tag == "section"]
    kinds = [one if one not in examples.CELLS else "sweep" for one in examples.ALL]
    assert [one["data-view"] for one in sections] == kinds


def test_nothing_is_loaded_from_anywhere(page):
    loading = ("src", "href", "srcset", "data", "action", "poster")
    for tag, attributes in Elements(page).elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "video", "audio")
        for name in loading:
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "@font-face" not in style
    script = Elements(page).scripts["script"]
    for call in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "innerHTML", "insertAdjacentHTML", "eval("):
        assert call not in script
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\s\"'<)]+", style + script)) == {"http://www.w3.org/2000/svg"}


def test_texts_of_prompts_are_no_markup(page):
    assert "<script>alert" not in page
    elements = Elements(page)
    kinds = {attributes.get("type") for tag, attributes in elements.elements if tag == "script"}
    assert kinds == {"application/json", "text/plain", None}
    assert sum(tag == "script" and not attributes for tag, attributes in elements.elements) == 1
    assert "<h1><bdi>&lt;b&gt;&amp;</bdi></h1>" in page
    assert "<i>" not in page
    data = json.loads(elements.scripts["data-0"])
    assert tuple(data["result"]["tokens"][0]) == examples.ODD


@pytest.mark.parametrize("name", sorted(set(examples.ALL) - {"attention", "circuit"}))
def test_the_data_in_the_page_is_the_results(name):
    result = examples.ALL[name]()
    data = json.loads(view_of(result, "x").json)["result"]
    again = type(result).from_dict(data)
    for key, value in result.to_dict().items():
        assert _close(again.to_dict()[key], value), key


def _close(a, b) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return bool(np.isclose(a, b, rtol=1e-6, atol=1e-12))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_close, a, b))
    return a == b


def test_the_foot_says_where_the_numbers_come_from(page):
    foot = page.partition("<footer>")[2].partition("</footer>")[0]
    assert "python x.py --prompt &#39;&lt;i&gt;&#39;" in foot
    assert "torch 2" in foot
    assert "n_layers=2" in foot
    assert "<dt>seed</dt><dd>0</dd>" in foot
    assert "not by a command" in to_html(examples.lens())


def test_one_result_or_several():
    one = to_html(examples.following())
    assert one == to_html([examples.following()])
    assert "<nav" not in one
    assert "<h1><bdi>Next token: HookedDecoder</bdi></h1>" in one


def test_the_file_is_written_whole(tmp_path):
    path = write_report(examples.lens(), tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8") == to_html(examples.lens())
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(InputError):
        write_report([], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def titles(*results) -> list[str]:
    found = re.findall(r"<h2 id=[^>]*><bdi>([^<]*)</bdi></h2>", to_html(list(results)))
    return [title.replace("\u2068", "").replace("\u2069", "") for title in found]  # isolated parts


def test_equal_views_say_what_tells_them_apart():
    lens = examples.lens()
    assert titles(lens, examples.following()) == ["Logit lens", "Next token"]
    assert titles(lens, replace(lens, model="other")) == ["Logit lens: HookedDecoder", "Logit lens: other"]
    short = [replace(examples.following(), tokens=tuple(text)) for text in ("ABC\nDEF", "DEF")]
    assert titles(*short) == ["Next token: ABC DEF", "Next token: DEF"]
    same = "a prompt that goes on and on, until "
    long = [replace(examples.following(), tokens=(same, end)) for end in ("here", "there")]
    assert titles(*long) == ["Next token: …goes on and on, until here", "Next token: …goes on and on, until there"]
    assert titles(lens, lens) == ["Logit lens: 1 of 2", "Logit lens: 2 of 2"]
    html = to_html([lens, replace(lens, model="other")])
    assert re.findall(r'<a href="(#view-\d)"><bdi>([^<]*)</bdi></a>', html) == [
        ("#view-0", "Logit lens: \u2068HookedDecoder\u2069"),
        ("#view-1", "Logit lens: \u2068other\u2069"),
    ]


def test_two_models_of_one_name_keep_their_configurations():
    lens = examples.lens()
    html = to_html([lens, replace(lens, config={"n_layers": 77}), examples.following()])
    assert html.count("<details>") == 2
    assert "Configuration of <bdi>HookedDecoder (2 of 2)</bdi>" in html
    assert "n_layers=77" in html
    assert "n_layers=2" in html


def test_lone_surrogates_are_shown_as_replaced(tmp_path):
    odd = replace(examples.following(), tokens=("\ud800",) * 11, top_texts=("\udcff",) * 20, model="\udc80")
    html = write_report(odd, tmp_path / "odd.html", title="\ud800x", command="\udcff").read_text(encoding="utf-8")
    assert "<h1><bdi>\ufffdx</bdi></h1>" in html
    assert "<code>\ufffd</code>" in html
    odd = replace(examples.lens(), tokens=(("\ud800",) * 11,))
    assert show(odd, title="\ud800")._repr_html_().encode("utf-8")


def test_the_parts_of_a_circuit_are_those_of_its_report():
    html = to_html(examples.circuit())
    assert "<dt>model</dt><dd>toy</dd>" in html


def test_what_has_no_view_is_told_which_have():
    with pytest.raises(InputError, match=r"no report shows a int; .* AttentionResult, LensResult, .*LogitAttribution"):
        to_html([3])
    with pytest.raises(InputError, match="at least one"):
        to_html([])


def test_a_notebook_shows_the_page_in_a_frame():
    html = show(examples.following(), height=300)._repr_html_()
    frame = Elements(html)
    (attributes,) = [attributes for tag, attributes in frame.elements if tag == "iframe"]
    assert attributes["srcdoc"] == to_html(examples.following(), framed=True)
    assert "height:300px" in attributes["style"]
    assert "allow-same-origin" not in attributes["sandbox"]


def test_every_asset_is_used_and_small():
    from interp.report.page import ASSETS

    names = {file.name for file in ASSETS.iterdir()}
    assert names == {f"{name}.js" for name in SCRIPTS} | {f"{name}.css" for name in STYLES} | {"page.html.j2"}
    for file in ASSETS.iterdir():
        assert len(file.read_text().splitlines()) <= 350, file.name


def test_public_names():
    assert interp.report.__all__ == ["show", "to_html", "view_of", "write_report"]
