"""What analyses print with: paragraphs that hang beside a label, tables without lines, the files written.

It fits 80 columns, and stays plain text where it is piped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

MARGIN = 9


def say(console: Console, label: str, text: str, style: str) -> None:
    """Print a paragraph that hangs beside its label."""
    width = max(40, console.width)
    lines = fill(
        text, width, initial_indent=f"{label:<{MARGIN}}", subsequent_indent=" " * MARGIN, break_on_hyphens=False
    )
    paragraph = Text(lines)
    paragraph.stylize(style, 0, len(label))
    console.print(paragraph)


def model_line(name: str, config: Mapping[str, Any], n_parameters: int, precision: str) -> str:
    """Return what a model is, in one sentence."""
    grouped = "" if config["n_kv_heads"] == config["n_heads"] else f" ({config['n_kv_heads']} key/value heads)"
    return (
        f"{name}: {config['n_layers']} layers × {config['n_heads']} heads{grouped}, {config['positions']} positions, "
        f"{n_parameters:,} parameters, {precision}"
    )


def show_files(out: Path, names: Sequence[str], seconds: Mapping[str, float]) -> None:
    """Print where the files are and what took how long."""
    console = Console(highlight=False, emoji=False)
    say(console, "written", f"{out}/: {', '.join(names)}", "cyan")
    parts = ", ".join(f"{stage} {took:.1f}" for stage, took in seconds.items())
    say(console, "time", f"{sum(seconds.values()):.1f} s ({parts})", "cyan")


def new_table(*headers: str) -> Table:
    """Return an empty table without lines; a header that ends in ``>`` has its column to the right."""
    lines = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for header in headers:
        lines.add_column(header.rstrip(">"), justify="right" if header.endswith(">") else "left", no_wrap=True)
    return lines


def visible(token: str) -> str:
    """Return a token without spaces or control characters."""
    return "".join(c if c.isprintable() and c != " " else "␣" if c == " " else "□" for c in token) or "□"
