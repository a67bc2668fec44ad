"""What analyses print with: paragraphs that hang beside a label, and the files written.

It fits the window, 80 columns where there is none, and stays plain text where it is piped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

MARGIN = 9
WRITTEN = {" ": "␣", "\n": "↵", "\t": "⇥"}  # as on pages and in figures
LONGEST = 48  # tokens of a prompt that are shown
LEAST = 16  # cells of a paragraph, in however narrow a window


def say(console: Console, label: str, text: str, style: str) -> None:
    """Print a paragraph that hangs beside its label."""
    lines = Text(clean(" ".join(text.split()))).wrap(console, max(LEAST, console.width - MARGIN))
    paragraph = Text(f"{label:<{MARGIN}}" + ("\n" + " " * MARGIN).join(line.plain.rstrip() for line in lines))
    paragraph.stylize(style, 0, len(label))
    console.print(paragraph, soft_wrap=True)


def model_line(name: str, config: Mapping[str, Any], n_parameters: int, precision: str) -> str:
    """Return what a model is, in one sentence."""
    grouped = "" if config["n_kv_heads"] == config["n_heads"] else f" ({config['n_kv_heads']} key/value heads)"
    return (
        f"{name}: {config['n_layers']} layers × {config['n_heads']} heads{grouped}, {config['positions']} positions, "
        f"{n_parameters:,} parameters, {precision}"
    )


def show_files(out: Path, names: Sequence[str], seconds: Mapping[str, float]) -> None:
    """Print where the files are, how large the pages among them, and what took how long."""
    console = Console(highlight=False, emoji=False)
    say(console, "written", f"{out}/: {', '.join(name + _size(out / name) for name in names)}", "cyan")
    parts = ", ".join(f"{stage} {took:.1f}" for stage, took in seconds.items())
    say(console, "time", f"{sum(seconds.values()):.1f} s ({parts})", "cyan")


def _size(file: Path) -> str:
    """Return the size of a page in brackets; nothing for other files."""
    if file.suffix != ".html" or not file.exists():
        return ""
    size = file.stat().st_size
    return f" ({size / 1e6:.1f} MB)" if size >= 1e5 else f" ({size / 1e3:.0f} kB)"


def clean(text: str) -> str:
    """Return a text without what moves the cursor or turns the direction of writing: a box stands for it.

    >>> clean("a\x1b[31m \u202eb")
    'a□[31m □b'
    """
    return "".join(c if c.isprintable() else "□" for c in text)


def visible(token: str, longest: int | None = None) -> str:
    """Return a token without spaces or control characters, cut to a length where one is given.

    >>> visible(" a\n\t\x07"), visible(" internationally", longest=8)
    ('␣a↵⇥□', '␣intern…')
    """
    text = clean("".join(WRITTEN.get(c, c) for c in token)) or "□"
    return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"


def prompt_line(tokens: Sequence[str], between: str = " ") -> str:
    """Return a prompt's tokens on one line, of a long one the beginning and the end.

    >>> prompt_line(["a"] * 100)[:12], prompt_line(["a", " b"], between="")
    ('a a a a a a ', 'a␣b')
    """
    shown = [visible(token) for token in tokens]
    if len(shown) > LONGEST:
        left_out = f" … ({len(shown) - LONGEST} more) … "
        return between.join(shown[: LONGEST // 2]) + left_out + between.join(shown[-LONGEST // 2 :])
    return between.join(shown)
