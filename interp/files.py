"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.errors import InputError


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Give a path to write to, which becomes ``path`` once the block has ended well; missing folders are made.

    Raises:
        InputError: ``path`` is a folder, or lies in what is none.
    """
    given, path = path, Path(path)
    if not path.name or path.is_dir():
        raise InputError(f"cannot write to {str(given)!r}, which is a folder; give the name of a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"cannot write to {str(given)!r}: {error.filename} is a file; give another folder") from None
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def encodable(text: str) -> str:
    """Return a text that UTF-8 can write: lone halves of surrogate pairs become U+FFFD.

    A command line with bytes that are no UTF-8 gives such a text, and so does a cut in the middle of an emoji.

    >>> encodable("caf\\u00e9 \\ud83d")
    'café �'
    """
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
