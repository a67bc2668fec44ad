"""Is the package ``models`` that Python finds ours? A folder of that name in a user's project may be in the way."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def check() -> None:
    """Raise ImportError, in one line that names what is in the way, where ``models`` is another than ours."""
    found = importlib.util.find_spec("models")
    places = [] if found is None else [*(found.submodule_search_locations or []), found.origin or "nowhere"]
    if any((Path(place) / "protocol.py").is_file() and (Path(place) / "hooks").is_dir() for place in places):
        return
    where = places[0] if places else "nowhere"
    raise ImportError(
        f"residscope's package 'models' is hidden by {where}: rename that, or start Python where it is not on the path "
        "(a script's own folder is; `python -P script.py` leaves it out)"
    )


check()
