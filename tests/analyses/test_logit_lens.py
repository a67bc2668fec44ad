"""The logit-lens analysis end to end: on a tiny untrained model, on the toy, and on SmolLM2."""

from __future__ import annotations

import json
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pytest

from analyses.command import run
from analyses.logit_lens import app, better_spaced
from interp.readout.logit_lens import LensResult, logit_lens
from interp.readout.tuned_lens import TunedLens
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.loading import load_model, save_native
from models.text import SymbolTokenizer


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> str:
    cfg = DecoderConfig(n_layers=2, d_model=16, n_heads=2, d_vocab=65, n_ctx=48)
    path = tmp_path_factory.mktemp("models") / "untrained.safetensors"
    save_native(HookedDecoder(cfg, tokenizer=SymbolTokenizer()), path, {})
    return str(path)


def analyse(*args: object) -> int:
    return run(app, [str(arg) for arg in args])


def test_it_writes_a_record_figures_and_a_report(tmp_path, capsys):
    assert analyse("--out", tmp_path) == 0
    record = json.loads((tmp_path / "logit_lens.json").read_text())
    assert set(record["figures"]) | {"logit_lens.json", "logit_lens.html"} == {file.name for file in tmp_path.iterdir()}
    assert all((tmp_path / figure).read_bytes().startswith(b"\x89PNG") for figure in record["figures"])
    lens = LensResult.load(tmp_path / "logit_lens.json")
    expected = logit_lens(load_model("toy"), record["prompt"], target="o", top_k=10)
    np.testing.assert_allclose(lens.target_logit, expected.target_logit, rtol=1e-5)
    assert (lens.model, lens.target, record["takeover"]) == ("toy", ("o",), "L1")
    html = (tmp_path / "logit_lens.html").read_text()
    assert re.findall(r'data-view="(\w+)"', html) == ["lens", "attention", "playground"]
    shown = capsys.readouterr()
    assert shown.err == ""
    guess, chance = lens.guess(-1)
    assert f"{guess!r} {chance:.3f}, the top guess from L1 on" in shown.out
    assert "'<bos>' prepended" in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80


def test_the_recorded_command_gives_the_record_again(untrained, tmp_path):
    flags = ("--prompt", "ABCD", "--target", "D", "--top", "3", "--no-attention")
    assert analyse("--model", untrained, "--out", tmp_path, *flags) == 0
    first = (tmp_path / "logit_lens.json").read_bytes()
    python, script, *args = shlex.split(json.loads(first)["command"])
    assert (python, script) == ("python", "analyses/logit_lens.py")
    assert "--no-attention" in args
    assert analyse(*args) == 0
    assert (tmp_path / "logit_lens.json").read_bytes() == first
    assert 'data-view="attention"' not in (tmp_path / "logit_lens.html").read_text()
    assert json.loads(first)["command"] in (tmp_path / "logit_lens.html").read_text().replace("&#39;", "'")


def test_a_target_that_never_takes_over_is_said_so(untrained, tmp_path, capsys):
    probabilities = logit_lens(load_model(untrained), "ABCD", top_k=65)
    last = probabilities.top_texts[int(probabilities.top_tokens[-1, 0, -1, -1])]
    assert analyse("--model", untrained, "--out", tmp_path, "--prompt", "ABCD", "--target", last) == 0
    assert "ends at rank 65" in capsys.readouterr().out.replace("\n         ", " ")
    assert json.loads((tmp_path / "logit_lens.json").read_text())["takeover"] is None


def test_a_tuned_lens_is_used(untrained, tmp_path):
    model = load_model(untrained)
    lens = TunedLens.identity(model)
    lens.bias[1] += 1.0
    path = lens.save(tmp_path / "tuned.safetensors")
    assert analyse("--model", untrained, "--out", tmp_path / "out", "--prompt", "ABCD", "--tuned", path) == 0
    record = LensResult.load(tmp_path / "out" / "logit_lens.json")
    expected = logit_lens(model, "ABCD", tuned=lens)
    assert record.lens == "tuned"
    np.testing.assert_allclose(record.kl, expected.kl, atol=1e-6)
    assert "Tuned lens" in (tmp_path / "out" / "logit_lens.html").read_text()


@pytest.mark.parametrize(
    ("flag", "value", "line"),
    [
        ("--model", "no-such-model", "no model 'no-such-model'"),
        ("--prompt", "A B", "' ' is not in this model's vocabulary"),
        ("--target", "AB", "'AB' is 2 tokens"),
        ("--tuned", "no/such/lens", "not a readable safetensors file"),
        ("--top", "0", "Invalid value for '--top'"),
        ("--prompt", "A" * 60, "n_ctx is 48"),
    ],
)
def test_bad_input_is_one_line_and_nothing_on_disk(flag, value, line, untrained, tmp_path, capsys):
    flags = {"--model": untrained, "--out": str(tmp_path / "out"), "--prompt": "ABCD"} | {flag: value}
    assert analyse(*(part for pair in flags.items() for part in pair)) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert line in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("prompt", "cut"), [("ABCD", False), ("A" * 40, False), ("AB" * 23, True)])
