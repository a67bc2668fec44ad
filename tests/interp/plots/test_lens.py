"""Figures of a lens: what they show, for prompts of any length and tokens of any kind."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from interp.plots.lens import MOST, plot_lens_grid
from interp.plots.trajectory import plot_trajectory
from interp.readout.logit_lens import LensResult, logit_lens
from models.errors import InputError
from tests.configurations import CONFIGS, random_model, random_tokens

ODD = ["<bos>", " the", "\n", "\x00", "漢字", "🙂", "$x^2$", "_a_", "", "x" * 80, "שלום", "\ufffd"]


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file)
    return file.getvalue()


def lens(length: int = 12, **options: object) -> LensResult:
    model = random_model(CONFIGS["gpt2"].replace(n_ctx=64))
    found = logit_lens(model, random_tokens(model.cfg, 1, length), **options)
    return replace(found, tokens=(tuple(ODD[i % len(ODD)] for i in range(length)),))


@pytest.mark.parametrize("measure", ["probability", "entropy", "kl", "target", "rank"])
def test_a_grid_holds_the_measure_and_the_guesses(measure):
    result = lens(target=3)
    ax = plot_lens_grid(result, measure).axes[0]
    expected = {
        "probability": result.top_probabilities[..., 0],
        "entropy": result.entropy,
        "kl": result.kl,
        "target": result.target_probability,
        "rank": result.target_rank + 1,
    }[measure][:, 0]
    np.testing.assert_array_equal(ax.images[0].get_array(), expected)
    assert [text.get_text() for text in ax.texts] == [result.guess(row, 0, p)[0] for row in range(3) for p in range(12)]
    settled = [(line.get_xdata().mean(), line.get_ydata()[0] + 0.45) for line in ax.lines]
    np.testing.assert_allclose(settled, [(p, result.stable_from[0, p]) for p in range(12)], atol=1e-9)


@pytest.mark.parametrize("highest", [1, 4, 40, 50_000])
def test_ranks_are_whole_numbers_on_the_colour_bar(highest):
    result = lens(target=3)
    rank = np.zeros_like(result.target_rank)
    rank[0] = highest - 1
    figure = plot_lens_grid(replace(result, target_rank=rank), "rank")
    labels = [label.get_text() for label in figure.axes[-1].get_yticklabels()]
    assert labels
    assert labels[0] == "1"
    assert all(label.replace(",", "").isdigit() for label in labels)
    assert int(labels[-1].replace(",", "")) <= max(2, highest)


@pytest.mark.parametrize("length", [1, 12, 60])
@pytest.mark.parametrize("dark", [False, True])
def test_any_length_any_tokens_and_nothing_outside_the_page(length, dark):
    result = lens(length, target=3)
    for figure in (plot_lens_grid(result, dark=dark), plot_trajectory(result, dark=dark)):
        assert png(figure).startswith(b"\x89PNG")
        drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert 0 <= drawn.x0 <= drawn.x1 <= width
        assert 0 <= drawn.y0 <= drawn.y1 <= height


def test_a_long_prompt_shows_its_end():
    result = lens(60)
    assert plot_lens_grid(result).axes[0].images[0].get_array().shape == (3, MOST)


def test_a_trajectory_holds_the_curves():
    result = lens(target=3)
    chance, doubt, size = plot_trajectory(result, pos=5).axes
    np.testing.assert_array_equal(chance.lines[-2].get_ydata(), result.target_probability[:, 0, 5])
    np.testing.assert_array_equal(doubt.lines[0].get_ydata(), result.kl[:, 0, 5])
    np.testing.assert_array_equal(doubt.lines[1].get_ydata(), result.entropy[:, 0, 5])
    np.testing.assert_array_equal(size.lines[0].get_ydata(), result.residual_norm[:, 0, 5])
    guess = plot_trajectory(lens(), pos=5).axes[0].lines[0].get_ydata()
    assert guess[-1] == pytest.approx(lens().top_probabilities[-1, 0, 5, 0])


def test_a_target_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="measure 'rank' needs a target"):
        plot_lens_grid(lens(), "rank")
    with pytest.raises(InputError, match="measure is 'size'; expected one of probability"):
        plot_lens_grid(lens(), "size")


def test_places_that_are_not_there_are_refused():
    result = lens()
    assert plot_trajectory(result, pos=-1).texts[-1].get_text() == plot_trajectory(result).texts[-1].get_text()
    for draw in (plot_lens_grid, plot_trajectory):
        with pytest.raises(InputError, match="batch is 7; this result has 0 to 0"):
            draw(result, batch=7)
    with pytest.raises(InputError, match="pos is 12; this result has 0 to 11"):
        plot_trajectory(result, pos=12)
