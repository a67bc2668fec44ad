"""Results of sweeps are values: named, frozen, tested, saved, shown."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest

from interp.interventions.ablation import ablate, ablation_sweep
from interp.interventions.ablation_result import AblationResult, JointAblation
from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.cell_result import CellResult
from interp.interventions.patching_result import PatchingResult
from interp.metrics import LogitDifference, Probability
from interp.plots import plot_cells
from interp.report.views import view_of
from interp.statistics import bootstrap_interval, change_p_values
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.text import SymbolTokenizer

CFG = DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=65, n_ctx=16, init="torch")
CORRUPTED, CLEAN = ["abcdX", "efgh1", "ijkl2", "mnop3"], ["abqdX", "efrh1", "ijsl2", "mntp3"]
METRICS = {"difference": LogitDifference(1, 2), "p": Probability(3)}


@pytest.fixture(scope="module")
def model() -> HookedDecoder:
    model = HookedDecoder(CFG, tokenizer=SymbolTokenizer())
    model.name = "<b>toy</b>"
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def patched(model: HookedDecoder) -> PatchingResult:
    return activation_patching(model, CLEAN, CORRUPTED, METRICS)


@pytest.fixture(scope="module")
def ablated(model: HookedDecoder) -> AblationResult:
    return ablation_sweep(model, CLEAN, METRICS, frozen_attention=True)


@pytest.fixture(scope="module")
def joint(model: HookedDecoder) -> JointAblation:
    return ablate(model, CLEAN, METRICS, ["L0H1", "mlp1"], method="zero")


@pytest.fixture(params=["patched", "ablated", "joint"])
def result(request) -> CellResult:
    return request.getfixturevalue(request.param)


def test_a_saved_result_loads_as_the_same_value(result, tmp_path):
    loaded = type(result).load(result.save(tmp_path / "result.json"))
    assert loaded == result
    for name in result.metrics:
        np.testing.assert_array_equal(loaded.values[name], result.values[name])
        np.testing.assert_array_equal(loaded.into(name), result.into(name))
    assert loaded.prompts() == result.prompts()
    assert loaded.axes == result.axes


def test_another_kind_of_result_is_refused(patched, tmp_path):
    with pytest.raises(InputError, match="holds 'PatchingResult'"):
        AblationResult.load(patched.save(tmp_path / "result.json"))


@pytest.mark.parametrize("field", ["values", "units", "axes"])
def test_a_file_without_a_field_is_refused(result, field, tmp_path):
    values = result.to_dict()
    del values[field]
    (tmp_path / "x.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"holds a {type(result).__name__} without '{field}'"):
        type(result).load(tmp_path / "x.json")


@pytest.mark.parametrize("bad", [{"values": {"p": "abc"}}, {"values": 3}, {"units": 5}])
def test_a_file_with_a_field_that_cannot_be_read_is_refused(result, bad, tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(result.to_dict() | bad))
    with pytest.raises(InputError, match=f"holds a {type(result).__name__} with a field that cannot be read"):
        type(result).load(tmp_path / "x.json")


def test_copies_and_pickles_are_the_same_value(result):
    for again in (copy.deepcopy(result), pickle.loads(pickle.dumps(result)), dataclasses.replace(result)):
        assert again == result
        np.testing.assert_array_equal(again.values["p"], result.values["p"])


def test_a_result_cannot_be_changed(result):
    for mapping in (result.values, result.units, result.higher_is_better):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["p"] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.model = "other"
    for array in (result.values["p"], result.into("p")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_the_record_says_what_was_run(result):
    assert result.config["n_layers"] == 2
    assert {"torch", "residscope"} <= set(result.versions)
    assert result.units == {"difference": "logits", "p": "probability"}
    assert result.complete


def test_a_metric_is_named_where_there_are_several(result):
    with pytest.raises(InputError, match="name one of difference, p"):
        result.mean()
    with pytest.raises(InputError, match="no metric 'diference'; nearest: difference"):
        result.mean("diference")


def test_change_is_from_the_run_that_is_changed(patched, ablated, model):
    np.testing.assert_allclose(patched.change("p"), patched.mean("p") - patched.corrupted["p"].mean())
    noise = activation_patching(model, CLEAN, CORRUPTED, METRICS, direction="noise")
    np.testing.assert_allclose(noise.change("p"), noise.mean("p") - noise.clean["p"].mean())
    np.testing.assert_allclose(ablated.change("p"), ablated.mean("p") - ablated.intact["p"].mean())


def test_recovered_is_the_share_of_the_way_back(patched, model):
    clean, corrupted = patched.clean["p"].mean(), patched.corrupted["p"].mean()
    np.testing.assert_allclose(patched.recovered("p"), (patched.mean("p") - corrupted) / (clean - corrupted))
    swapped = activation_patching(model, CORRUPTED, CLEAN, METRICS)
    with pytest.raises(InputError, match=r"p is .* probability on the clean run .* the wrong way round"):
        swapped.recovered("p")


def test_the_frame_has_a_row_per_cell_with_its_evidence(result):
    frame = result.to_frame("p", intervals=True)
    assert len(frame) == result.mean("p").size
    assert list(frame.columns) == [*result.axes, "p", "change", "low", "high", "p_mean_change"]
    np.testing.assert_allclose(frame["p"], result.mean("p").ravel())
    low, high = bootstrap_interval(np.moveaxis(result.values["p"] - result.into("p"), -1, 0), seed=0)
    np.testing.assert_allclose(frame["low"], low.ravel())
    np.testing.assert_allclose(frame["high"], high.ravel())
    p_values = change_p_values(np.moveaxis(result.values["p"], -1, 0), result.into("p"))
    np.testing.assert_allclose(frame["p_mean_change"], p_values.ravel())
    assert "low" not in result.to_frame("p")


def test_b14_parts_chosen_on_the_same_prompts_have_intervals_but_no_p(joint):
    named = joint.to_frame("p", intervals=True)
    assert "p_mean_change" in named.columns
    chosen = dataclasses.replace(joint, chosen_from=4)
    with pytest.raises(InputError, match="chosen on these prompts, the largest of 4 cells"):
        chosen.p_values("p")
    assert list(chosen.to_frame("p", intervals=True).columns) == ["part", "p", "change", "low", "high"]
    assert "parts chosen on these prompts: largest of 4 cells" in chosen.headline()
    view = view_of(chosen, "x")
    assert "p" not in view.data["metrics"]["p"]
    assert "low" in view.data["metrics"]["p"]
    assert any("chosen on these prompts" in warning for warning in view.warnings)


def test_b14_magnitudes_have_no_p(model):
    magnitudes = attribution_patching(model, CLEAN, CORRUPTED, METRICS, site="z", grad_drop=True)
    with pytest.raises(InputError, match="no p-values: with grad_drop changes are magnitudes"):
        magnitudes.p_values("p")
    plot_cells(magnitudes, "p")


def test_b10_columns_say_what_is_tested(patched):
    view = view_of(patched, "x").data["metrics"]["p"]
    np.testing.assert_array_equal(view["p"], patched.p_values("p"))
    assert view["least_p"] == 1 / 8  # 4 examples
    assert "p_mean_change" in patched.to_frame("p", intervals=True).columns


def test_rows_are_where_they_say(patched):
    frame = patched.to_frame("p").set_index(["layer", "pos"])
    assert frame.loc[(1, 3), "p"] == patched.mean("p")[1, 3]


def test_parts_are_rows_of_their_own(joint):
    assert joint.to_frame("p")["part"].tolist() == ["L0H1", "mlp1"]
    html = joint.summary_html()
    assert f"{joint.joint_change('difference'):.4g}" in html
    assert "sum of singles" in html


def test_html_escapes_names_and_shows_the_largest_change(result):
    html = result.summary_html()
    assert "&lt;b&gt;toy" in html
    assert "<b>toy" not in html
    assert "difference" in html


def test_one_number_for_the_whole_batch_is_no_evidence(model):
    scalar = activation_patching(model, CLEAN, CORRUPTED, lambda logits: logits[:, -1, 0].mean())
    np.testing.assert_array_equal(scalar.values["custom"][..., 0], scalar.values["custom"][..., 1])
    for quantity in (scalar.interval, scalar.p_values):
        with pytest.raises(InputError, match="same value in every cell"):
            quantity()


def test_no_finished_cell_is_no_evidence(model):
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    nothing = activation_patching(model, CLEAN, CORRUPTED, Probability(1), site="z", over="layer", progress=stop)
    for quantity in (nothing.interval, nothing.p_values):
        with pytest.raises(InputError, match="no cell was finished, so there is nothing to resample"):
            quantity()


@pytest.mark.parametrize("options", [{"level": 95}, {"level": 1}, {"seed": -1}, {"seed": 1.5}])
def test_intervals_check_what_they_are_asked(patched, options):
    with pytest.raises(InputError, match=r"(level|seed) is"):
        patched.interval("p", **options)


def test_one_example_is_no_evidence(model):
    alone = activation_patching(model, CLEAN[0], CORRUPTED[0], Probability(1))
    with pytest.raises(InputError, match="need two examples or more"):
        alone.p_values()


def test_the_same_call_gives_the_same_result(model, patched):
    assert activation_patching(model, CLEAN, CORRUPTED, METRICS) == patched
