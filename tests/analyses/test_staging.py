"""Outputs appear whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import time
from importlib import import_module
from pathlib import Path

import pytest
import typer

from analyses.command import run
from analyses.staging import set_beside, staged
from models.errors import InputError


def test_files_appear_at_the_end(tmp_path):
    out = tmp_path / "new" / "folder"
    with staged(out) as folder:
        (folder / "a.json").write_text("1")
        assert not out.exists()
    assert [file.name for file in out.iterdir()] == ["a.json"]
    assert [file.name for file in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_all_is_as_it_was(tmp_path, error):
    (tmp_path / "a.json").write_text("old")

    def write() -> None:
        with staged(tmp_path) as folder:
            (folder / "a.json").write_text("new")
            raise error

    with pytest.raises(error):
        write()
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_other_files_stay_and_ours_are_replaced(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "a.json").write_text("old")
    with staged(tmp_path) as folder:
        (folder / "a.json").write_text("new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"notes.txt": "mine", "a.json": "new"}


def test_what_an_earlier_record_was_shown_with_goes_when_it_is_replaced(tmp_path):
    record = {"analysis": "a", "figures": ["a_cells.png", "a_joint.png", "../a_up.png", "mine.png", 3]}
    (tmp_path / "a.json").write_text(json.dumps(record))
    for name in ("a_cells.png", "a_joint.png", "a.html", "a_notes.txt", "mine.png", "b.html", "b_cells.png"):
        (tmp_path / name).write_text("old")
    (tmp_path.parent / "a_up.png").write_text("elsewhere")
    with staged(tmp_path) as folder:
        (folder / "a.json").write_text("{}")
        (folder / "a_cells.png").write_text("new")
    kept = {file.name for file in tmp_path.iterdir()}
    assert kept == {"a.json", "a_cells.png", "a_notes.txt", "mine.png", "b.html", "b_cells.png"}
    assert (tmp_path / "a_cells.png").read_text() == "new"
    assert (tmp_path.parent / "a_up.png").exists()


@pytest.mark.parametrize("old", ["[]", "{}", "not JSON", '{"analysis": "a", "figures": "a_cells.png"}'])
def test_a_file_that_is_no_record_names_no_figures(tmp_path, old):
    for name, text in (("a.json", old), ("a_cells.png", "old")):
        (tmp_path / name).write_text(text)
    with staged(tmp_path) as folder:
        (folder / "a.json").write_text("{}")
    assert {file.name for file in tmp_path.iterdir()} == {"a.json", "a_cells.png"}


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_way_is_refused_before_the_work(tmp_path, below):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match="is a file; give --out a folder"), staged(tmp_path / "taken" / below):
        pytest.fail("the body must not run")


def test_a_folder_in_a_files_place_is_refused_before_anything_is_replaced(tmp_path):
    (tmp_path / "a.html").write_text("old")
    (tmp_path / "b.json").mkdir()

    def write() -> None:
        with staged(tmp_path) as folder:
            for name in ("a.html", "b.json"):
                (folder / name).write_text("new")

    with pytest.raises(InputError, match=r"b\.json: it is a folder; move it, or give --out another folder"):
        write()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.html", "b.json"]
    assert (tmp_path / "a.html").read_text() == "old"


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_files_that_were_moved_go_back_when_a_later_one_cannot(tmp_path, monkeypatch, error):
    (tmp_path / "a.html").write_text("old")
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if target.name == "c.png":
            raise error
        replace(source, target)

    def write() -> None:
        with staged(tmp_path) as folder:
            for name in ("a.html", "b.json", "c.png"):
                (folder / name).write_text("new")
            monkeypatch.setattr(os, "replace", failing)

    with pytest.raises(error):
        write()
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]
    assert (tmp_path / "a.html").read_text() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="Permission denied"), staged(tmp_path / "out"):
        pytest.fail("the body must not run")


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs a file system that takes no files")
def test_a_file_system_that_takes_no_files_is_refused():
    with pytest.raises(InputError, match="give --out another folder"), staged(Path("/proc/out")):
        pytest.fail("the body must not run")


def record(*changes: float | None, figures: int = 0, **more: object) -> str:
    cells = [{"change": change} for change in changes]
    return json.dumps({"analysis": "a", "cells": cells, "figures": [f"a_{i}.png" for i in range(figures)], **more})


CUT = "no a_3.png: it was interrupted"


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        (None, record(1.0, None), ""),
        (record(1.0), record(1.0, None), "unfinished"),  # whole, of another question
        (record(1.0, 2.0, 3.0), record(None, None, None), "unfinished"),
        (record(1.0, 2.0, None), record(1.0, None, None), "unfinished"),
        (record(1.0, None, None), record(1.0, 2.0, None), ""),
        (record(1.0, None, figures=2), record(1.0, None, figures=1), "unfinished"),
        (record(1.0, not_drawn=[CUT], figures=1), record(1.0, not_drawn=[CUT], figures=2), ""),
        (record(1.0, not_together="it was interrupted"), record(1.0, None), ""),
        (json.dumps({"analysis": "a", "holds": True}), json.dumps({"analysis": "a", "holds": False}), "unfinished"),
        (json.dumps({"analysis": "a", "holds": False}), json.dumps({"analysis": "a", "holds": False}), ""),
    ],
)
def test_d1_an_unfinished_record_goes_beside_a_fuller_one(old, new, where, tmp_path):
    if old is not None:
        (tmp_path / "a.json").write_text(old)
        (tmp_path / "a.html").write_text("old")
    for _ in range(2):
        with staged(tmp_path) as folder:
            (folder / "a.json").write_text(new)
            (folder / "a_0.png").write_text("new")
            assert set_beside(folder, tmp_path, "a.json") == tmp_path / where
        assert (tmp_path / where / "a.json").read_text() == new
        assert (tmp_path / where / "a_0.png").read_text() == "new"
        if where:
            assert {file.name for file in tmp_path.iterdir()} == {"a.json", "a.html", where}
            assert (tmp_path / "a.json").read_text() == old
    with staged(tmp_path) as folder:
        (folder / "a.json").write_text(record(None))
        place = set_beside(folder, tmp_path, "a.json")
    assert (place / "a.json").read_text() == record(None)
    if where:
        assert (tmp_path / "a.json").read_text() == old


def test_d1_a_page_stays_while_it_shows_what_the_record_says(tmp_path):
    for command, report in (("a --report", True), ("a", False)):
        with staged(tmp_path) as folder:
            (folder / "a.json").write_text(json.dumps({"analysis": "a", "command": command, "scores": [1]}))
            if report:
                (folder / "a.html").write_text("page")
    assert (tmp_path / "a.html").read_text() == "page"
    with staged(tmp_path) as folder:
        (folder / "a.json").write_text(json.dumps({"analysis": "a", "command": "a", "scores": [2]}))
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("where", ["tempfile.mkdtemp", "os.replace", "shutil.rmtree", "shutil.copy2"])
def test_d1_a_stop_within_the_staging_itself_leaves_all_or_nothing(where, tmp_path, monkeypatch):
    """A stop is sent in the middle of each step that has no safe point."""
    (tmp_path / "a.json").write_text("old")
    module, name = where.split(".")
    step = getattr(import_module(module), name)

    def stopped(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return step(*args, **kwargs)

    app = typer.Typer(add_completion=False)

    @app.command()
    def main() -> None:
        with staged(tmp_path) as folder:
            for file in ("a.json", "b.json"):
                (folder / file).write_text("new")

    monkeypatch.setattr(where, stopped)
    assert run(app, []) == 130
    kept = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert kept == ({"a.json": "old"} if name == "mkdtemp" else {"a.json": "new", "b.json": "new"})
