"""``--report``: every analysis writes its page too, with the command that gives it again."""

from __future__ import annotations

import json
import re
from importlib import import_module

import pytest

from analyses.command import run

VIEWS = {
    "previous_token": ["heads"],
    "patching": ["sweep", "comparison"],
    "ablation": ["sweep", "sweep"],
    "attribution": ["attribution", "increments"],
    "circuits": ["circuit", "heads"],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_page_is_written_on_request(name, tmp_path, capsys):
    def analyse(*flags: str) -> None:
        args = ["--model", "toy-attn", "--out", str(tmp_path), *flags]
        assert run(import_module(f"analyses.{name}").app, args) == 0

    analyse("--report")
    html = (tmp_path / f"{name}.html").read_text()
    command = json.loads((tmp_path / f"{name}.json").read_text())["command"]
    assert re.findall(r'data-view="(\w+)"', html) == VIEWS[name]
    assert command.endswith(" --report")
    assert command in html
    assert f"{name}.html" in "".join(capsys.readouterr().out.split())


def test_none_is_written_unasked(tmp_path):
    assert run(import_module("analyses.attribution").app, ["--out", str(tmp_path)]) == 0
    assert not (tmp_path / "attribution.html").exists()
