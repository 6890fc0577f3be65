"""Tables as data, with renderers for a terminal, Markdown and HTML, and formatting of numbers."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forerun.text_layout import lines_of, pieces, shared_widths

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table as RichTable
    from rich.text import Text

ABSENT = "-"
PADDING = 2
"""Number of spaces after a column in a terminal; tables with headings have one more between columns."""
TALLEST = 5
"""Maximum lines of a cell in a table whose cells are wrapped."""
MOST_SIDE_BY_SIDE = 6
"""Maximum rows of a table that may be transposed."""
TEXT_COLUMNS = 1000
"""Width in characters within which ``print(table)`` does not wrap lines."""
MANY_COLUMNS = 5
"""Minimum columns of a table that a page sets more tightly, with asides below their numbers."""
LONG_WORDS = 28
"""Minimum characters of a cell that may be wrapped on a page."""
HOURS_FROM_S = 7200.0
"""Minimum seconds of a duration that is written in hours."""
_FIGURE = re.compile(r"[-+<>~]?\s*\$?[.\d]")
"""Pattern of the beginning of a cell with a number."""
_STYLES = {"": "", "good": "green", "bad": "red", "faint": "dim", "strong": "bold"}
Tone = Literal["", "good", "bad", "faint", "strong"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A displayed value: text, secondary text after it, and tone (colour).

    >>> Cell("1.284", aside="1.251..1.320", tone="good", value=1.284)
    Cell(text='1.284', aside='1.251..1.320', tone='good', value=1.284, detail='')
    """

    text: str
    aside: str = ""
    """Secondary text after the main text, such as an interval."""
    tone: Tone = ""
    """Tone: ``good`` or ``bad`` if the value is certainly good or bad; ``faint`` for a value that does not count."""
    value: object = None
    """Value of the cell in a data frame; default: the text."""
    detail: str = ""
    """Text after the aside that only ``--full`` and Markdown show, and a page where there is an aside."""

    @property
    def after(self) -> str:
        """Secondary text after the main text."""
        return f"{self.aside} {self.detail}".strip()


