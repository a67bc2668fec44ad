"""The figure of the phase change: what its lines hold, and what it refuses."""

import io
from math import log

import pytest

from interp.plots.phase_change import plot_phase_change
from models.errors import InputError

HISTORY = [
    {"step": 10 * i, "repeat_loss": 4 - 0.3 * i, "first_half_loss": 4.2, "previous_token": i / 20, "induction": i / 12}
    for i in range(11)
]


def lines(ax):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.get_lines()}


def test_the_lines_are_the_history():
    losses, scores = plot_phase_change(HISTORY, model="toy", uniform_loss=log(64), phases=(60, 40)).axes
    steps = list(range(0, 110, 10))
    assert lines(losses)["on the repeat"] == (steps, [row["repeat_loss"] for row in HISTORY])
    assert lines(losses)["on the first copy"] == (steps, [4.2] * 11)
    assert lines(losses)["uniform guess"][1] == [log(64)] * 2
    assert lines(scores)["best induction head"] == (steps, [row["induction"] for row in HISTORY])
    assert lines(scores)["best previous-token head"] == (steps, [row["previous_token"] for row in HISTORY])


@pytest.mark.parametrize(("phases", "borders"), [((), 0), ((100,), 0), ((60, 40), 1), ((20, 30, 50), 2)])
def test_borders_between_phases_are_marked(phases, borders):
    losses, scores = plot_phase_change(HISTORY, model="toy", uniform_loss=log(64), phases=phases).axes
    assert len(losses.get_lines()) == 3 + borders
    assert len(scores.get_lines()) == 2 + borders
    assert [text.get_text() for text in losses.texts] == [f"phase {i + 2}" for i in range(borders)]


@pytest.mark.parametrize("dpi", [100, 200])
def test_it_is_drawn_without_overlap(dpi):
    figure = plot_phase_change(HISTORY, model="toy-rope", uniform_loss=log(64), phases=(60, 40))
    figure.savefig(io.BytesIO(), dpi=dpi)
    for ax in figure.axes:
        legend, plot = ax.get_legend().get_window_extent(), ax.get_window_extent()
        assert legend.x0 >= plot.x1
        assert legend.x1 <= figure.bbox.x1


def test_the_dark_figure_is_dark():
    figure = plot_phase_change(HISTORY, model="toy", uniform_loss=log(64), dark=True)
    assert sum(figure.get_facecolor()[:3]) < 1


@pytest.mark.parametrize("history", [[], HISTORY[:1], [{"step": 0}, {"step": 1}]])
def test_a_history_without_the_figures_is_refused(history):
    with pytest.raises(InputError, match=f"each with step, repeat_loss.*got {len(history)} rows"):
        plot_phase_change(history, model="toy", uniform_loss=log(64))
