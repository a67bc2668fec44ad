"""Figures of sweeps: zero in the middle, tokens on the axis, dots where the evidence is, for grids of any shape."""

from __future__ import annotations

import dataclasses
import io
from itertools import pairwise

import numpy as np
import pytest

from interp.interventions.ablation import ablate
from interp.interventions.activation_patching import activation_patching
from interp.metrics import LogitDifference
from interp.plots import plot_cells, plot_joint_ablation
from models import DecoderConfig, HookedDecoder
from models.errors import InputError
from models.text import SymbolTokenizer

CFG = DecoderConfig(n_layers=2, d_model=8, n_heads=2, d_vocab=65, n_ctx=16, init="torch")
CLEAN, CORRUPTED = ["abcd", "efgh", "ijkl"], ["abXd", "efYh", "ijZl"]


@pytest.fixture(scope="module")
def model() -> HookedDecoder:
    return HookedDecoder(CFG, tokenizer=SymbolTokenizer()).requires_grad_(False)


def found(model, site="resid_pre", over=("layer", "pos"), **options):
    return activation_patching(model, CLEAN, CORRUPTED, LogitDifference(1, 2), site=site, over=over, **options)


def png(figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file)
    return file.getvalue()


def test_a_heatmap_holds_the_changes_with_zero_in_the_middle(model):
    result = found(model)
    (image,) = plot_cells(result).axes[0].images
    np.testing.assert_array_equal(image.get_array(), result.change())
    low, high = image.get_clim()
    assert low == -high
    assert high == np.abs(result.change()).max()


def test_positions_are_named_by_their_tokens_both_where_they_differ(model):
    ax = plot_cells(found(model)).axes[0]
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["<bos> 0", "a 1", "b 2", "c/X 3", "d 4"]
    assert "first of 3" in ax.get_xlabel()
    assert ax.get_ylabel() == "layer"


@pytest.mark.parametrize(
    ("site", "over", "panels"),
    [
        ("resid_pre", ("pos",), 1),
        ("z", ("layer",), 1),
        ("z", ("layer", "head"), 1),
        ("z", ("head", "layer"), 1),
        ("z", ("layer", "pos", "head"), 2),
        ("pattern", ("head", "dest_pos", "src_pos"), 2),
        ("mlp_post", ("layer", "neuron"), 1),
    ],
)
@pytest.mark.parametrize("dark", [False, True])
def test_grids_of_up_to_three_axes_are_drawn(model, site, over, panels, dark):
    figure = found(model, site, over).plot(dark=dark)
    drawn = [ax for ax in figure.axes if ax.images or ax.patches]
    assert len([ax for ax in drawn if ax.get_xlabel()]) == panels
    assert png(figure).startswith(b"\x89PNG")


def wide(result, shape):
    """Return the result with as many cells as asked for, their changes random."""
    values = np.random.default_rng(0).standard_normal((*shape, 1)) + result.into()
    tokens = (tuple("ab"[i % 2] for i in range(shape[-1])),)
    return dataclasses.replace(
        result, values={"logit_difference": values}, clean_tokens=tokens, corrupted_tokens=tokens
    )


@pytest.mark.parametrize("shape", [(1, 64), (2, 64), (2, 700), (64, 12), (1, 1)])
@pytest.mark.parametrize("over", [("layer", "head"), ("layer", "pos")])
def test_a_grid_of_any_shape_fits_on_a_page_and_its_labels_stand_apart(model, shape, over):
    site = "z" if "head" in over else "resid_pre"
    figure = plot_cells(
        wide(activation_patching(model, "abcd", "abXd", LogitDifference(1, 2), site=site, over=over), shape)
    )
    width, height = figure.get_size_inches()
    assert width <= 16
    assert height <= 16
    drawn = figure.get_tightbbox()
    assert drawn.x0 >= 0
    assert drawn.x1 <= width
    ax = figure.axes[0]
    for labels, axis in ((ax.get_xticklabels(), 0), (ax.get_yticklabels(), 1)):
        ends = [
            label.get_window_extent().intervalx if axis == 0 else label.get_window_extent().intervaly
            for label in labels
        ]
        boxes = sorted(end.tolist() for end in ends)
        assert all(left[1] + 3 <= right[0] for left, right in pairwise(boxes))


def test_a_long_title_takes_nothing_from_the_grid(model):
    result = found(model)
    short, long = (plot_cells(dataclasses.replace(result, model=name)) for name in ("m", "a-long-name " * 30))
    assert long.get_figheight() > short.get_figheight()
    drawn = long._suptitle.get_window_extent()
    assert drawn.x1 <= long.bbox.x1
    assert drawn.y0 >= long.axes[0].get_window_extent().y1


def test_four_axes_do_not_fit_on_a_page(model):
    result = found(model, "pattern", ("layer", "head", "dest_pos", "src_pos"))
    with pytest.raises(InputError, match="does not fit on a page"):
        result.plot()


def test_significant_cells_have_dots_and_others_none(model):
    result = found(model)
    into = np.tile(result.into(), 2)  # six examples: with fewer nothing is significant
    values = np.broadcast_to(into + 0.2 * np.tile([1.0, -1.0, 0.05], 2), (*result.mean().shape, 6)).copy()
    values[1, 3] = into + 1.0 + np.tile([-1e-3, 0.0, 1e-3], 2)
    of_six = {"corrupted": {"logit_difference": into}, "values": {"logit_difference": values}}
    certain = dataclasses.replace(result, **of_six)
    figure = plot_cells(certain)
    (dots,) = figure.axes[0].collections
    assert dots.get_offsets().tolist() == [[3, 1]]  # position across, layer down
    assert "p (mean change ≠ 0) < .05" in figure._suptitle.get_text()


def test_unfinished_cells_are_left_grey_and_the_title_says_so(model):
    result = found(model)
    values = result.values["logit_difference"].copy()
    values[1] = np.nan
    part = dataclasses.replace(result, values={"logit_difference": values}, complete=False)
    figure = plot_cells(part)
    (image,) = figure.axes[0].images
    assert np.ma.getmaskarray(image.get_array())[1].all()
    assert "interrupted" in figure._suptitle.get_text()


def test_bars_carry_intervals_where_there_are_examples(model):
    several = found(model, over=("pos",)).plot().axes[0]
    alone = activation_patching(model, "abcd", "abXd", LogitDifference(1, 2), over=("pos",)).plot().axes[0]
    assert len(several.containers) > len(alone.containers)


def test_a_set_is_drawn_beside_its_sum_and_joint(model):
    result = ablate(model, CLEAN, LogitDifference(1, 2), ["L0H0", "L1H1", "mlp0"])
    figure = plot_joint_ablation(result)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    np.testing.assert_allclose(heights, [*result.change(), result.sum_of_singles(), result.joint_change()])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["L0H0", "L1H1", "mlp0", "sum of singles", "joint"]
    assert png(result.plot(dark=True)).startswith(b"\x89PNG")
