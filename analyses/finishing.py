"""What comes after a sweep, none of which may cost its cells: neither Ctrl-C nor a grid without a figure."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from interp.results import Result

T = TypeVar("T")
INTERRUPTED = "it was interrupted"


def unless_interrupted(stage: Callable[[], T]) -> T | str:
    """Return what a stage gives; after Ctrl-C the reason why there is nothing."""
    try:
        return stage()
    except KeyboardInterrupt:
        return INTERRUPTED


def draw(results: Mapping[str, Result], folder: Path, analysis: str) -> tuple[list[str], list[str]]:
    """Draw results into ``<analysis>_<name>.png``.

    Returns:
        The files' names, and for each result without a figure why there is none.
    """
    files, missing = [], []
    for name, result in results.items():
        file = f"{analysis}_{name}.png"

        def save(result: Result = result, file: str = file) -> None:
            result.plot().savefig(folder / file)

        why = _tried(save, folder / file)
        if why:
            missing.append(f"no {file}: {why}")
        else:
            files.append(file)
    return files, missing


def write_page(results: Sequence[Result], folder: Path, analysis: str, **options: Any) -> tuple[list[str], list[str]]:
    """Write ``<analysis>.html``; return as ``draw`` does."""
    from interp.report import write_report

    file = f"{analysis}.html"
    why = _tried(lambda: write_report(list(results), folder / file, **options), folder / file)
    return ([], [f"no {file}: {why}"]) if why else ([file], [])


def _tried(stage: Callable[[], Any], file: Path) -> str:
    """Run a stage that writes a file; where it does not, leave no part of the file and return why."""
    from models.errors import InputError

    try:
        stage()
    except KeyboardInterrupt:
        file.unlink(missing_ok=True)
        return INTERRUPTED
    except InputError as error:
        file.unlink(missing_ok=True)
        return str(error)
    return ""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no Ctrl-C end the writing of a record."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
