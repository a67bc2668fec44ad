"""The four head analyses end to end, on a tiny untrained model and, where it matters, as a user would start them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from analyses.command import run
from models import DecoderConfig, HookedDecoder
from models.loading import save_native
from models.text import SymbolTokenizer
from tests.analyses.synthetic import synthetic_report

ROOT = Path(__file__).parents[2]
KINDS = {
    "induction": ["induction", "previous_token", "sink"],
    "previous_token": ["previous_token"],
    "sinks": ["sink"],
    "heads": ["previous_token", "sink", "induction", "duplicate_token", "current_token"],
}


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> str:
    cfg = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=48)
    path = tmp_path_factory.mktemp("models") / "untrained.safetensors"
    save_native(HookedDecoder(cfg, tokenizer=SymbolTokenizer()), path, {})
    return str(path)


def analyse(name: str, *args: object) -> int:
    return run(import_module(f"analyses.{name}").app, [str(arg) for arg in args])


def start(*args: object, **env: str) -> subprocess.Popen:
    """Start a script as a user does, from another folder than the checkout."""
    script = str(ROOT / "analyses" / str(args[0]))
    command = [sys.executable, script, *map(str, args[1:])]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env=os.environ | env,
    )


@pytest.mark.parametrize("name", KINDS)
def test_every_analysis_writes_its_record_and_figures(name, untrained, tmp_path, capsys):
    assert analyse(name, "--model", untrained, "--out", tmp_path / "out") == 0
    values = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert values["kinds"] == KINDS[name]
    assert values["analysis"] == name
    assert values["model"] == untrained
    assert len(values["heads"]) == len(KINDS[name]) * 2 * 2
    assert {head["pattern"] for head in values["heads"]} <= {"no", "borderline"}, "an untrained model has no heads"
    assert {head["confirmed"] for head in values["heads"]} == {"not measured"}
    assert {f"{name}.json", *values["figures"]} == {file.name for file in (tmp_path / "out").iterdir()}
    assert all((tmp_path / "out" / figure).read_bytes().startswith(b"\x89PNG") for figure in values["figures"])
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "no head has the pattern" in shown.out


def test_the_same_command_gives_the_same_record(untrained, tmp_path):
    records = []
    for _ in range(2):
        analyse("heads", "--model", untrained, "--out", tmp_path, "--seed", 3)
        records.append((tmp_path / "heads.json").read_bytes())
    analyse("heads", "--model", untrained, "--out", tmp_path, "--seed", 4)
    other = json.loads((tmp_path / "heads.json").read_bytes())
    assert records[0] == records[1]
    assert other["heads"] != json.loads(records[0])["heads"]


def test_the_recorded_command_gives_the_record_again(untrained, tmp_path):
    analyse("sinks", "--model", untrained, "--out", tmp_path, "--seed", 3, "--top", 2)
    first = (tmp_path / "sinks.json").read_bytes()
    python, script, *args = json.loads(first)["command"].split()
    assert (python, script) == ("python", "analyses/sinks.py")
    analyse("sinks", *args)
    assert (tmp_path / "sinks.json").read_bytes() == first


def test_found_heads_reach_the_record_the_figures_and_the_terminal(untrained, tmp_path, capsys, monkeypatch):
    found = synthetic_report(positions="learned", n_kv_heads=4)
    monkeypatch.setattr("interp.detectors.find_heads", lambda *args, **kwargs: found)
    assert analyse("heads", "--model", untrained, "--out", tmp_path) == 0
    heads = json.loads((tmp_path / "heads.json").read_text())["heads"]
    assert [head["pattern"] for head in heads].count("yes") == 6
    assert [head["confirmed"] for head in heads].count("jointly") == 6
    assert "induction heads: 3 of 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "value", "line"),
    [
        ("--model", "no-such-model", "no model 'no-such-model'"),
        ("--model", "no/such/folder.gguf", "no file or folder"),
        ("--device", "nonsense", "device"),
        ("--dtype", "float8", "Invalid value for '--dtype'"),
        ("--top", "0", "Invalid value for '--top'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_on_disk(flag, value, line, untrained, tmp_path, capsys):
    flags = {"--model": untrained, "--out": str(tmp_path / "out")} | {flag: value}
    assert analyse("induction", *(part for pair in flags.items() for part in pair)) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert line in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_out_in_the_way_is_refused(untrained, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert analyse("sinks", "--model", untrained, "--out", tmp_path / "file") == 2
    assert "is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_hub_that_cannot_be_reached_is_one_line_and_2(tmp_path):
    process = start(
        "induction.py", "--model", "gpt2", "--out", tmp_path / "out", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    for way_out in ("folder", ".gguf", "toy", "smollm2"):
        assert way_out in err
    assert not (tmp_path / "out").exists()


def test_piped_output_is_plain_ascii_where_it_must_be(untrained, tmp_path):
    process = start("sinks.py", "--model", untrained, "--out", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (0, "")
    assert "sink heads: 0 of 4" in out
    assert all(character.isprintable() or character == "\n" for character in out)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("stop", "code", "line"),
    [(signal.SIGINT, 130, "interrupted; no file is half-written\n"), (signal.SIGTERM, 143, "")],
)
def test_a_stopped_run_leaves_nothing(stop, code, line, untrained, tmp_path):
    process = start("heads.py", "--model", untrained, "--out", tmp_path / "out")
    deadline = time.monotonic() + 600
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:  # the temporary folder: the work has begun
        time.sleep(0.01)
    process.send_signal(stop)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out, err) == (code, "", line)
    assert list(tmp_path.iterdir()) == []


def test_help_answers_without_torch():
    code = "import sys, analyses.heads; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
