"""Numbers and words out of the cells of a table or the values of a JSON document."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traces.errors import TraceError, shown

LARGEST_FILE_BYTES = 512 * 1024**2
_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off")


class Cells:
    """One row or mapping, read by key; a missing key, an empty cell and NaN are all None.

    Args:
        values: by key.
        place: file and line, for messages.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values = values
        self.place = place

    def text(self, key: str) -> str | None:
        """The word under ``key``."""
        value = self._values.get(key)
        if value is None:
            return None
        word = str(value).strip()
        return word if word and word.lower() not in ("nan", "none", "null") else None

    def number(self, key: str) -> float | None:
        """The finite number under ``key``.

        Raises:
            TraceError: something else stands there.
        """
        word = self.text(key)
        if word is None:
            return None
        try:
            value = float(word)
        except ValueError:
            raise TraceError(f"{self.place}: {key}: {shown(word)} is no number") from None
        if not math.isfinite(value):
            raise TraceError(f"{self.place}: {key}: {shown(word)} is not finite")
        return value

    def count(self, key: str) -> int | None:
        """The whole number >= 1 under ``key``.

        Raises:
            TraceError: something else stands there.
        """
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or not 1 <= value <= 1e12:
            raise TraceError(f"{self.place}: {key}: {shown(self.text(key))} is no whole number from 1")
        return int(value)

    def several(self, key: str) -> int | None:
        """The whole number > 1 under ``key``; None where it is 0 or 1, as tables write what a run does not use.

        Raises:
            TraceError: something else stands there.
        """
        value = self.number(key)
        return None if value in (None, 0.0, 1.0) else self.count(key)

    def flag(self, key: str) -> bool | None:
        """Yes or no under ``key``.

        Raises:
            TraceError: something else stands there.
        """
        word = self.text(key)
        if word is None:
            return None
        if word.lower() in _YES:
            return True
        if word.lower() in _NO:
            return False
        raise TraceError(f"{self.place}: {key}: {shown(word)} is neither true nor false")

    def positive(self, key: str) -> float | None:
        """The number under ``key``; None where it is 0 or less, as tools write what they did not measure."""
        value = self.number(key)
        return value if value is not None and value > 0 else None


def csv_rows(path: Path) -> tuple[tuple[str, ...], Iterator[Cells]]:
    """Columns and rows of a CSV file.

    Raises:
        TraceError: not readable as text, without a header, or with a row of another width.
    """
    reader = csv.reader(io.StringIO(read_text(path)))
    header = next(reader, None)
    if not header:
        raise TraceError(f"{path}: empty; a header line with column names expected")
    columns = tuple(name.strip() for name in header)

    def rows() -> Iterator[Cells]:
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(columns):
                raise TraceError(f"{place}: {len(row)} cells where the header names {len(columns)} columns")
            yield Cells(dict(zip(columns, row, strict=True)), place)

    return columns, rows()


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark.

    Raises:
        TraceError: no such file, a folder, too large, or not UTF-8.
    """
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise TraceError(f"{path}: larger than {LARGEST_FILE_BYTES // 1024**2} MiB; no table of serving runs")
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not a text file (UTF-8 expected)") from None


def json_value(text: str, place: str) -> Any:
    """JSON text as plain data.

    Raises:
        TraceError: not JSON; with the line.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{place}:{error.lineno}: not JSON ({error.msg})") from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number of thousands of digits"
        raise TraceError(f"{place}: not usable JSON ({reason})") from None


def latencies_ms(cells: Cells, keys: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
    """Metrics that a row holds: metric name -> value; ``keys`` names the column of each metric."""
    found = {metric: cells.positive(key) for metric, key in keys.items()}
    return {metric: value * scale for metric, value in found.items() if value is not None}
