"""The circuit analysis end to end: the toys' circuits named, none on an untrained model, one line for bad input."""

from __future__ import annotations

import json
import time

import pytest

from analyses.circuits import app
from analyses.command import run
from interp.weights import InductionCircuit
from models import DecoderConfig, HookedDecoder
from models.loading import save_native
from models.text import SymbolTokenizer


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> str:
    cfg = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=48)
    path = tmp_path_factory.mktemp("models") / "untrained.safetensors"
    save_native(HookedDecoder(cfg, tokenizer=SymbolTokenizer()), path, {})
    return str(path)


def analyse(*args: object) -> int:
    return run(app, [str(arg) for arg in args])


@pytest.mark.parametrize("toy", ["toy", "toy-attn", "toy-rope"])
def test_on_the_toys_it_names_the_pairs_that_ablation_confirms(toy, tmp_path, capsys):
    assert analyse("--model", toy, "--out", tmp_path) == 0
    values = json.loads((tmp_path / "circuits.json").read_text())
    circuit = InductionCircuit.load(tmp_path / "circuits.json")
    previous, induction = ({e.name for e in circuit.report.found(kind)} for kind in ("previous_token", "induction"))
    assert values["confirmed"] == [f"{k.earlier} -> {k.later}.k" for k in circuit.confirmed]
    assert {k.later for k in circuit.confirmed} == induction
    assert {k.earlier for k in circuit.confirmed} <= previous
    assert {"circuits.json", *values["figures"]} == {file.name for file in tmp_path.iterdir()}
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"links that ablation confirms: {len(circuit.confirmed)} of {len(circuit.links)}" in shown.out
    assert f"{circuit.confirmed[0].earlier} writes what the keys of" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_on_an_untrained_toy_it_names_none(untrained, tmp_path, capsys):
    assert analyse("--model", untrained, "--out", tmp_path) == 0
    values = json.loads((tmp_path / "circuits.json").read_text())
    assert values["confirmed"] == values["links"] == []
    shown = capsys.readouterr().out
    assert "links that ablation confirms: 0 of 0" in shown
    assert "writes what" not in shown
    assert all((tmp_path / figure).read_bytes().startswith(b"\x89PNG") for figure in values["figures"])


def test_the_recorded_command_gives_the_record_again(tmp_path):
    analyse("--model", "toy-attn", "--out", tmp_path, "--seed", 3)
    first = (tmp_path / "circuits.json").read_bytes()
    python, script, *args = json.loads(first)["command"].split()
    assert (python, script) == ("python", "analyses/circuits.py")
    analyse(*args)
    assert (tmp_path / "circuits.json").read_bytes() == first


@pytest.mark.parametrize(
    ("flag", "value", "line"), [("--model", "no-such-model", "no model 'no-such-model'"), ("--top", "0", "--top")]
)
def test_bad_input_is_one_line_and_nothing_on_disk(flag, value, line, tmp_path, capsys):
    flags = {"--model": "toy", "--out": str(tmp_path / "out")} | {flag: value}
    assert analyse(*(part for pair in flags.items() for part in pair)) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert line in shown.err
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.smollm2
@pytest.mark.slow
def test_smollm2_within_two_minutes_of_two_cores(tmp_path, capsys):
    start = time.process_time()  # of all cores: what else the machine does does not count
    assert analyse("--model", "smollm2", "--out", tmp_path) == 0
    assert time.process_time() - start < 2 * 120
    circuit = InductionCircuit.load(tmp_path / "circuits.json")
    by_pair = {(str(link.earlier), str(link.later)): link for link in circuit.links if link.route == "K"}
    for later in ("L17H3", "L17H4", "L17H5", "L18H6", "L18H7"):
        assert by_pair["L16H0", later].verdict
        for earlier in ("L16H0", "L11H1"):
            assert by_pair[earlier, later].null_mean == pytest.approx(circuit.dimension_null, rel=0.05)
            assert by_pair[earlier, later].z > 5
