"""Figures of attributions: what the sum is of, and names of points that do not cover each other."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import numpy as np
import pytest

from interp.plots import plot_attribution_scatter, plot_logit_attribution
from interp.readout.logit_attribution import logit_attribution
from tests.interp.report import examples


def test_a_difference_of_logits_is_called_one():
    tokens = examples.model().to_tokens(examples.TEXT)
    for wrong, said in ((None, "sum: the logit"), (7, "sum: the logit difference")):
        ax = plot_logit_attribution(logit_attribution(examples.model(), tokens, 4, wrong)).axes[0]
        assert ax.get_yticklabels()[-1].get_text() == said
        assert ("difference" in ax.get_xlabel()) == (wrong is not None)


def test_a_dash_is_no_difference():
    found = dataclasses.replace(examples.attribution(), answer=("' - '", "' - '"))
    assert plot_logit_attribution(found).axes[0].get_yticklabels()[-1].get_text() == "sum: the logit"


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0])
def test_names_of_points_do_not_cover_each_other(spread):
    noise = spread * np.random.default_rng(0).standard_normal((2, 40))
    cells = tuple(f"layer {i}, a long name" for i in range(40))
    made = dataclasses.replace(examples.comparison(), cells=cells, exact=1 + noise[0], estimated=1 + noise[1])
    figure = plot_attribution_scatter(made)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert boxes
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