Value = Cell | str | int | float | None
"""Value of a cell: numbers are written by :func:`number`, None as ``-``."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table as data, built once by studies and runs and rendered for each output format.

    ``rich()`` is for a terminal, ``markdown()`` for a file, ``html()`` for a page (a ``<table>`` in a ``div.scroll``
    without its title, which belongs to the card or heading around it), ``to_arrow()`` for a data frame. The first
    column labels the rows; further columns with numbers are aligned right, columns of words left.

    >>> print(Table("Latency (ms)", ("", "mean", "p99"), [("TTFT", 12.5, 80.25)]).markdown())
    |   | mean | p99 |
    | --- | ---: | ---: |
    | TTFT | 12.5 | 80.25 |
    """

    title: str
    columns: Sequence[str]
    """Column headings; if all are empty, the table has no header."""
    rows: Sequence[Sequence[Value]]
    shown: int | None = None
    """Number of rows that a terminal and the expanded part of a page show; None for all. Data frames have all."""
    name: str = ""
    """Name of the table in its result: ``result.table("candidates")``."""
    details: Container[str] = ()
    """Column headings and row labels that a terminal shows only with ``--full``."""

    @property
    def headed(self) -> bool:
        """True if the columns have headings."""
        return any(self.columns)

    @property
    def hidden(self) -> int:
        """Number of rows beyond ``shown``."""
        return 0 if self.shown is None else max(0, len(self.rows) - self.shown)

    def brief(self) -> Table:
        """Copy of the table without ``details``, as a terminal shows it without ``--full``."""
        kept = [index for index, column in enumerate(self.columns) if index == 0 or column not in self.details]
        rows = [[_brief(row[index]) for index in kept] for row in self.rows if _cell_words(row[0]) not in self.details]
        return replace(self, columns=[self.columns[index] for index in kept], rows=rows, details=())

    def words(self, index: int) -> bool:
        """True if a column is aligned left: it has only words, or a text that may be wrapped."""
        known = [text for row in self.rows if (text := cell_text(row[index])) != ABSENT]
        words = bool(known) and not any(map(_FIGURE.match, known))
        return index == 0 or words or any(len(text) > LONG_WORDS for text in known)

    def rich(self, width: int = TEXT_COLUMNS) -> RichTable:
        """Table for a terminal of ``width`` characters; no number and no label is cut.

        The cells of a table that is too wide are wrapped; if that is not enough, the table is transposed, and if that
        is not enough either, each row becomes a list of its cells.
        """
        shown = self.rows[: self.shown]
        for layout in (self, self._turned()):
            if layout is None:
                continue
            rows = shown if layout is self else layout.rows
            texts = [
                [_heading(column)] + [cell_text(row[i]) for row in rows] for i, column in enumerate(layout.columns)
            ]
            least = [max(len(piece) for text in column for piece in pieces(text) or [""]) for column in texts]
            room = width - (PADDING + layout.headed) * (len(texts) - 1)
            if sum(least) > room:
                continue
            widths = shared_widths(least, [max(map(len, column)) for column in texts], room)
            lines = (len(lines_of(text, size)) for column, size in zip(texts, widths, strict=True) for text in column)
            if max(lines) <= TALLEST or not layout.headed:
                return _drawn(layout, rows, widths, self.hidden)
        return _records(self, shown, width)

    def _turned(self) -> Table | None:
        """The transposed table; None if transposing makes no sense."""
        rows = self.rows[: self.shown]
        if not self.headed or not 0 < len(rows) <= MOST_SIDE_BY_SIDE:
            return None
        columns = (self.columns[0], *(cell_text(row[0]) for row in rows))
        turned = [[column, *(row[index] for row in rows)] for index, column in enumerate(self.columns) if index]
        return Table(self.title, columns, turned)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=TEXT_COLUMNS, color_system=None)
        with console.capture() as captured:
            console.print(self.rich())
        return captured.get()

    def _repr_html_(self) -> str:
        return self.html()

    def markdown(self) -> str:
        """Table in Markdown with all rows."""
        rules = [" --- " if self.words(index) else " ---: " for index in range(len(self.columns))]
        head = "|".join(f" {markdown_text(column) or ' '} " for column in self.columns)
        lines = ["|".join(f" {markdown_text(cell_text(cell)) or ' '} " for cell in row) for row in self.rows]
        return "\n".join(f"|{line}|" for line in (head, "|".join(rules), *lines))

    def html(self) -> str:
        """The table as HTML without its title; rows beyond ``shown`` are collapsed. Empty text without rows."""
        if not self.rows:
            return ""
        kind = _named("pairs" if not self.headed else "many" if len(self.columns) >= MANY_COLUMNS else "")
        words = [index > 0 and self.words(index) for index in range(len(self.columns))]
        head = "".join(map(_html_heading, self.columns, words))
        head = f"<thead><tr>{head}</tr></thead>" if self.headed else ""
        first = [index == 0 for index in range(len(self.columns))]
        lines = ["<tr>" + "".join(map(_html_cell, row, words, first)) + "</tr>" for row in self.rows]
        shown, more = lines[: self.shown], lines[len(lines) - self.hidden :]

        def part(rows: Sequence[str], which: str = "") -> str:
            named = f' tabindex="0" role="region" aria-label="{escape(self.title or "table")}{which}"'
            return f'<div class="scroll"{named}><table{kind}>{head}<tbody>{"".join(rows)}</tbody></table></div>'

        table = part(shown)
        if not more:
            return table
        rest = part(more, ", the rest")
        return f"{table}<details><summary>{len(more):,} more</summary>{rest}</details>"

    def to_arrow(self) -> pa.Table:
        """The values of the cells in columns named by their headings."""
        import pyarrow as pa

        values = [[_value(cell) for cell in row] for row in self.rows]
        names = [column or (f"column_{index}" if index else "name") for index, column in enumerate(self.columns)]
        return pa.table({name: arrow_column([row[index] for row in values]) for index, name in enumerate(names)})


def pairs(title: str, rows: Iterable[tuple[str, Value]], name: str = "") -> Table:
    """A table without headings: labels on the left, values on the right."""
    return Table(title, ("", ""), list(rows), name=name)


def faint(row: Sequence[Value]) -> list[Value]:
    """A row in faint type."""
    return [
        replace(cell, tone="faint") if isinstance(cell, Cell) else Cell(cell_text(cell), "", "faint", cell)
        for cell in row
    ]


def arrow_column(values: Sequence[object]) -> pa.Array[Any]:
    """Values as an Arrow column; converted to text if their types differ."""
    import pyarrow as pa

    try:
        column: pa.Array[Any] = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        known = [value for value in values if value is not None]
        kind: type = float if all(isinstance(value, int | float) for value in known) else str
        column = pa.array([None if value is None else kind(value) for value in values])
    return column


def cell_text(cell: Value) -> str:
    """Plain text of a cell."""
    if isinstance(cell, Cell):
        return f"{cell.text} {cell.after}".rstrip()
    return cell if isinstance(cell, str) else number(cell)


def _cell_words(cell: Value) -> str:
    return cell.text if isinstance(cell, Cell) else cell_text(cell)


def _brief(cell: Value) -> Value:
    return replace(cell, detail="") if isinstance(cell, Cell) and cell.detail else cell


def markdown_text(text: str) -> str:
    """Escape ``text`` as one line of Markdown without markup."""
    line = " ".join(text.split())
    for mark in ("\\", "`", "*", "_", "[", "|", "#"):
        line = line.replace(mark, f"\\{mark}")
    return line.replace("&", "&amp;").replace("<", "&lt;")


def _value(cell: Value) -> object:
    if not isinstance(cell, Cell):
        return cell
    return cell_text(cell) if cell.value is None else cell.value


