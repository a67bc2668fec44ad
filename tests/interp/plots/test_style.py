"""One look: colours of a sign, resolution, and what a long prompt's grid leaves out."""

from __future__ import annotations

import io
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

import interp.report
from interp.plots import plot_cells, plot_increments, plot_joint_ablation, plot_lens_grid
from interp.plots.attribution import plot_logit_attribution, plot_sources
from interp.plots.style import CHANGE
from interp.readout import source_attribution
from tests.interp.report import examples


def warm(colour) -> bool:
    red, _, blue = to_rgb(colour)
    return red > blue


def bars(figure) -> list[tuple[float, object]]:
    patches = [patch for patch in figure.axes[0].patches if patch.get_width() and patch.get_height()]
    return [(sign(patch), patch.get_facecolor()[:3]) for patch in patches]


def sign(patch) -> float:
    return patch.get_height() if patch.get_width() == pytest.approx(0.8) else patch.get_width()


@pytest.mark.parametrize("dark", [False, True])
def test_d8_what_raises_is_orange_and_what_lowers_blue_everywhere(dark):
    script = (Path(interp.report.__file__).parent / "assets" / "colour.js").read_text()
    lists = [re.findall("#[0-9a-f]{6}", line) for line in script.splitlines() if "change: [" in line]
    assert tuple(lists[dark]) == CHANGE[dark]
    tokens = examples.model().to_tokens(examples.TEXT)
    sources = [source_attribution(examples.model(), tokens, head, 4) for head in ("L0H0", "L1H1")]
    grids = [plot_cells(examples.patching(), dark=dark)]
    grids += [plot_sources(sources, examples.model().to_str_tokens(tokens[0]), model="m", dark=dark)]
    for figure in grids:
        colours = figure.axes[0].images[0].cmap
        assert warm(colours(1.0))
        assert not warm(colours(0.0))
        assert to_hex(colours(0.0)) == CHANGE[dark][0]
    seen = set()
    for figure in (
        plot_logit_attribution(examples.attribution(), dark=dark),
        plot_increments(examples.increments(), dark=dark),
        plot_joint_ablation(examples.joint(), dark=dark),
    ):
        for value, colour in bars(figure):
            if len(set(np.round(colour, 2))) > 1:  # the sum is grey
                assert warm(colour) == (value > 0)
                seen.add(value > 0)
    assert seen == {True, False}


@pytest.mark.parametrize("dark", [False, True])
def test_d13_every_figure_has_one_resolution_and_no_label_over_its_title(dark):
    for figure in (plot_cells(examples.ablation(), dark=dark), plot_joint_ablation(examples.joint(), dark=dark)):
        file = io.BytesIO()
        figure.savefig(file)
        width, _ = struct.unpack(">II", file.getvalue()[16:24])
        assert width == pytest.approx(150 * figure.get_figwidth(), abs=2)
    figure = plot_joint_ablation(examples.joint(), dark=dark)
    figure.draw_without_rendering()
    label, title = figure.axes[0].yaxis.label.get_window_extent(), figure._suptitle.get_window_extent()
    assert not label.overlaps(title)
    assert label.y0 >= 0


def test_d13_a_lens_grid_of_the_last_tokens_says_so_with_positions():
    lens = examples.lens()
    many = 317

    def longer(values):
        return np.resize(values, (*values.shape[:2], many, *values.shape[3:])) if values is not None else None

    names = ("top_tokens", "top_probabilities", "entropy", "kl", "residual_norm", "target_logit", "target_probability")
    wide = {name: longer(getattr(lens, name)) for name in (*names, "target_rank")}
    tokens = (tuple(lens.tokens[0][i % 11] for i in range(many)),)
    extra = {"real": np.ones((1, many), bool), "stable_from": np.resize(lens.stable_from, (1, many))}
    figure = plot_lens_grid(replace(lens, tokens=tokens, **wide, **extra))
    assert "the last 24 of 317 tokens" in " ".join(figure._suptitle.get_text().split())
    labels = [label.get_text().split("\n")[0] for label in figure.axes[0].get_xticklabels()]
    assert labels == [str(i) for i in range(293, 317)]
    assert "of 11" not in plot_lens_grid(lens)._suptitle.get_text()
