"""The scripts of patching and ablation, end to end on tiny untrained models and on the toy."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analyses import ablation
from analyses.ablation import NOTATION
from analyses.cell_table import cell_name
from analyses.command import run
from interp import AblationResult, AttributionComparison, JointAblation, PatchingResult, find_heads
from interp.interventions.parts import parse_parts
from interp.report.views import view_of
from models import DecoderConfig, HookedDecoder
from models.loading import load_model, save_native
from models.text import SymbolTokenizer

ROOT = Path(__file__).parents[2]
PAIR = ("--clean", "ABCDEFABC", "--corrupted", "ABCXEFABC", "--answer", "D", "--wrong", "X")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory) -> str:
    cfg = DecoderConfig(
        n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_vocab=65, n_ctx=32, positions="rotary", d_mlp=8
    )
    path = tmp_path_factory.mktemp("models") / "untrained.safetensors"
    save_native(HookedDecoder(cfg, tokenizer=SymbolTokenizer()), path, {})
    return str(path)


def analyse(name: str, *args: object) -> int:
    return run(import_module(f"analyses.{name}").app, [str(arg) for arg in args])


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_patching_writes_a_record_that_reads_back_and_its_figures(untrained, tmp_path, capsys):
    assert analyse("patching", "--model", untrained, "--out", tmp_path / "out", "--n", 3) == 0
    values = read(tmp_path / "out" / "patching.json")
    result = PatchingResult.from_dict(values["patching"])
    assert (result.site, result.axes, result.model) == ("z", ("layer", "head"), untrained)
    assert len(values["cells"]) == 8
    best = values["cells"][0]
    assert best["change"] == result.change()[best["layer"], best["head"]]
    assert abs(best["change"]) == np.abs(result.change()).max()
    assert best["low"] <= best["change"] <= best["high"]
    comparison = AttributionComparison.from_dict(values["attribution"])
    np.testing.assert_allclose(comparison.exact, result.change().ravel())
    assert values["prompts"]["positions"]["end"] == [15, 15, 15]
    assert {"patching.json", *values["figures"]} == {file.name for file in (tmp_path / "out").iterdir()}
    assert all((tmp_path / "out" / figure).read_bytes().startswith(b"\x89PNG") for figure in values["figures"])
    shown = capsys.readouterr()
    assert shown.err == ""
    share = result.block_tokens / result.naive_block_tokens
    assert f"{result.block_tokens:,} block-tokens, {100 * share:.1f} % of one run per cell" in " ".join(
        shown.out.split()
    )
    assert "rank correlation" in shown.out


def test_the_toy_s_answer_is_carried_by_its_previous_token_head_and_its_induction_heads(tmp_path, capsys):
    assert analyse("patching", "--model", "toy", "--out", tmp_path) == 0
    values = read(tmp_path / "patching.json")
    assert values["clean"] > 4
    assert values["corrupted"] < -4
    report = find_heads(load_model("toy"), ["previous_token", "induction"], causal=False)
    previous, induction = ({str(one.name) for one in report.found(kind)} for kind in ("previous_token", "induction"))
    assert len(previous) == 1
    first, *others = values["cells"][: 1 + len(induction)]
    assert {first["cell"]} == previous
    assert first["recovered"] > 0.8
    assert {cell["cell"] for cell in others} == induction
    assert {cell["cell"] for cell in values["cells"] if cell["p_mean_change"] < 0.05} == previous | induction
    assert values["attribution"]["pearson"] > 0.95  # ranks mean little: all other heads are next to silent
    assert "cells change it, p < .05" in capsys.readouterr().out


def test_ablation_writes_a_record_that_reads_back_and_takes_the_largest_out_together(untrained, tmp_path, capsys):
    assert analyse("ablation", "--model", untrained, "--out", tmp_path / "out", "--n", 3, "--together", 2) == 0
    values = read(tmp_path / "out" / "ablation.json")
    result, joint = AblationResult.from_dict(values["ablation"]), JointAblation.from_dict(values["joint"])
    assert joint.parts == tuple(row["cell"] for row in values["cells"][:2])
    changes = [row["change"] for row in values["cells"][:2]]
    np.testing.assert_allclose(joint.change(), changes, atol=1e-5)
    assert values["together"]["sum_of_singles"] == pytest.approx(sum(changes), abs=1e-5)
    assert values["intact"] == pytest.approx(float(result.into().mean()))
    assert {"ablation.json", "ablation_cells.png", "ablation_joint.png"} == {
        file.name for file in (tmp_path / "out").iterdir()
    }
    assert f"{joint.parts[0]}, {joint.parts[1]} together" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("patching", ("--site", "k", "--over", "layer,pos,head", "--direction", "noise")),
        ("patching", ("--site", "resid_pre", *PAIR)),
        ("patching", ("--site", "z", "--over", "head,pos")),
        ("ablation", ("--site", "mlp_out", "--method", "zero", "--frozen-attention")),
        ("ablation", ("--method", "resample", "--from-corrupted", "--seed", "3")),
        ("ablation", ("--site", "k", "--prompts", "repeated")),
    ],
)
def test_the_recorded_command_gives_the_record_again(name, flags, untrained, tmp_path):
    assert analyse(name, "--model", untrained, "--out", tmp_path, "--n", 2, *flags) == 0
    first = (tmp_path / f"{name}.json").read_bytes()
    python, script, *args = shlex.split(json.loads(first)["command"])
    assert (python, script) == ("python", f"analyses/{name}.py")
    assert analyse(name, *args) == 0
    assert (tmp_path / f"{name}.json").read_bytes() == first


def test_what_one_pair_cannot_tell_is_said(untrained, tmp_path, capsys):
    assert analyse("patching", "--model", untrained, "--out", tmp_path, *PAIR) == 0
    values = read(tmp_path / "patching.json")
    assert values["cells"][0]["p_mean_change"] is None
    assert values["prompts"]["answers"] == ["D"]
    assert "they need two examples or more" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("n", "told"),
    [
        (
            5,
            "5 examples: the least p possible is 0.062, so that no cell can be significant at .05",
        ),
        (8, "8 examples: the least p possible is 0.0078"),
    ],
)
def test_b10_tables_say_what_is_tested_and_the_least_p_that_the_examples_allow(n, told, untrained, tmp_path, capsys):
    assert analyse("patching", "--model", untrained, "--out", tmp_path, "--n", n) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "p (mean ≠ 0)" in out
    assert told in out
    assert ("can be significant" in out) == (n == 5)


def test_b14_one_cell_has_one_p(tmp_path, capsys):
    """On the page as in the record: the grid's p for every cell, and none beside the joint change."""
    assert analyse("ablation", "--model", "toy", "--out", tmp_path, "--report") == 0
    values = read(tmp_path / "ablation.json")
    result, joint = AblationResult.from_dict(values["ablation"]), JointAblation.from_dict(values["joint"])
    assert joint.chosen_from == result.mean().size
    for cell in values["cells"]:
        assert cell["p_mean_change"] == result.p_values()[cell["layer"], cell["head"]]
    grid, together = (view_of(one, "x").data["metrics"]["logit_difference"] for one in (result, joint))
    assert "p" in grid
    assert "p" not in together
    page = (tmp_path / "ablation.html").read_text(encoding="utf-8")
    told = f"chosen on these prompts, the largest of {result.mean().size} cells"
    assert told in page
    assert f"{told}: no p" in " ".join(capsys.readouterr().out.split())


