"""A report inside a notebook: the same page, in a frame of its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from interp.files import encodable
from interp.report.page import to_html
from interp.results import Result

LARGEST = 8_000_000  # characters of a page that a notebook is made to carry


class Shown:
    """A page that a notebook displays, with a table for viewers that run no scripts or drop frames."""

    def __init__(self, html: str, summary: str, height: int) -> None:
        self._html, self._summary, self._height = html, summary, height

    def _repr_html_(self) -> str:
        """Return the page in a frame, apart from the notebook's own styles and scripts, and the table, closed."""
        if len(self._html) > LARGEST:
            advice = "Too large for a notebook: write_report(result, 'page.html') makes a page of its own."
            return f"<p>{advice}</p>{self._summary}"
        style = f"width:100%;height:{self._height}px;border:0;border-radius:12px"
        frame = (
            f'<iframe title="residscope report" sandbox="allow-scripts" allow="clipboard-write *" style="{style}" '
            f'srcdoc="{escape(self._html)}"></iframe>'
        )
        return f"{frame}<details><summary>as a table</summary>{self._summary}</details>"


def show(results: Result | Sequence[Result], *, title: str | None = None, height: int = 640) -> Shown:
    """Return results as an interactive page for a notebook.

    Args:
        results: as for ``to_html``.
        title: of the page.
        height: of its frame, in pixels.
    """
    shown = list(results) if isinstance(results, Sequence) else [results]
    summary = encodable("".join(result.summary_html() for result in shown))
    return Shown(to_html(shown, title=title, framed=True), summary, height)
