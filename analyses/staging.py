"""Outputs that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import InputError


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Give a temporary folder whose files move to ``out`` when the body ends well; otherwise nothing is left behind.

    The folder is made before the body runs, so that hours of work never meet an ``out`` that cannot be written. It
    lies on the same file system, so that each file appears at once. Files in ``out`` of other names stay, but for the
    figures and the page of an earlier record that is replaced: they would show what the new one does not say.

    Raises:
        InputError: ``out`` cannot be written.
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
        out.mkdir(parents=True, exist_ok=True)
        new = sorted(temporary.iterdir())
        outdated = {name for file in new for name in _written_with(out / file.name)} - {file.name for file in new}
        for file in new:
            os.replace(file, out / file.name)
        for name in sorted(outdated):
            (out / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
