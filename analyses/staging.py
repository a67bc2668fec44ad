"""Outputs that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from models.errors import InputError


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Give a temporary folder whose files move to ``out`` when the body ends well; otherwise nothing is left behind.

    The folder is made before the body runs, so that hours of work never meet an ``out`` that cannot be written. It
    lies on the same file system, so that each file appears at once; they all do, or none. Files in ``out`` of other
    names stay, but for the figures and the page of an earlier record that is replaced: they would show what the new one
    does not say.

    Raises:
        InputError: ``out`` cannot be written, or has a folder where a file is to go.
    """
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise InputError(f"cannot write to {out}: {existing} is a file; give --out a folder")
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".residscope-", dir=existing))
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror} ({existing}); give --out another folder") from None
    try:
        yield temporary
        new = sorted(temporary.iterdir())
        outdated = {name for file in new for name in _written_with(out / file.name)} - {file.name for file in new}
        _move(new, out, temporary)
        for name in sorted(outdated):
            (out / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(files: Sequence[Path], out: Path, aside: Path) -> None:
    """Move files into ``out``; where one cannot, or at an interrupt, put back what was there (copied ``aside``)."""
    for file in files:
        if (out / file.name).is_dir():
            raise InputError(f"cannot write {out / file.name}: it is a folder; move it, or give --out another folder")
    out.mkdir(parents=True, exist_ok=True)
    before: dict[Path, Path | None] = {}
    for file in files:
        target = out / file.name
        before[target] = Path(shutil.copy2(target, aside / f"{file.name}.before")) if target.exists() else None
    try:
        for file in files:
            os.replace(file, out / file.name)
    except BaseException:
        for target, old in before.items():
            if old is not None:
                os.replace(old, target)
            else:
                target.unlink(missing_ok=True)
        raise


def _written_with(record: Path) -> set[str]:
    """Return the names of the files that an earlier run wrote beside its record; none where this is no record."""
    if record.suffix != ".json":
        return set()
    try:
        values = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(values, dict) or "analysis" not in values:
        return set()
    figures = values.get("figures")
    named = [name for name in figures if isinstance(name, str)] if isinstance(figures, list) else []
    ours = {name for name in named if name.startswith(record.stem) and Path(name).name == name}
    return ours | {f"{record.stem}.html"}
