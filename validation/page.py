"""The page "How far to trust it", and every comparison as data: ``rows.json``, one sortable page of the site."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dashboards.recorded_errors import ErrorRow
from forerun.document import Json, json_text
from forerun.tables import Table, cell_text
from validation.facts import facts

ROWS_FILE = "rows.json"
SPLIT_WORDS = ("held out (train=0.7,seed=1)", "on the other 70% of the shapes")
"""Words of a profile whose fit left out what ``SPLIT`` of the kernels holds out."""
MARKS = {"sources": "Before and after one measured run", "constants": "Constants of engines: a quarter more of each"}
"""Tables of the page, by their marks in its text."""
MOST_SHOWN = 10


def trust_page(rows: Sequence[ErrorRow], version: str, tables: Mapping[str, Table] | None = None) -> str:
    """The page in Markdown.

    Args:
        rows: every comparison on record.
        version: of Forerun.
        tables: those of ``rows.json``, by title.
    """
    page = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").replace("VERSION", version)
    for mark, title in MARKS.items():
        table = (tables or {}).get(title)
        shown = "Not computed yet." if table is None else replace(table, rows=table.rows[:MOST_SHOWN]).markdown()
        page = page.replace(f"<!-- {mark} -->", shown)
    counts = Counter(row.section for row in rows)
    return page.replace("COUNTS", ", ".join(f"{count:,} of {section}" for section, count in counts.items()))


def scored_shapes(fitted: str) -> str:
    """Words on the rows that a fit of kernels saw among the scored shapes.

    Args:
        fitted: what it was fitted on, in the words of its profile, which names the split that it obeyed.
    """
    if fitted.startswith("nothing"):
        return "nothing fitted"
    return "left out" if any(words in fitted for words in SPLIT_WORDS) else "may be in the fit"


def read_rows(path: Path) -> dict[str, Table]:
    """Tables of the file at ``path`` by title; none without the file."""
    kept = json.loads(path.read_text(encoding="utf-8"))["tables"] if path.exists() else []
    return {one["title"]: Table(**one) for one in kept}


def rows_text(tables: Mapping[str, Table]) -> str:
    """Content of the file."""
    return json_text({"tables": [plain(one) for one in tables.values()]})


def by_title(*tables: Table) -> dict[str, Table]:
    """Tables by their titles."""
    return {table.title: table for table in tables}


def plain(table: Table) -> Json:
    """A table as plain values."""
    rows = [[cell if isinstance(cell, int | float) else cell_text(cell) for cell in row] for row in table.rows]
    return {"title": table.title, "columns": list(table.columns), "rows": rows}


def error_rows(rows: Sequence[ErrorRow]) -> Table:
    """Every comparison on record, in percent of the measurement."""
    columns = ("of", "comparison", "predicted", "n", "mean error %", "median %", "bias %", "basis", "ships", "shapes",
               "fitted on", "date")  # fmt: skip
    lines = [
        [row.section, row.name, row.metric, row.n, *(_rounded(e) for e in (row.mape, row.median_ape, row.bias)),
         row.basis or "", "yes" if row.ships else "", scored_shapes(row.fitted) if row.section == "kernels" else "",
         row.fitted, row.date]
        for row in rows
    ]  # fmt: skip
    return Table("Every comparison", columns, lines)


def _rounded(error: float | None) -> float | str:
    return "" if error is None else round(error, 1)


def fitted_rows() -> Table:
    """Every fitted constant, and the rows that it was fitted on."""
    return Table("What was fitted on what", ("constant", "table", "rows", "split"), facts())