def cell_class(cell: Value, words: bool = False) -> str:
    """CSS classes of a cell: its tone, ``long`` if its text may be wrapped, ``words`` in a column of words."""
    shown = (cell.text, cell.after if cell.aside else "") if isinstance(cell, Cell) else (cell_text(cell),)
    long = "long" if any(len(text) > LONG_WORDS for text in shown) else ""  # an interval stands below its figure
    return " ".join(filter(None, (cell.tone if isinstance(cell, Cell) else "", long, "words" if words else "")))


def _html_heading(name: str, words: bool) -> str:
    return f'<th scope="col"{_named("words" if words else "")}>{term_html(name)}</th>' if name else "<td></td>"


ENTRY = re.compile(r"^\*\*(.+?)\*\*\n:   (.+)$", re.MULTILINE)
"""Pattern of a glossary entry: groups are the term and its definition."""


def glossary_text() -> str:
    """The glossary as Markdown: sections of terms, each with its definition in a paragraph."""
    return Path(__file__).with_name("glossary.md").read_text("utf-8")


@cache
def _definitions() -> dict[str, str]:
    """Definition by term in lower case, the longest term first; single letters, also units, are excluded."""
    entries: dict[str, str] = {}
    for heading, words in ENTRY.findall(glossary_text().replace("`", "")):
        entries |= {_plain(term): f"{heading}: {words}" for term in re.split(r", | \(|\)", heading) if len(term) > 1}
    return dict(sorted(entries.items(), key=lambda entry: -len(entry[0])))


@cache
def definition(words: str) -> str | None:
    """Definition of the longest term in a label such as ``p99 TTFT`` or ``mean_ttft_ms``; None if it contains no term.

    >>> definition("p99_tpot_ms")[:30]
    'TPOT, time per output token: ('
    """
    label = _plain(words)
    matching = (entry for term, entry in _definitions().items() if re.search(rf"\b{re.escape(term)}s?\b", label))
    return next(matching, None)


def _plain(words: str) -> str:
    return words.lower().replace("_", " ").strip()


def term_html(words: str) -> str:
    """A label as HTML, with the definition of its term as a tooltip."""
    meaning = definition(words)
    return escape(words) if meaning is None else f'<abbr title="{escape(meaning)}">{escape(words)}</abbr>'


def _html_cell(cell: Value, words: bool, first: bool) -> str:
    named = _named(cell_class(cell, words))
    if not isinstance(cell, Cell):
        text = cell_text(cell)
        return f"<td{named}>{term_html(text) if first else escape(text)}</td>"
    aside = f' <span class="aside">{escape(cell.after)}</span>' if cell.aside else ""
    return f"<td{named}>{escape(cell.text)}{aside}</td>"


def _named(classes: str) -> str:
    return f' class="{classes}"' if classes else ""


def number(value: Any, digits: int = 4) -> str:
    """Format a number with ``digits`` significant digits and thousands separators; ``-`` for None."""
    if value is None:
        return ABSENT
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def scaled(value: float | None, unit: str) -> str:
    """Format a number with an SI prefix, e.g. ``3.35 TB/s``; ``-`` for None."""
    if value is None:
        return ABSENT
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{number(value / factor)} {prefix}{unit}"
    return f"{number(value)} {unit}"


def duration(seconds: float | None) -> str:
    """Format seconds in a suitable unit, e.g. ``12.3 us`` or ``24 h``."""
    if seconds is None:
        return ABSENT
    if abs(seconds) >= HOURS_FROM_S:
        return f"{number(seconds / 3600)} h"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= factor:
            return f"{number(seconds / factor)} {unit}"
    return f"{number(seconds / 1e-9)} ns"


def percent(share: float | None) -> str:
    """Format a share as a percentage; ``-`` for None."""
    return ABSENT if share is None else f"{share * 100:.1f} %"


def _heading(column: str) -> str:
    return " ".join(column.split())


def _records(table: Table, rows: Sequence[Sequence[Value]], width: int) -> RichTable:
    """Each row as a list of its cells, below its label."""
    names = [_heading(column) for column in table.columns]
    texts = (names, [cell_text(cell) for row in rows for cell in row])
    longest_name, longest = (max(len(piece) for text in column for piece in pieces(text) or [""]) for column in texts)
    first = max(longest_name, min(max(map(len, names)), width // 2, width - PADDING - longest))
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
        justify: Literal["left", "right"] = "left" if left else "right"
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
        caption=f"and {hidden:,} more" if hidden else None,
        caption_justify="left",
    )


def _text(cell: Value, width: int) -> Text:
    """Cell wrapped to lines of at most ``width`` characters; the aside is dim."""
    from rich.text import Text

    style, strong = ("", len(cell_text(cell))) if not isinstance(cell, Cell) else (_STYLES[cell.tone], len(cell.text))
    text, passed = Text(), 0
    for number, line in enumerate(lines_of(cell_text(cell), width)):
        text.append("\n" if number else "")
        dim = max(0, min(len(line), strong - passed))
        text.append(line[:dim], style=style).append(line[dim:], style="dim not bold" if isinstance(cell, Cell) else "")
        passed += len(line) + 1
    return text