@pytest.mark.smollm2
def test_b15_smollm2_s_l17h4_is_found_over_eight_pairs(tmp_path):
    assert analyse("patching", "--model", "smollm2", "--prompts", "ioi", "--out", tmp_path) == 0
    cells = {cell["cell"]: cell for cell in read(tmp_path / "patching.json")["cells"]}
    assert cells["L17H4"]["recovered"] == pytest.approx(0.33, abs=0.02)
    assert cells["L17H4"]["low"] > 1
    assert cells["L17H4"]["p_mean_change"] < 0.05


def test_a_sweep_that_cannot_be_estimated_says_why(untrained, tmp_path, capsys):
    assert analyse("patching", "--model", untrained, "--out", tmp_path, "--over", "head", "--n", 2) == 0
    values = read(tmp_path / "patching.json")
    assert values["attribution"] is None
    assert "patches several layers at once" in values["not_attributed"]
    shown = " ".join(capsys.readouterr().out.split())
    assert "estimate none:" in shown
    assert "every cell took a whole run" in shown


def test_cells_without_a_name_are_not_taken_out_together(untrained, tmp_path, capsys):
    assert analyse("ablation", "--model", untrained, "--out", tmp_path, "--site", "v", "--n", 2) == 0
    values = read(tmp_path / "ablation.json")
    assert values["joint"] is None
    assert "cells of v over layer, kv_head are not taken out together" in values["not_together"]
    assert "jointly not measured" in " ".join(capsys.readouterr().out.split())


