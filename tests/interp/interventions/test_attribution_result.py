"""Attributions set beside exact patching, and kept in a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.attribution_result import AttributionComparison, AttributionResult, compared
from interp.metrics import LogitDifference, LogProbability
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from tests.configurations import CONFIGS, random_model
from tests.interp.interventions.test_attribution_patching import METRIC, prompts


def test_comparison_of_known_numbers(tmp_path) -> None:
    exact = np.array([[4.0, -3.0], [0.5, 0.0]])
    estimated = np.array([[2.0, -1.0], [3.0, 0.1]])
    found = compared(
        estimated, exact, metric="logit_difference", unit="logits", cells=("a", "b", "c", "d"), title="t", k=2
    )
    assert found.spearman == pytest.approx(0.8)  # ranks 4 1 3 2 against 3 1 4 2
    assert found.spearman_magnitude == pytest.approx(0.4)  # 4 3 2 1 against 3 2 4 1
    assert found.pearson == pytest.approx(np.corrcoef(estimated.ravel(), exact.ravel())[0, 1])
    assert found.overlap == 0.5
    assert "1 of the 2 largest cells found" in str(found)
    assert AttributionComparison.load(found.save(tmp_path / "comparison.json")) == found
    figure = found.plot()
    assert {text.get_text() for text in figure.axes[0].texts} == {"a", "b", "c", "d"}
    (points,) = (line for line in figure.axes[0].lines if line.get_marker() == ".")
    np.testing.assert_array_equal(points.get_xydata(), np.stack([exact.ravel(), estimated.ravel()], axis=1))
    for bad, message in ((0, "k is 0; expected a whole number, 1 to 4"), (5, "k is 5")):
        with pytest.raises(InputError, match=message):
            compared(estimated, exact, metric="m", unit="", cells=("a", "b", "c", "d"), title="t", k=bad)
    with pytest.raises(InputError, match="every cell has the same exact effect, 1"):
        compared(estimated, np.ones(4), metric="m", unit="", cells=("a", "b", "c", "d"), title="t", k=1)


def test_only_the_same_sweep_is_compared() -> None:
    model = random_model(CONFIGS["llama"])
    clean, corrupted = prompts(model)
    exact = activation_patching(model, clean, corrupted, METRIC, site="z", over=("layer", "head"))
    estimated = attribution_patching(model, clean, corrupted, METRIC)
    assert estimated.compare(exact).cells[:2] == ("L0H0", "L0H1")
    assert (estimated.compare(exact).k, estimated.compare(exact, k=2).k) == (4, 2)
    for options, message in (
        ({"site": "q"}, "differ in site: 'q' here, 'z' there"),
        ({"over": ("layer", "pos", "head")}, "differ in axes"),
        ({"direction": "noise"}, "differ in direction"),
    ):
        with pytest.raises(InputError, match=message):
            attribution_patching(model, clean, corrupted, METRIC, **options).compare(exact)
    with pytest.raises(InputError, match="differ in clean_tokens"):
        attribution_patching(model, corrupted, corrupted, METRIC).compare(exact)
    with pytest.raises(InputError, match="no metric"):
        attribution_patching(model, clean, corrupted, LogProbability(3)).compare(exact)
    dropped = attribution_patching(model, clean, corrupted, METRIC, grad_drop=True)
    assert (dropped.compare(exact).exact >= 0).all()
    means = activation_patching(model, clean, corrupted, METRIC, site="z", over=("layer", "head"), per_example=False)
    with pytest.raises(InputError, match="patch with per_example=True"):
        dropped.compare(means)


def test_the_result_survives_a_file(tmp_path) -> None:
    model = random_model(CONFIGS["llama"])
    result = attribution_patching(model, *prompts(model), METRIC)
    assert AttributionResult.load(result.save(tmp_path / "attribution.json")) == result
    assert "z attribution of HookedDecoder, denoise" in result.summary_html()


def test_a_config_with_mlps_and_norms_is_only_estimated() -> None:
    cfg = DecoderConfig(n_layers=3, d_model=16, n_heads=4, d_vocab=11, n_ctx=12)
    model = HookedDecoder(cfg, seed=1)
    exact = activation_patching(model, *prompts(model), METRIC, site="z", over=("layer", "head"))
    comparison = attribution_patching(model, *prompts(model), METRIC).compare(exact)
    assert comparison.spearman > 0.9
    assert not np.array_equal(comparison.estimated, comparison.exact)


def test_another_sweep_is_named_before_it_is_compared() -> None:
    model = random_model(CONFIGS["llama"])
    pair = prompts(model)
    estimated = attribution_patching(model, *pair, METRIC)
    exact = activation_patching(model, *pair, METRIC, site="z", over=("layer", "head"))
    with pytest.raises(InputError, match="got a AttributionResult; compare with the PatchingResult"):
        estimated.compare(estimated)
    other = activation_patching(model, *pair, LogitDifference(1, 2), site="z", over=("layer", "head"))
    with pytest.raises(
        InputError, match=r"logit_difference on the (clean|corrupted) run is .* here and .* there, so that it is"
    ):
        estimated.compare(other)
    masked = activation_patching(
        model, *pair, METRIC, site="z", over=("layer", "head"),
        attention_mask=torch.tensor([[False, True, True, True]] * 2),
    )  # fmt: skip
    with pytest.raises(InputError, match="not the same metric or mask"):
        estimated.compare(masked)
    for k in (2.5, "x", True, 0, 9):
        with pytest.raises(InputError, match=r"k is .*; expected a whole number, 1 to 8 \(the number of cells\)"):
            estimated.compare(exact, k=k)


def test_other_groups_and_unfinished_cells_are_refused() -> None:
    model = random_model(CONFIGS["llama"])
    options = {"site": "mlp_post", "over": ("layer", "neuron")}
    estimated = attribution_patching(model, *prompts(model), METRIC, neuron_groups=3, **options)
    exact = activation_patching(model, *prompts(model), METRIC, neuron_groups=4, **options)
    with pytest.raises(InputError, match=r"the grids are \(2, 3\) here and \(2, 4\) there"):
        estimated.compare(exact)
    with_nan = activation_patching(model, *prompts(model), METRIC, neuron_groups=3, **options)
    values = with_nan.values["logit_difference"].copy()
    values[0, 0] = np.nan
    with pytest.raises(InputError, match="logit_difference is NaN in some cells"):
        estimated.compare(replace(with_nan, values={"logit_difference": values}))


def test_half_precision_is_the_same_sweep() -> None:
    model = random_model(CONFIGS["llama"], dtype=torch.bfloat16)
    exact = activation_patching(model, *prompts(model), METRIC, site="z", over=("layer", "head"))
    assert attribution_patching(model, *prompts(model), METRIC).compare(exact).k == 4
