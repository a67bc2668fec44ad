"""What comes after a sweep, none of which may cost its cells: neither Ctrl-C nor a grid without a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from analyses import stopping

if TYPE_CHECKING:
    from interp.interventions.cell_result import CellResult
    from interp.results import Result

T = TypeVar("T")
INTERRUPTED = "it was interrupted"


def unless_interrupted(stage: Callable[[], T]) -> T | str:
    """Return what a stage gives; after Ctrl-C, now or just before, the reason why there is nothing."""
    try:
        with stopping.stops_held(False):
            stopping.heed()
            return stage()
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, Exception) and not stopping.asked():  # else an import that broke off
            raise
        stopping.answered()
        return INTERRUPTED


def keep_what_is_finished(result: CellResult) -> None:
    """Take note that an interrupt ended a sweep.

    Raises:
        KeyboardInterrupt: there is nothing to keep, because no cell is finished.
    """
    if result.complete:
        return
    if np.isnan(result.change()).all():
        raise KeyboardInterrupt
    stopping.answered()


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

    file = f"{analysis}.html"

    def write() -> None:
        from interp.report import write_report

        write_report(list(results), folder / file, **options)

    why = _tried(write, folder / file)
    return ([], [f"no {file}: {why}"]) if why else ([file], [])


def _tried(stage: Callable[[], object], file: Path) -> str:
    """Run a stage that writes a file and returns none; where it fails, leave no part of the file and return why."""
    from models.errors import InputError

    try:
        why = unless_interrupted(stage)
    except InputError as error:
        why = str(error)
    if not isinstance(why, str):
        return ""
    file.unlink(missing_ok=True)
    return why
