"""What every analysis shares on the command line: its flags, and one clear line for whatever goes wrong.

Exit codes: 0 done, 2 bad input (the line says what was got, what was expected, what to change), 130 interrupted,
143 terminated.
Nothing here imports torch until an analysis does, so that ``--help`` answers at once.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from analyses import stopping


class Dtype(StrEnum):
    """Precisions of the weights."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Model = Annotated[
    str,
    typer.Option(
        help="toy, toy-attn, toy-rope, smollm2, a Hugging Face id such as gpt2, a local folder, or a .gguf file.",
        show_default=True,
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything that is drawn; the same seed gives the same numbers.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the JSON record and the figures.", show_default="out/<analysis>")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, ...")]
Precision = Annotated[Dtype, typer.Option("--dtype", help="Precision of the weights.")]
Top = Annotated[int, typer.Option(min=1, help="Rows to list in each table.")]
Report = Annotated[bool, typer.Option("--report", help="Also write <out>/<analysis>.html: a page to touch, offline.")]


def run(app: typer.Typer, args: Sequence[str] | None = None) -> int:
    """Run an analysis and return its exit code.

    Args:
        app: the analysis.
        args: its arguments; by default those of the command line.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without × or █ shows a question mark, not a traceback
    with _stops_remembered():
        try:
            with stopping.stops_held(False):
                code = app(args, standalone_mode=False) or 0
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as error:
            code = 2
            if not stopping.asked():  # else an import that broke off
                line = _one_line(error)
                if line is None:
                    raise
                print(f"error: {line}", file=sys.stderr)
        if stopping.asked():
            code = 128 + stopping.asked()
    if code == 130:
        print(stopping.LINE, file=sys.stderr)
    return code


@contextmanager
def _stops_remembered() -> Iterator[None]:
    """Remember stops (see ``analyses.stopping``), and let none that Python could not raise leave its own message.

    Afterwards all is as before; at the end of a script, a stop that comes too late is none.
    """
    before = {number: signal.getsignal(number) for number in stopping.STOPS}
    complain = sys.unraisablehook

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is not KeyboardInterrupt:  # that is remembered
            complain(lost)

    stopping.answered()
    stopping.install()
    sys.unraisablehook = unraisable
    try:
        with stopping.stops_held():
            yield
    finally:
        sys.unraisablehook = complain
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stopping.in_script() else handler)


def _one_line(error: Exception) -> str | None:
    """Return the message of bad input on one line, None for a mistake of ours, which deserves its traceback."""
    if hasattr(error, "format_message"):  # a usage error of click's, of which newer typers carry their own copy
        text = error.format_message()
        return f"{_joined(text)} (--help lists the flags)"
    from models.errors import ResidscopeError

    refusals = (ResidscopeError, OSError)  # ours, and those of the machine: a full disk, a folder in a file's place
    return _joined(str(error)) if isinstance(error, refusals) else None


def _joined(text: str) -> str:
    return " ".join(text.split())


def command_line(name: str, flags: Mapping[str, object]) -> str:
    """Return the command that does the same again; flags that are None or switched off are left out.

    >>> command_line("patching", {"model": "toy", "clean": None, "answer": " Mary", "report": True})
    "python analyses/patching.py --model toy --answer ' Mary' --report"
    """
    given = {flag: value for flag, value in flags.items() if value is not None and value is not False}
    written = [f"--{flag}" if value is True else f"--{flag} {shlex.quote(str(value))}" for flag, value in given.items()]
    return " ".join([f"python analyses/{name}.py", *written])


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show what is being done, how much of it is done and how long is left, on stderr while a person is watching.

    Gives a function to call with a description and the share that is done, 0 to 1.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        stage = ""

        def tick(description: str, share: float) -> None:
            nonlocal stage
            if not stopping.holding():
                stopping.heed()
            if description != stage:
                stage = description
                progress.reset(task)  # each stage has its own estimate of the time left
            progress.update(task, description=description, completed=share)

        yield tick
