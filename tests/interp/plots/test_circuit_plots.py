"""Figures of circuits and attributions: what they show, on models of any size, and with nothing found."""

from __future__ import annotations

import io
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from interp.plots import plot_composition, plot_links, plot_logit_attribution, plot_positional, plot_sources
from interp.readout import LogitAttribution, SourceAttribution
from interp.sites import Head
from interp.weights import InductionCircuit, Link
from models.errors import InputError
from tests.analyses.synthetic import synthetic_report

PLOTS = [plot_composition, plot_links, plot_positional]


def circuit(n_layers: int = 2, n_heads: int = 4, n_links: int = 3, model: str = "toy") -> InductionCircuit:
    """Return a circuit made by hand: L0H0 feeds heads of the last layer, confirmed but for the last link."""
    rng = np.random.default_rng(0)
    last = n_layers - 1
    later = [Head(last, h) for h in range(min(n_heads, n_links))]
    links = tuple(
        Link(
            earlier=Head(0, 0),
            later=head,
            route="K",
            composition=0.25,
            null_mean=0.125,
            null_sd=0.005,
            effect=0.9 - 0.1 * i,
            interval=(0.85 - 0.1 * i, 0.95 - 0.1 * i),
            share=0.9,
            null=0.01,
            null_heads=(Head(0, 1),),
            p_above_null=0.01,
            whole=0.95 - 0.1 * i,
            whole_null=0.0,
            verdict=i < len(later) - 1,
        )
        for i, head in enumerate(later)
    )
    grid = rng.uniform(0.05, 0.3, (n_layers, n_heads))
    grid[last] = np.nan
    pattern = np.tril(rng.uniform(0.1, 1, (40, 40)))
    return InductionCircuit(
        report=synthetic_report(n_layers, n_heads, heads={"induction": [tuple(h) for h in later]}, model=model),
        links=links,
        weights=(),
        copying_others=((0.0, 0.1), (-0.9, 0.1)),
        composition={str(head): grid for head in later},
        positional={"L0H0": pattern / pattern.sum(-1, keepdims=True)} if links else {},
        dimension_null=0.125,
        settings={},
    )


def png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file)
    return file.getvalue()


def attribution(n: int = 30, batch: int = 2) -> LogitAttribution:
    values = torch.linspace(-1, 2, n)[:, None].expand(-1, batch).contiguous()
    labels = tuple(f"L0N{i}" for i in range(n))
    return LogitAttribution(
        tokens=(("a", "b"),) * batch,
        answer=("'A' - 'B'",) * batch,
        labels=labels,
        values=values,
        logit=values.sum(0),
        columns=torch.ones(batch, dtype=torch.long),
        by="neuron",
        model="toy",
        config={},
        versions={},
    )


def source(head: int = 0, n: int = 5) -> SourceAttribution:
    return SourceAttribution(Head(1, head), torch.linspace(-1, 1, n)[None] * (head + 1), torch.full((1, n), 1 / n))


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("shape", [(2, 4, 3), (30, 9, 9), (12, 12, 2), (2, 1, 1), (2, 4, 0)])
def test_every_size_is_drawn_inside_its_page(plot, shape):
    figure = plot(circuit(*shape, model="/a/folder/" + "a-model-with-a-very-long-name" * 3))
    assert png(figure).startswith(b"\x89PNG")
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert 0 <= drawn.x0 <= drawn.x1 <= width
    assert 0 <= drawn.y0 <= drawn.y1 <= height


def test_composition_panels_hold_the_scores_and_frame_what_is_confirmed():
    given = circuit()
    figure = plot_composition(given)
    panels = {ax.get_title(loc="left"): ax for ax in figure.axes if ax.get_title(loc="left").startswith("into")}
    assert set(panels) == {"into L1H0", "into L1H1", "into L1H2"}
    (image,) = panels["into L1H0"].images
    np.testing.assert_array_equal(image.get_array(), given.composition["L1H0"][:1])
    framed = {name: sum(isinstance(p, Rectangle) for p in ax.patches) for name, ax in panels.items()}
    assert framed == {"into L1H0": 1, "into L1H1": 1, "into L1H2": 0}


def test_links_stand_at_their_effects():
    ax = plot_links(circuit()).axes[0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["L0H0 → L1H0.k", "L0H0 → L1H1.k", "L0H0 → L1H2.k"]
    dots = [
        line for line in ax.lines if line.get_marker() == "o" and line.get_markersize() == 5 and len(line.get_xdata())
    ]
    assert [line.get_xdata()[0] for line in dots] == pytest.approx([0.9, 0.8, 0.7])
    assert len({line.get_color() for line in dots}) == 2, "the link that is not confirmed is grey"


def test_many_links_are_cut_and_said_so():
    given = circuit()
    many = replace(given, links=given.links * 20)
    assert "the first 40 of 60" in plot_links(many).get_suptitle()


def test_nothing_found_says_so():
    texts = [text.get_text() for plot in PLOTS for text in plot(circuit(2, 4, 0)).texts]
    assert any("no induction heads" in text for text in texts)
    assert any("no candidate links" in text for text in texts)
    assert any("no previous-token heads" in text for text in texts)


def test_bars_are_the_largest_parts_and_add_up():
    ax = plot_logit_attribution(attribution(), top=5).axes[0]
    names = [label.get_text() for label in ax.get_yticklabels()]
    widths = [bar.get_width() for bar in ax.patches]
    assert names[:2] == ["L0N29", "L0N28"]
    assert names[5:] == ["25 others", "sum: the logit difference"]
    assert sum(widths[:-1]) == pytest.approx(widths[-1], abs=1e-4)


def test_sources_are_drawn_at_their_tokens():
    figure = plot_sources([source(0), source(1)], ["<bos>", " the", "\n", "漢", "$x$"], model="toy")
    ax = figure.axes[0]
    np.testing.assert_allclose(ax.images[0].get_array()[1], np.linspace(-2, 2, 5), atol=1e-6)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["<bos>", "␣the", "↵", "U+6F22", "$x$"]
    png(figure)
    with pytest.raises(InputError, match="4 tokens for attributions over 5 positions"):
        plot_sources([source()], ["a"] * 4, model="toy")
    with pytest.raises(InputError, match="no heads to draw"):
        plot_sources([], ["a"], model="toy")


def test_dark_figures_are_dark_and_settings_are_restored():
    before = dict(matplotlib.rcParams)
    figures = [plot(circuit(), dark=True) for plot in PLOTS]
    figures.append(plot_logit_attribution(attribution(), dark=True))
    figures.append(plot_sources([source()], ["a"] * 5, model="toy", dark=True))
    assert dict(matplotlib.rcParams) == before
    assert all(sum(figure.get_facecolor()[:3]) < 0.5 for figure in figures)
