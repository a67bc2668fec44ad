"""Outputs that appear whole or not at all, and never in the place of fuller ones."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from analyses import stopping
from models.errors import InputError

UNFINISHED = "unfinished"  # the folder for it, where a fuller record stands in its place
HOW = ("command", "figures", "not_drawn")  # entries of a record that do not change what its page shows


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Give a temporary folder whose files move to ``out`` when the body ends well; otherwise nothing is left behind.

    The folder is made before the body runs, so that hours of work never meet an ``out`` that cannot be written. It
    lies on the same file system, so that each file appears at once; they all do, or none. Files in ``out`` of other
    names stay, but for the figures and the page of an earlier record that is replaced by another one: they would show
    what the new one does not say.

    Raises:
        InputError: ``out`` cannot be written, or has a folder where a file is to go.
    """
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise InputError(f"cannot write to {out}: {existing} is a file; give --out a folder")
    stopping.begin()
    with stopping.stops_held():
        try:
            temporary = Path(tempfile.mkdtemp(prefix=".residscope-", dir=existing))
        except OSError as error:
            text = f"cannot write to {out}: {error.strerror} ({existing}); give --out another folder"
            raise InputError(text) from None
        try:
            with stopping.stops_held(False):
                stopping.heed()
                yield temporary
                if not stopping.holding():
                    stopping.heed()
            new = sorted(file.relative_to(temporary) for file in temporary.rglob("*") if file.is_file())
            outdated = {name for file in new for name in _outdated(file, out, temporary)} - {*new}
            _move(new, out, temporary)
            for name in sorted(outdated):
                (out / name).unlink(missing_ok=True)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def set_beside(temporary: Path, out: Path, record: str) -> Path:
    """Give an unfinished record (or one of weights that do not hold) a place where nothing fuller is, with its figures.

    The files lie in a staging folder. The place is ``out`` itself where it has no such record, or an unfinished one
    with no more cells and figures; else ``out/unfinished``, ``out/unfinished-2`` and so on.

    Returns:
        The folder where the files will be.
    """
    files = [file for file in temporary.iterdir() if file.is_file()]
    for number in count(0):
        name = "" if number == 0 else UNFINISHED if number == 1 else f"{UNFINISHED}-{number}"
        old = _read(out / name / record)
        if old is None or (not _finished(old) and _fullness(old) <= _fullness(_read(temporary / record) or {})):
            break
    for file in files if name else []:
        (temporary / name).mkdir(exist_ok=True)
        os.replace(file, temporary / name / file.name)
    return out / name


def _finished(record: Mapping[str, Any]) -> bool:
    cells, missing = record.get("cells"), [why for name, why in record.items() if name.startswith("not_")]
    unfinished = isinstance(cells, list) and any(row.get("change") is None for row in cells)
    return record.get("holds") is not False and not unfinished and "interrupted" not in str(missing)


def _fullness(record: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many cells are finished, and how many figures show them."""
    cells, figures = record.get("cells"), record.get("figures")
    finished = [row for row in cells if row.get("change") is not None] if isinstance(cells, list) else []
    return len(finished), len(figures) if isinstance(figures, list) else 0


def _move(files: Sequence[Path], out: Path, aside: Path) -> None:
    """Move files into ``out``; where one cannot, or at an interrupt, put back what was there (copied ``aside``)."""
    for file in files:
        if (out / file).is_dir():
            raise InputError(f"cannot write {out / file}: it is a folder; move it, or give --out another folder")
    out.mkdir(parents=True, exist_ok=True)
    before: dict[Path, Path | None] = {}
    for file in files:
        target = out / file
        target.parent.mkdir(parents=True, exist_ok=True)
        before[target] = Path(shutil.copy2(target, aside / f"{file}.before")) if target.exists() else None
    try:
        for file in files:
            os.replace(aside / file, out / file)
    except BaseException:
        for target, old in before.items():
            if old is not None:
                os.replace(old, target)
            else:
                target.unlink(missing_ok=True)
        raise


def _read(record: Path) -> dict[str, Any] | None:
    """Return an earlier run's record; None where there is none."""
    if record.suffix != ".json":
        return None
    try:
        values = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) and "analysis" in values else None


def _outdated(record: Path, out: Path, temporary: Path) -> set[Path]:
    """Return the files that an earlier run wrote beside its record and that do not fit the new one."""
    old, new = _read(out / record), _read(temporary / record)
    if old is None or (new is not None and _without(old) == _without(new)):
        return set()
    figures = old.get("figures")
    named = [name for name in figures if isinstance(name, str)] if isinstance(figures, list) else []
    ours = {name for name in named if name.startswith(record.stem) and Path(name).name == name}
    return {record.with_name(name) for name in ours | {f"{record.stem}.html"}}


def _without(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in HOW}
