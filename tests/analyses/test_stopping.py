"""A stop that was asked for is carried out: whenever it comes, whatever swallows it, and in one line at most."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models import DecoderConfig, HookedDecoder
from models.loading import save_native
from models.text import SymbolTokenizer
from tests.analyses.test_head_analyses import ROOT, start

STOPS = pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
SAID = {signal.SIGINT: "interrupted; no file is half-written\n", signal.SIGTERM: ""}
SCRIPT = """
from analyses.stopping import listen

if __name__ == "__main__":
    listen()

import gc, os, sys, time, weakref
from pathlib import Path
import typer
from analyses.command import progress_bar, run
from analyses.staging import staged

app = typer.Typer(add_completion=False)
OUT, STOP, HOW = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Thing:
    pass


def stop(*_):
    os.kill(os.getpid(), STOP)
    time.sleep(0.01)


@app.command()
def main():
    with staged(OUT) as folder, progress_bar() as progress:
        if HOW == "caught":
            try:
                stop()
            except BaseException:
                pass
        elif HOW == "in a callback":
            thing = Thing()
            kept = weakref.ref(thing, stop)
            del thing
        elif HOW == "broken":
            try:
                stop()
            except KeyboardInterrupt:
                raise NameError("an import that broke off")
        (folder / "a.json").write_text("whole")
        if len(sys.argv) > 4:
            progress("a safe point", 0.5)
            (OUT.parent / "beyond").write_text("")


if __name__ == "__main__":
    raise SystemExit(run(app, []))
"""


@STOPS
@pytest.mark.parametrize("how", ["caught", "in a callback", "broken"])
@pytest.mark.parametrize("ticks", [(), ("ticks",)])
def test_d2_a_stop_that_a_library_swallows_is_carried_out(stop, how, ticks, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), str(int(stop)), how, *ticks]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + stop, "", SAID[stop])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> str:
    """A model whose heads take some seconds to find."""
    cfg = DecoderConfig(n_layers=64, d_model=256, n_heads=16, d_vocab=65, n_ctx=256)
    path = tmp_path_factory.mktemp("models") / "long.safetensors"
    save_native(HookedDecoder(cfg, tokenizer=SymbolTokenizer()), path, {})
    return str(path)


@STOPS
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0])
def test_d2_a_stop_at_any_time_ends_the_run_and_leaves_nothing(stop, seconds, long, tmp_path):
    process = start("heads.py", "--model", long, "--out", tmp_path / "out")
    wait_for_python(process)
    time.sleep(seconds)
    if (tmp_path / "out").exists():  # this machine is so fast that there is nothing left to stop
        assert process.communicate(timeout=600)[1] == ""
        assert process.returncode == 0
        return
    process.send_signal(stop)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (128 + stop, "", SAID[stop])
    assert list(tmp_path.iterdir()) == []


def wait_for_python(process: subprocess.Popen) -> None:
    """Wait until the script listens: before that, Python's own start ends by a signal as it will."""
    status = Path(f"/proc/{process.pid}/status")
    deadline = time.monotonic() + 600
    while status.exists() and process.poll() is None and time.monotonic() < deadline:
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        if caught >> (signal.SIGTERM - 1) & 1:  # Python itself catches no SIGTERM
            return
        time.sleep(0.001)


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc to see when a script listens")
def test_d2_a_script_listens_before_it_imports_anything_that_takes_time(long, tmp_path):
    for _ in range(5):
        process = start("heads.py", "--model", long, "--out", tmp_path / "out")
        wait_for_python(process)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=600) == ("", SAID[signal.SIGINT])
        assert process.returncode == 130


def test_d2_every_script_listens_in_its_first_lines():
    for script in sorted((ROOT / "analyses").glob("*.py")):
        text = script.read_text()
        if "raise SystemExit(run(app))" in text:
            lines = [line for line in text.split('"""', 2)[2].splitlines() if line.strip()]
            lines = [line for line in lines if line != "from __future__ import annotations"]
            assert lines[0].startswith("from analyses.stopping import listen"), script
            assert [line.split("  #")[0] for line in lines[1:3]] == ['if __name__ == "__main__":', "    listen()"]
    loaded = "import sys, analyses.stopping; sys.exit(bool({'typing', 'contextlib', 'signal'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-S", "-c", loaded], cwd=ROOT).returncode == 0


def test_d2_a_background_job_goes_on_ignoring_ctrl_c(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), str(int(signal.SIGINT)), "caught"]
    ignored = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    assert subprocess.run(command, cwd=ROOT, **ignored).returncode == 0
    assert (tmp_path / "out" / "a.json").read_text() == "whole"
