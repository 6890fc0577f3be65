"""Errors on record: made of signed errors, put together with earlier ones, and compared with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import fmean, median

from dashboards.recorded_errors import SECTIONS, ErrorRow
from forerun.document import Json


def errors_document(rows: Iterable[ErrorRow], version: str) -> Json:
    """The JSON of errors, which the given version of Forerun computed."""
    return {"version": version, "errors": [asdict(row) for row in rows]}


def signed_row(
    section: str, name: str, metric: str, signed: Sequence[float], basis: str | None, fitted: str, ships: bool = True
) -> ErrorRow:
    """A row of the record from signed relative errors."""
    sizes = [100.0 * abs(error) for error in signed]
    figures = (len(sizes), fmean(sizes), median(sizes), 100.0 * fmean(signed))
    return ErrorRow(section, name, metric, *figures, basis, fitted, ships)


def merged(recorded: Sequence[ErrorRow], computed: Sequence[ErrorRow]) -> list[ErrorRow]:
    """Rows on record with the computed parts in place of their own. A section's shipped or its measured comparisons, of
    benchmark results those tables that were computed, by the end of their path."""
    anew = {(row.section, row.ships) for row in computed}
    tables = {f"/{row.name}" for row in computed if row.section == "requests"}

    def stays(row: ErrorRow) -> bool:
        if row.section == "requests":
            return not any(f"/{row.name}".endswith(table) for table in tables)
        return (row.section, row.ships) not in anew

    kept = [row for row in recorded if stays(row)]

    def place(row: ErrorRow) -> tuple[int, bool, str]:
        by_name = row.section == "requests" and not row.ships
        return (SECTIONS.index(row.section), not row.ships, row.name if by_name else "")

    return sorted([*kept, *computed], key=place)


def grown_errors(now: Sequence[ErrorRow], recorded: Sequence[ErrorRow], margin: float) -> list[str]:
    """One line for each recorded error that has grown by over ``margin`` percentage points, or is no longer there."""
    current = {row.key: row for row in now}
    lines = []
    for old in recorded:
        row = current.get(old.key)
        label = f"{old.section}: {old.name} ({old.metric})"
        if row is None:
            lines.append(f"{label}: on record with {old.mape:.2f} %, no longer compared")
        elif not row.mape <= old.mape + margin:
            lines.append(f"{label}: {row.mape:.2f} % exceeds {old.mape:.2f} % on record by more than {margin:g}")
        elif row.n < old.n:
            lines.append(f"{label}: {row.n} rows compared, {old.n} on record")
    return lines
