"""Tables in a terminal: rows in columns without lines, of which a narrow window shows fewer, never a part of a cell."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

GAP = 2  # cells between two columns
LEAST = 16  # cells in which a last column of words may still be read


class Table:
    """Rows of texts under headers.

    Where all columns together are wider than the window, those that are spare are left out, and a line says which. If
    that is not enough, words of a last column that stands to the left go on below; a number or a name is never cut.

    Args:
        headers: names of the columns; one that ends in ``>`` stands to the right.
        spare: names of columns that may be left out where the table has them, the first to go first.
    """

    def __init__(self, *headers: str, spare: Sequence[str] = ()) -> None:
        self._names = [header.rstrip(">") for header in headers]
        self._right = [header.endswith(">") for header in headers]
        self._spare = [name for name in spare if name in self._names]
        self._rows: list[tuple[tuple[str, ...], str]] = []

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """Append a row, with a text for each header."""
        assert len(cells) == len(self._names)
        self._rows.append((cells, style or ""))

    def show(self, console: Console) -> None:
        """Print the table."""
        kept = list(range(len(self._names)))
        hidden = []
        for name in self._spare:
            if self._width(kept) > console.width:
                kept.remove(self._names.index(name))
                hidden.append(name)
        widths = [self._widest(column) for column in kept]
        if not self._right[kept[-1]]:
            widths[-1] = max(LEAST, min(widths[-1], console.width - self._width(kept[:-1]) - GAP))
        for cells, style in [(tuple(self._names), "dim"), *self._rows]:
            for line in self._lines(console, [cells[column] for column in kept], kept, widths):
                console.print(Text(line, style=style), soft_wrap=True)
        if hidden:
            window = f"the window has {console.width} columns, too few for these; the record has all"
            console.print(Text(f"not shown: {', '.join(hidden)} ({window})", style="dim"))

    def _widest(self, column: int) -> int:
        return max(map(cell_len, [self._names[column], *(cells[column] for cells, _ in self._rows)]))

    def _width(self, columns: Sequence[int]) -> int:
        return sum(map(self._widest, columns)) + GAP * (len(columns) - 1)

    def _lines(self, console: Console, cells: Sequence[str], kept: Sequence[int], widths: Sequence[int]) -> list[str]:
        """Return a row as one line, or as several where its last cell goes on below."""
        last = [line.plain for line in Text(cells[-1]).wrap(console, widths[-1])] if cells[-1] else [""]
        last = last if not self._right[kept[-1]] else [cells[-1]]
        before = sum(widths[:-1]) + GAP * (len(widths) - 1)
        first = [
            _padded(cell, width, right=self._right[column])
            for cell, column, width in zip([*cells[:-1], last[0]], kept, widths, strict=True)
        ]
        return [(" " * GAP).join(first).rstrip(), *(" " * before + line.rstrip() for line in last[1:])]


def _padded(cell: str, width: int, *, right: bool) -> str:
    room = " " * (width - cell_len(cell))
    return room + cell if right else cell + room
