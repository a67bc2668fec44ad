"""Outputs that appear whole or not at all."""

from __future__ import annotations

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
    lies on the same file system, so that each file appears at once. Files in ``out`` of other names stay.

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
        for file in sorted(temporary.iterdir()):
            os.replace(file, out / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
