"""A stop during or after a sweep, or a second run: what was finished before stays."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module

import pytest

from interp import PatchingResult
from tests.analyses.test_patching import analyse, read, untrained

__all__ = ["untrained"]  # the fixture


@pytest.mark.parametrize("name", ["patching", "ablation"])
def test_d1_an_interrupt_of_a_second_run_leaves_the_first_ones_record(name, untrained, tmp_path, capsys, monkeypatch):
    from interp.interventions import resume

    flags = ("--model", untrained, "--out", tmp_path, "--n", 2, "--report")
    assert analyse(name, *flags) == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert f"{name}.html" in before
    computed = resume.Wavefront.run

    def interrupted(self, cells):
        if min(cell.number for cell in cells) > 0:
            raise KeyboardInterrupt
        return computed(self, cells)

    monkeypatch.setattr(resume.Wavefront, "run", interrupted)
    monkeypatch.setattr("interp.interventions.sweep._WAVE_TOKENS", 1)
    capsys.readouterr()
    assert analyse(name, *flags, "--seed", 1) == 1
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before
    finished = [row for row in read(tmp_path / "unfinished" / f"{name}.json")["cells"] if row["change"] is not None]
    assert 0 < len(finished) < 8
    text = "".join(capsys.readouterr().out.split())
    assert f"{tmp_path}keepsitsfullerrecord;whatwasfinishedofthisoneisin{tmp_path}/unfinished" in text


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "where", ["json.dumps", "os.replace", "shutil.rmtree", "interp.interventions.PatchingResult.plot"]
)
def test_d1_a_stop_after_the_sweep_costs_no_cell(where, stop, untrained, tmp_path, monkeypatch):
    """A real signal, in the middle of each step that follows the sweep."""
    place, _, name = where.rpartition(".")
    owner = import_module(place) if place in sys.modules else PatchingResult
    step = getattr(owner, name)

    def stopped(*args, **kwargs):
        os.kill(os.getpid(), stop)
        time.sleep(0.01)
        return step(*args, **kwargs)

    monkeypatch.setattr(where, stopped)
    assert analyse("patching", "--model", untrained, "--out", tmp_path, "--n", 2, "--report") in (1, 128 + stop)
    monkeypatch.undo()
    assert len([row for row in read(tmp_path / "patching.json")["cells"] if row["change"] is not None]) == 8
    assert not list(tmp_path.glob(".*"))