def test_cells_are_named_as_ablate_reads_them() -> None:
    cfg = DecoderConfig(n_layers=2, d_model=16, n_heads=4, d_vocab=65, n_ctx=32)
    for (site, _), notation in NOTATION.items():
        written = notation.format(1, 2, 1, 0)
        (part,) = parse_parts(written, cfg, 8)
        assert (part.site.name, part.layer) == (site, 1)
    assert cell_name(("layer", "head"), (1, 2)) == NOTATION["z", ("layer", "head")].format(1, 2)
    assert cell_name(("head", "pos"), (1, 2)) == "all layers H1@2"
    assert cell_name(("layer", "head", "src_pos"), (1, 2, 3)) == "L1H2[·,3]"


@pytest.mark.parametrize("name", ["patching", "ablation"])
def test_an_interrupt_writes_what_is_finished(name, untrained, tmp_path, capsys, monkeypatch):
    from interp.interventions import resume

    computed = resume.Wavefront.run

    def interrupted(self, cells):
        if min(cell.number for cell in cells) > 0:
            raise KeyboardInterrupt
        return computed(self, cells)

    monkeypatch.setattr(resume.Wavefront, "run", interrupted)
    monkeypatch.setattr("interp.interventions.sweep._WAVE_TOKENS", 1)
    assert analyse(name, "--model", untrained, "--out", tmp_path, "--n", 2) == 1
    values = read(tmp_path / f"{name}.json")
    finished = [row for row in values["cells"] if row["change"] is not None]
    assert 0 < len(finished) < 8
    assert "the finished cells are kept" in " ".join(capsys.readouterr().out.split())


EDGES = ("--site", "pattern", "--over", "layer,head,dest_pos,src_pos", *PAIR, "--report")


