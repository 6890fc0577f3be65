"""Rows of every comparison as data: ``docs/validation/rows.json``, which the site shows as one sortable page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from dashboards.recorded_errors import ErrorRow
from forerun.document import Json, json_text
from forerun.tables import Table, cell_text
from validation.facts import facts
from validation.page import scored_shapes

ROWS_FILE = "rows.json"


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
