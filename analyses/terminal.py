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
LEAST = 16  # cells of a paragraph, in however narrow a window


def say(console: Console, label: str, text: str, style: str) -> None:
    """Print a paragraph that hangs beside its label."""
    lines = Text(" ".join(text.split())).wrap(console, max(LEAST, console.width - MARGIN))
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
    """Print where the files are and what took how long."""
    console = Console(highlight=False, emoji=False)
    say(console, "written", f"{out}/: {', '.join(names)}", "cyan")
    parts = ", ".join(f"{stage} {took:.1f}" for stage, took in seconds.items())
    say(console, "time", f"{sum(seconds.values()):.1f} s ({parts})", "cyan")


def visible(token: str) -> str:
    """Return a token without spaces or control characters."""
    return "".join(c if c.isprintable() and c != " " else "␣" if c == " " else "□" for c in token) or "□"