@pytest.mark.parametrize("name", ["patching", "ablation"])
def test_a_grid_of_four_axes_is_written_and_said_to_have_no_figure(name, untrained, tmp_path, capsys):
    flags = ("--method", "zero") if name == "ablation" else ()
    assert analyse(name, "--model", untrained, "--out", tmp_path, *EDGES, *flags) == 0
    values = read(tmp_path / f"{name}.json")
    assert len(values["cells"]) == 2 * 4 * 10 * 10
    assert f"{name}_cells.png" not in values["figures"]
    assert [note for note in values["not_drawn"] if note.startswith(f"no {name}_cells.png: a grid")]
    assert "does not fit on a page" in " ".join(capsys.readouterr().out.split())
    written = {file.name for file in tmp_path.iterdir()}
    assert {f"{name}.json", *values["figures"]} <= written <= {f"{name}.json", f"{name}.html", *values["figures"]}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("patching", "interp.interventions.attribution_patching"),
        ("ablation", "interp.interventions.ablate"),
        ("patching", "interp.interventions.PatchingResult.plot"),
        ("ablation", "interp.interventions.JointAblation.plot"),
        ("patching", "interp.report.write_report"),
    ],
)
def test_an_interrupt_after_the_sweep_keeps_its_cells(name, where, untrained, tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    assert analyse(name, "--model", untrained, "--out", tmp_path, "--n", 2, "--report") == 1
    values = read(tmp_path / f"{name}.json")
    assert len(values["cells"]) == 8
    assert all(row["change"] is not None for row in values["cells"])
    assert "it was interrupted" in " ".join(capsys.readouterr().out.split())
    assert {f"{name}.json", *values["figures"]} <= {file.name for file in tmp_path.iterdir()}
    assert not list(tmp_path.glob(".*"))


def test_what_an_earlier_run_drew_goes_with_its_record(untrained, tmp_path):
    call = ("ablation", "--model", untrained, "--out", tmp_path, "--n", 2)
    analyse(*call, "--report")
    assert {"ablation_joint.png", "ablation.html"} <= {file.name for file in tmp_path.iterdir()}
    (tmp_path / "ablation_mine.txt").write_text("")
    analyse(*call, "--site", "v")
    assert {file.name for file in tmp_path.iterdir()} == {"ablation.json", "ablation_cells.png", "ablation_mine.txt"}


@pytest.mark.parametrize(
    ("together", "singles", "meaning"),
    [(-3.0, -2.0, "stand in"), (-1.0, -2.0, "in sequence"), (3.0, -2.0, "of opposite sign"), (0.0, 0.0, "in sequence")],
)
def test_what_a_joint_change_means_depends_on_its_sign(together, singles, meaning):
    joint = SimpleNamespace(
        joint_change=lambda: together, sum_of_singles=lambda: singles, parts=("L0H0", "L0H1"), chosen_from=8
    )
    assert meaning in ablation._said(joint)[0]


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--clean", "ABC"), "a pair of your own needs --clean, --corrupted, --answer, --wrong; --corrupted, --answer"),
        ((*PAIR[:2], "--corrupted", "ABC", *PAIR[4:]), "has 10 tokens and the corrupted one 4"),
        ((*PAIR[:4], "--answer", "DE", *PAIR[6:]), "'DE' is 2 tokens of this model"),
        (("--prompts", "ioi"), "0 of the 29 built-in names are single tokens"),
        (("--prompts", "riddles"), "Invalid value for '--prompts'"),
        (("--site", "zz"), "no site 'zz'"),
        (("--over", "layer,headd"), "z has no axis 'headd'; nearest: head"),
        (("--direction", "up"), "direction is 'up'"),
        (("--model", "no-such-model"), "no model 'no-such-model'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_on_disk(flags, line, untrained, tmp_path, capsys):
    assert analyse("patching", "--model", untrained, "--out", tmp_path / "out", *flags) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert line in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_method_that_is_not_is_one_line(untrained, tmp_path, capsys):
    assert analyse("ablation", "--model", untrained, "--out", tmp_path / "out", "--method", "half") == 2
    assert capsys.readouterr().err.startswith("error: method is 'half'")


@pytest.mark.parametrize("name", ["patching", "ablation"])
def test_piped_output_is_narrow_and_help_needs_no_torch(name, untrained, tmp_path):
    script = str(ROOT / "analyses" / f"{name}.py")
    command = [sys.executable, script, "--model", untrained, "--out", str(tmp_path), "--n", "2"]
    out = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True)
    assert out.stderr == ""
    lines = [line for line in out.stdout.splitlines() if untrained.split("/")[-1] not in line]
    assert max(map(len, lines)) <= 80
    code = f"import sys, analyses.{name}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.smollm2
def test_smollm2_answers_ioi_and_attribution_ranks_its_heads(tmp_path):
    """Must hold: the rank correlation of attribution with exact patching is reported on a real model."""
    assert analyse("patching", "--model", "smollm2", "--n", 2, "--out", tmp_path) == 0
    values = read(tmp_path / "patching.json")
    assert values["prompts"]["about"].startswith("indirect object identification")
    assert values["clean"] > 2
    assert values["corrupted"] < -2
    assert values["attribution"]["spearman"] > 0.7
    assert values["attribution"]["overlap"] >= 0.6
