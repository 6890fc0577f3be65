"""How a table fits a terminal: cells break between words alone, and no figure is cut or broken from its unit.

A table that is too wide has its cells broken over lines; where that is not enough it is turned, so that its rows stand
side by side, and where that is not enough either each row becomes a list of its cells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forerun.tables import Cell, Table, Value, cell_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

PADDING = 2
"""Spaces after a column; a table with headings has one more between two columns."""
TALLEST = 5
"""Lines of the tallest cell of a table that is broken over lines."""
MOST_SIDE_BY_SIDE = 6
"""Rows of a table up to which it may be turned."""
_AFTER_FIGURE = re.compile(r"(?:[munk]?s|min|h|d|%|[kMGT]?i?B|[kM]?[WJ]|[a-z]+/s|x)(?:\.\.|[,;:)]|$)")
"""What belongs to the figure before it: a unit, alone or at the end of an interval."""
_STYLES = {"": "", "good": "green", "bad": "red", "faint": "dim", "strong": "bold"}


def pieces(text: str) -> list[str]:
    """The parts of a text between which a line may break: words, and figures with their units.

    >>> pieces("p99 TPOT 17.5 ms 137..153 ms")
    ['p99', 'TPOT', '17.5 ms', '137..153 ms']
    """
    parts: list[str] = []
    for word in text.split():
        if parts and parts[-1][-1].isdigit() and _AFTER_FIGURE.match(word):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts


def lines_of(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` characters; only a piece that is longer by itself is cut."""
    lines: list[str] = []
    for piece in pieces(text):
        if lines and len(lines[-1]) + 1 + len(piece) <= width:
            lines[-1] += f" {piece}"
        else:
            lines += [piece[at : at + width] for at in range(0, len(piece), width)]
    return lines or [""]


def fitted(table: Table, width: int) -> RichTable:
    """The table for a terminal of ``width`` characters, titled, with a line on rows that it leaves out."""
    shown = list(table.rows[: table.shown])
    for layout in (table, _turned(table, shown)):
        if layout is None:
            continue
        rows = shown if layout is table else layout.rows
        texts = [
            [_heading(column), *(cell_text(row[index]) for row in rows)] for index, column in enumerate(layout.columns)
        ]
        least = [max(len(piece) for text in column for piece in pieces(text) or [""]) for column in texts]
        widest = [max(map(len, column)) for column in texts]
        room = width - (PADDING + layout.headed) * (len(texts) - 1)
        if sum(least) > room:
            continue
        widths = _shared(least, widest, room)
        tallest = max(len(lines_of(text, size)) for column, size in zip(texts, widths, strict=True) for text in column)
        if tallest <= TALLEST or not layout.headed:
            return _drawn(layout, rows, widths, table.hidden)
    return _records(table, shown, width)


def _heading(column: str) -> str:
    return " ".join(column.split())


def _shared(least: Sequence[int], widest: Sequence[int], room: int) -> list[int]:
    """Widths of columns: the least of each, then what the first needs to be unbroken, then the others alike."""
    widths = list(least)
    left = room - sum(widths)
    first = min(left, widest[0] - widths[0])
    widths[0] += first
    left -= first
    while left > 0 and (short := [index for index in range(len(widths)) if widths[index] < widest[index]]):
        for index in short[:left]:
            widths[index] += 1
        left -= len(short[:left])
    return widths


def _turned(table: Table, rows: Sequence[Sequence[Value]]) -> Table | None:
    """The table with a column for each of its rows; None where that makes no sense."""
    if not table.headed or not 0 < len(rows) <= MOST_SIDE_BY_SIDE:
        return None
    columns = (table.columns[0], *(cell_text(row[0]) for row in rows))
    turned = [[column, *(row[index] for row in rows)] for index, column in enumerate(table.columns) if index]
    return Table(table.title, columns, turned)


def _records(table: Table, rows: Sequence[Sequence[Value]], width: int) -> RichTable:
    """Each row as a list of its cells, below its label."""
    names = [_heading(column) for column in table.columns]
    first = min(max(map(len, names)), width // 2)
    drawn = _empty(table, False, table.hidden)
    for size in (first, width - first - PADDING):
        drawn.add_column(no_wrap=True, width=size)
    for number, row in enumerate(rows):
        if number:
            drawn.add_row()
        for index, (name, cell) in enumerate(zip(names, row, strict=True)):
            label = Cell(cell_text(cell), tone="strong") if index == 0 else cell
            drawn.add_row(_text(name, first), _text(label, width - first - PADDING))
    return drawn


def _drawn(table: Table, rows: Sequence[Sequence[Value]], widths: Sequence[int], hidden: int) -> RichTable:
    drawn = _empty(table, table.headed, hidden)
    for index, (column, size) in enumerate(zip(table.columns, widths, strict=True)):
        left = not table.headed or table.words(index)
        justify: Any = "left" if left else "right"
        drawn.add_column(_text(_heading(column), size), justify=justify, no_wrap=True, width=size)
    for row in rows:
        drawn.add_row(*(_text(cell, size) for cell, size in zip(row, widths, strict=True)))
    return drawn


def _empty(table: Table, headed: bool, hidden: int) -> RichTable:
    from rich import box
    from rich.table import Table as RichTable

    return RichTable(
        title=table.title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD if headed else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, PADDING, 0, 0),
        show_header=headed,
        caption=f"and {hidden:,} more: --json FILE has them all" if hidden else None,
        caption_justify="left",
    )


def _text(cell: Value, width: int) -> Text:
    """A cell in lines of at most ``width`` characters; its aside is dim."""
    from rich.text import Text

    style, strong = ("", len(cell_text(cell))) if not isinstance(cell, Cell) else (_STYLES[cell.tone], len(cell.text))
    text, passed = Text(), 0
    for number, line in enumerate(lines_of(cell_text(cell), width)):
        text.append("\n" if number else "")
        dim = max(0, min(len(line), strong - passed))
        text.append(line[:dim], style=style).append(line[dim:], style="dim not bold" if isinstance(cell, Cell) else "")
        passed += len(line) + 1
    return text
