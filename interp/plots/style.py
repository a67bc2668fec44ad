"""The look of every figure: a style of our own, a light and a dark one, and text that any font can show.

A figure is a ``matplotlib.figure.Figure``; the global state of pyplot is never touched. Artists take their style when
they are made, so a figure is made and drawn once inside ``styled_figure``, and may be saved anywhere.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from math import ceil
from pathlib import Path, PurePath
from textwrap import fill

import matplotlib
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font

FONT = "DejaVu Sans"  # comes with matplotlib, so a figure looks the same everywhere
FALLBACKS = (  # asked for what FONT lacks, where they are installed
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans Devanagari",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Nirmala UI",
    "Arial Unicode MS",
    "Noto Emoji",
    "Symbola",
    "Unifont",
)
# of changes, from the lowest over 0 to the highest: what lowers is blue, what raises orange, as on pages (colour.js)
CHANGE = {
    False: ("#174a8b", "#5b97d3", "#bcd6ee", "#f4f4f2", "#f7cda4", "#dd8436", "#963f06"),
    True: ("#a9d2fb", "#4e92d2", "#264b70", "#20272f", "#69401c", "#d18137", "#ffd0a0"),
}
_SHOWN = {" ": "\u2423", "\n": "\u21b5", "\t": "\u21e5"}


def style_file(dark: bool = False) -> Path:
    """Return the path of the style, for ``matplotlib.style.use`` or ``matplotlib.rc_context(fname=...)``."""
    return Path(__file__).with_name("residscope-dark.mplstyle" if dark else "residscope.mplstyle")


@contextmanager
def styled_figure(width: float, height: float, *, dark: bool = False) -> Iterator[Figure]:
    """Give a figure of ``width`` × ``height`` inches in our style; global settings are as before afterwards."""
    with matplotlib.rc_context(fname=style_file(dark)):
        matplotlib.rcParams["font.family"] = list(_fonts())
        figure = Figure(figsize=(width, height))
        yield figure
        figure.draw_without_rendering()  # tick labels are made, and take their style, when first drawn


def palette(index: int) -> str:
    """Return a colour of the style in force; ``"C1"`` itself would be looked up anew when the figure is saved."""
    return to_hex(f"C{index}")


def change_colours(dark: bool = False) -> Colormap:
    """Return the colours of a grid of changes whose middle is 0; missing cells are grey."""
    return LinearSegmentedColormap.from_list("change", CHANGE[dark]).with_extremes(bad="0.7" if not dark else "0.4")


def sign_colours(values: Sequence[float]) -> list[str]:
    """Return the colours of bars in the style in force: blue below 0, orange above."""
    return [palette(1) if value > 0 else palette(0) for value in values]


@cache
def _fonts() -> tuple[str, ...]:
    """Return our font and the installed fallbacks; naming absent ones would log a complaint for every text."""
    installed = {font.name for font in fontManager.ttflist}
    return (FONT, *(name for name in FALLBACKS if name in installed))


@cache
def _glyphs() -> frozenset[int]:
    return frozenset().union(*(get_font(findfont(name)).get_charmap() for name in _fonts()))


def _has_ink(character: str) -> bool:
    return character in _SHOWN or (unicodedata.category(character)[0] not in "CZ" and ord(character) in _glyphs())


def printable(token: str, longest: int = 12) -> str:
    """Return a token as a label: spaces and line ends visible, what no font has by its code point, cut to a length.

    >>> printable(" the"), printable("a\\n"), printable("internationalisation"), printable("\\x07")
    ('␣the', 'a↵', 'internation…', 'U+0007')
    """
    text = ""
    for drawn, characters in groupby(token[: longest + 1], _has_ink):
        if drawn:
            text += "".join(_SHOWN.get(character, character) for character in characters)
        else:
            text += "U" + "".join(f"+{ord(character):04X}" for character in characters)
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


def model_title(model: str) -> str:
    """Return a model's name for a title: of a path or a hub id the last part.

    >>> model_title("toy"), model_title("/data/models/toy.safetensors"), model_title("HuggingFaceTB/SmolLM2-135M")
    ('toy', 'toy.safetensors', 'SmolLM2-135M')
    """
    return printable(PurePath(model).name or model, longest=32)


def entitle(figure: Figure, text: str) -> None:
    """Write a figure's title at its left, on as many lines as its width asks for."""
    figure.suptitle(fill(text, max(20, int(9 * figure.get_figwidth()))), x=0.02, ha="left")


def tick_step(count: int, inches: float, points: float = 9.0) -> int:
    """Return k so that labels at every k-th of ``count`` places along ``inches`` stand ``points`` apart or more.

    >>> tick_step(12, 3.0), tick_step(101, 3.0)
    (1, 5)
    """
    return max(1, ceil(count * points / (72 * inches)))
