"""Errors on record: one row per comparison, a JSON file of them, and whether one has grown since."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.errors import ForerunError

SECTIONS = ("kernels", "requests", "speculation", "attention")


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How far predictions of one kind were from measurements; percentages of the measurement."""

    section: str
    """One of ``SECTIONS``."""
    name: str
    """Name of the comparison, such as ``gemm bf16, h100-sxm, vllm``; unique in its section."""
    metric: str
    """Predicted quantity: ``seconds``, ``mean_tpot_ms``, ``speedup`` ..."""
    n: int
    mape: float
    median_ape: float | None
    bias: float | None
    basis: str | None
    fitted: str
    """Fitted constants of the prediction, and the data that they were fitted on."""
    ships: bool
    """Whether anyone can compute it from the package alone."""
    date: str = ""
    """Date on which the error was computed, such as 2026-11-21."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Key by which two rows are the same comparison."""
        return (self.section, self.name, self.metric)

    def of_part(self, section: str, part: str) -> bool:
        """Whether the row belongs to a part of what ships: its name is the part's, or begins with it and a comma."""
        return self.section == section and (self.name == part or self.name.startswith(f"{part}, "))


def errors_document(rows: Iterable[ErrorRow], version: str) -> dict[str, Any]:
    """The JSON of errors.

    Args:
        rows: one per comparison.
        version: version of Forerun.
    """
    return {"version": version, "errors": [asdict(row) for row in rows]}


def merged(recorded: Sequence[ErrorRow], computed: Sequence[ErrorRow]) -> list[ErrorRow]:
    """Rows on record with the computed parts in place of their own: a section's shipped or its measured comparisons, of
    benchmark results those tables that were computed, by the end of their path."""
    anew = {(row.section, row.ships) for row in computed}
    tables = {f"/{row.name}" for row in computed if row.section == "requests"}

    def stays(row: ErrorRow) -> bool:
        if row.section == "requests":
            return not any(f"/{row.name}".endswith(table) for table in tables)
        return (row.section, row.ships) not in anew

    kept = [row for row in recorded if stays(row)]

    def place(row: ErrorRow) -> tuple[int, bool, str]:
        return (
            SECTIONS.index(row.section),
            not row.ships,
            row.name if row.section == "requests" and not row.ships else "",
        )

    return sorted([*kept, *computed], key=place)


def read_errors(path: Path) -> list[ErrorRow]:
    """The errors in a file that ``forerun validate`` wrote.

    Raises:
        ForerunError: no such file, or another file; one line.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        rows = [ErrorRow(**row) for row in document["errors"]]
    except FileNotFoundError:
        raise ForerunError(f"{path}: no such file") from None
    except OSError as error:
        raise ForerunError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ForerunError(f"{path}: no errors of forerun validate in it (forerun validate all --json FILE)") from None
    for row in rows:
        if row.section not in SECTIONS or not isinstance(row.mape, int | float) or not isfinite(row.mape):
            raise ForerunError(f"{path}: {row.section}: {row.name}: mape must be a number (got {row.mape!r})")
    return rows


def grown_errors(now: Sequence[ErrorRow], recorded: Sequence[ErrorRow], margin: float) -> list[str]:
    """One line for each recorded error that has grown by more than ``margin`` percentage points, or is no longer there.

    Args:
        now: computed anew.
        recorded: those on record that ``now`` should hold.
        margin: allowed growth of the mean absolute error, >= 0.
    """
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