def test_the_title_is_cut_where_the_prompt_is_long_alone(prompt, cut, untrained, tmp_path, monkeypatch):
    monkeypatch.setattr("analyses.logit_lens.TITLE", 45)
    assert analyse("--model", untrained, "--out", tmp_path, "--prompt", prompt, "--no-attention") == 0
    title = re.search(r"<title>(.*)</title>", (tmp_path / "logit_lens.html").read_text())[1]
    assert title.endswith("…") == cut


def test_a_folder_in_the_records_place_is_refused_before_anything_is_written(untrained, tmp_path, capsys):
    (tmp_path / "logit_lens.json").mkdir()
    assert analyse("--model", untrained, "--out", tmp_path, "--prompt", "ABCD") == 2
    assert "it is a folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["logit_lens.json"]


def test_a_path_of_odd_bytes_is_recorded(untrained, tmp_path):
    out = tmp_path / "a\udcff"
    assert analyse("--model", untrained, "--out", out, "--prompt", "ABCD", "--no-attention") == 0
    assert "a\udcff" in json.loads((out / "logit_lens.json").read_text())["command"]


@pytest.mark.smollm2
def test_smollm2_knows_where_the_tower_is(tmp_path, capsys):
    prompt = "The Eiffel Tower is in the city of"
    flags = ("--model", "smollm2", "--prompt", prompt, "--target", " Paris")
    assert analyse(*flags, "--out", tmp_path) == 0
    lens = LensResult.load(tmp_path / "logit_lens.json")
    guess, chance = lens.guess(-1)
    assert guess == " Paris"
    assert chance == pytest.approx(0.66, abs=0.01)
    assert lens.tokens[0][0] == "The"
    assert lens.takeover() == "L28"
    assert "the top guess from L28 on" in capsys.readouterr().out


def following(guesses):
    """A model whose tokens are given words, and its guesses, best first."""
    words = {text: i for i, text in enumerate(guesses)}

    def to_single_token(text):
        if text not in words:
            raise InputError(f"{text!r} is 2 tokens")
        return words[text]

    return SimpleNamespace(to_single_token=to_single_token), SimpleNamespace(top_tokens=list(range(len(guesses))))


@pytest.mark.parametrize(
    ("guesses", "target", "line"),
    [
        (
            [" Paris", "a", "Paris"],
            "Paris",
            "' Paris', with its space, is guess 1; to follow that token: --target ",
        ),
        (["Paris", "a"], "Paris", ""),  # with its space it is no single token
        (["Paris", " Paris"], "Paris", ""),
        (["Paris", " Paris"], " Paris", "'Paris', without its space, is guess 1; to follow that token: --target "),
        (["Paris"], "Paris", ""),
    ],
)
def test_d10_a_target_whose_spaced_twin_is_guessed_rather_is_told(guesses, target, line):
    model, found = following(guesses)
    other = target.strip() if target.startswith(" ") else f"' {target}'"  # as a shell wants it
    assert better_spaced(model, target, found) == (line and line + other)


def test_d11_report_is_accepted_and_a_bos_of_ones_own_is_not_called_prepended(tmp_path, capsys):
    assert analyse("--out", tmp_path, "--prompt", "<bos>ABCABC", "--report", "--no-attention") == 0
    assert "(nothing prepended)" in " ".join(capsys.readouterr().out.split())
    assert analyse("--out", tmp_path, "--prompt", "ABCABC", "--no-attention") == 0
    assert "'<bos>' prepended" in " ".join(capsys.readouterr().out.split())


def test_d14_layers_make_the_page_smaller_and_its_size_is_printed(tmp_path, capsys):
    sizes = []
    for flags in ((), ("--layers", "1"), ("--no-attention",)):
        assert analyse("--out", tmp_path, *flags) == 0
        size = (tmp_path / "logit_lens.html").stat().st_size
        assert f"logit_lens.html ({size / 1e6:.1f} MB)" in " ".join(capsys.readouterr().out.split())
        sizes.append(size)
    assert sizes[0] > sizes[1] > sizes[2]
    for layers, line in (
        ("2", "this model has layers 0 to 1"),
        ("a-b", "expected numbers and ranges"),
        ("1-0", "0 to 1"),
    ):
        assert analyse("--out", tmp_path, "--layers", layers) == 2
        assert line in capsys.readouterr().err
