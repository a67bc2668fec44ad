"""A report inside a notebook: the same page, in a frame of its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from interp.report.page import to_html
from interp.report.views import Showable


class Shown:
    """A page that a notebook displays."""

    def __init__(self, html: str, height: int) -> None:
        self._html, self._height = html, height

    def _repr_html_(self) -> str:
        """Return the page in a frame, apart from the notebook's own styles and scripts."""
        style = f"width:100%;height:{self._height}px;border:0;border-radius:12px"
        page = escape(self._html)
        return f'<iframe title="residscope report" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def show(results: Showable | Sequence[Showable], *, title: str | None = None, height: int = 720) -> Shown:
    """Return results as an interactive page for a notebook.

    Args:
        results: as for ``to_html``.
        title: of the page.
        height: of its frame, in pixels.
    """
    return Shown(to_html(results, title=title), height)
