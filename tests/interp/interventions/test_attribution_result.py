"""Attributions set beside exact patching, and kept in a file."""

from __future__ import annotations

import numpy as np
import pytest

from interp.interventions.activation_patching import activation_patching
from interp.interventions.attribution_patching import attribution_patching
from interp.interventions.attribution_result import AttributionComparison, AttributionResult, compared
from interp.metrics import LogProbability
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
    for bad, message in ((0, "k is 0; expected 1 to 4"), (5, "k is 5")):
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
