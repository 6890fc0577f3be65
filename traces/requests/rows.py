"""Files as chunks of raw columns: CSV, JSON lines, lists of JSON records and Parquet behind one shape."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from traces.errors import TraceError, shown
from traces.fields import TIME_WORDS, UNITS_PER_SECOND, Record, number_of, value_at
from traces.files import Block, OnError, arrow_reading, csv_records, first_text, json_value, text_blocks
from traces.requests.values import Values

if TYPE_CHECKING:
    import pyarrow as pa

Paths = Mapping[str, Sequence[str]]
"""Dotted paths inside a nested record by column, the preferred one first."""
Broken = tuple[int, str, str]
"""A row that could not be split into columns: its number, the reason, what is wrong."""

_ROWS_PER_CHUNK = 32_768

ARROW_FROM_BLOCK = 3
"""Blocks of a CSV file after which Arrow's parser takes over: its import costs as much as those blocks."""


@dataclass(frozen=True, slots=True)
class RawChunk:
    """Uninterpreted rows of a file.

    Attributes:
        columns: values by column name: text from CSV, JSON values from JSON, numpy arrays from Parquet.
        count: rows in this chunk.
        lines: number of each row in the file (1-based line, or row where a file has no lines).
        broken: rows that could not be split into columns.
        place: format of a row's location in errors, e.g. ``"trace.csv:{}"``.
        note: remark on how the file was read.
    """

    columns: dict[str, Values]
    count: int
    lines: Sequence[int]
    broken: Sequence[Broken] = field(default=())
    place: str = "{}"
    note: str = ""

    def column(self, name: str) -> Values:
        """Values of a column; Nones where this chunk lacks it."""
        return self.columns.get(name, [None] * self.count)


def csv_dialect(header: str) -> str:
    """The delimiter of a CSV header line: comma, tab or semicolon, whichever occurs most."""
    return max((",", "\t", ";"), key=header.count)


def split_header(path: Path, line: str) -> list[str]:
    """Column names of a CSV header line."""
    try:
        names = next(csv.reader([line], delimiter=csv_dialect(line)), [])
    except csv.Error as problem:
        raise TraceError(f"{path}:1: the header cannot be split into columns ({problem})") from None
    return [name.strip() for name in names]


def csv_chunks(
    path: Path, on_error: OnError, wanted: Sequence[str] | None = None, typed: Sequence[str] = ()
) -> Iterator[RawChunk]:
    """Chunks of a CSV file with a header; blank lines do not count as rows.

    Args:
        path: the file.
        on_error: what to do about bytes that are not text.
        wanted: columns that must be read; None for all.
        typed: those among them that hold numbers or times (so that Arrow may convert them).
    """
    place = f"{path}:{{}}"
    columns: list[str] = []
    delimiter = csv_dialect(first_text(path).split("\n", 1)[0])
    for number, block in enumerate(text_blocks(path, on_error, quoted=True)):
        if number >= ARROW_FROM_BLOCK and columns:
            fast = _arrow_block(block, columns, delimiter, columns if wanted is None else wanted, typed, place)
            if fast is not None:
                yield fast
                continue
        rows: list[list[str]] = []
        lines: list[int] = []
        broken: list[Broken] = []
        for line, row in csv_records(block.text, delimiter, block.first_line):
            if isinstance(row, str):
                broken.append((line, "not CSV", row))
            elif not columns:
                columns = [name.encode(errors="surrogateescape").decode(errors="replace").strip() for name in row]
            elif len(row) != len(columns):
                if len(row) > 1 or row[0].strip():
                    width = f"{len(row)} columns where the header has {len(columns)} (is the line cut short?)"
                    broken.append((line, "columns", width))
            elif not block.clean and any("\udc80" <= char <= "\udcff" for char in "".join(row)):
                broken.append((line, "not UTF-8", "bytes that are not UTF-8 text"))
            else:
                rows.append(row)
                lines.append(line)
        if rows or broken:
            by_column = zip(*rows, strict=True) if rows else ([] for _ in columns)
            # of duplicate names the first column is used; duplicates of used columns were rejected before
            values: dict[str, Values] = {}
            for name, column in zip(columns, by_column, strict=True):
                values.setdefault(name, list(column))
            yield RawChunk(values, len(rows), lines, broken, place)


def _arrow_block(
    block: Block, names: list[str], delimiter: str, wanted: Sequence[str], typed: Sequence[str], place: str
) -> RawChunk | None:
    """A block of plain rows parsed by Arrow; None when anything in it needs the exact way (quotes, gaps, misfits)."""
    if not block.clean or '"' in block.text or "\r" in block.text.replace("\r\n", "") or not set(wanted) <= set(names):
        return None
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    keys = {name: str(names.index(name)) for name in wanted}  # by place: names may stand twice
    text = {keys[name]: pa.string() for name in wanted if name not in typed}
    read = pa_csv.ReadOptions(
        column_names=list(map(str, range(len(names)))), use_threads=False, block_size=len(block.text) * 4 + 64
    )
    try:
        table = pa_csv.read_csv(
            io.BytesIO(block.text.encode()),
            read_options=read,
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(column_types=text, include_columns=list(keys.values())),
        ).combine_chunks()
    except pa.ArrowException:
        return None
    lines = block.text.count("\n") + (not block.text.endswith("\n"))
    columns: dict[str, Values] = {}
    for name in wanted:
        column = table.column(keys[name]).combine_chunks()
        kind = column.type
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)
        if not pa.types.is_string(kind) and (column.null_count or not numeric):
            return None
        columns[name] = _arrow_values(column)
    if table.num_rows != lines:
        return None
    return RawChunk(columns, lines, range(block.first_line, block.first_line + lines), place=place)


def jsonl_chunks(path: Path, on_error: OnError, paths: Paths | None = None) -> Iterator[RawChunk]:
    """Chunks of a file with one JSON object per line; blank lines do not count as rows."""
    for block in text_blocks(path, on_error):
        texts = block.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        lines = [number for number, text in enumerate(texts, block.first_line) if text and not text.isspace()]
        texts = [texts[line - block.first_line] for line in lines]
        records, broken = _parse_together(texts), list[Broken]()
        if records is None:
            parsed = dict(_parse_each(lines, texts, broken))
            lines, records = list(parsed), list(parsed.values())
        if lines or broken:
            yield _chunk(lines, records, broken, f"{path}:{{}}", paths)


def _parse_together(texts: list[str]) -> list[Record] | None:
    """All lines in one call of the JSON parser; None when any line is not exactly one object."""
    try:
        records: list[Record] = json.loads(f"[{','.join(texts)}]")
    except (ValueError, RecursionError):
        return None
    return records if len(records) == len(texts) and set(map(type, records)) <= {dict} else None


def _parse_each(lines: Sequence[int], texts: Sequence[str], broken: list[Broken]) -> Iterator[tuple[int, Record]]:
    """Records line by line; faults of unreadable lines go into ``broken``."""
    for line, text in zip(lines, texts, strict=True):
        try:
            record = json_value(text, "")
        except TraceError as problem:
            broken.append((line, "not JSON", str(problem).partition(": ")[2]))
        else:
            if isinstance(record, dict):
                yield line, record
            else:
                broken.append((line, "not an object", f"{shown(record)}: one JSON object per line expected"))


def _chunk(
    lines: Sequence[int],
    records: Sequence[Record],
    broken: Sequence[Broken],
    place: str,
    paths: Paths | None,
    note: str = "",
) -> RawChunk:
    """Columns from records, including nested ``paths``; a missing key gives None."""
    paths = paths or {}
    keys: dict[str, None] = {}
    for record in records:
        keys.update(dict.fromkeys(record))
    nested = {name: [_inside(record, inside) for record in records] for name, inside in paths.items()}
    for path in (path for inside in paths.values() for path in inside):
        keys.pop(path.partition(".")[0], None)
    columns: dict[str, Values] = {key: [record.get(key) for record in records] for key in keys}
    columns |= {name: values for name, values in nested.items() if any(value is not None for value in values)}
    return RawChunk(columns, len(records), lines, broken, place, note)


def _inside(record: Record, paths: Sequence[str]) -> object:
    """Value under the first path that has one; for ``{value, unit}`` the value, with durations in seconds."""
    for path in paths:
        value, unit = value_at(record, path), None
        if isinstance(value, Mapping) and "value" in value:
            value, unit = value["value"], value.get("unit")
        if value is not None:
            number = number_of(value)
            known = TIME_WORDS.get(unit) if number is not None and isinstance(unit, str) else None
            return number / UNITS_PER_SECOND[known] if number is not None and known else value
    return None


def record_chunks(
    path: Path, records: Sequence[object], where: str = "entry {}", paths: Paths | None = None, note: str = ""
) -> Iterator[RawChunk]:
    """Chunks of a list of JSON objects that is in memory already; ``where`` names an entry by its 1-based number."""
    for start in range(0, len(records), _ROWS_PER_CHUNK):
        numbered = list(enumerate(records[start : start + _ROWS_PER_CHUNK], start=start + 1))
        good = {number: record for number, record in numbered if isinstance(record, dict)}
        broken = [
            (number, "not an object", f"{shown(record)}: a JSON object expected")
            for number, record in numbered
            if number not in good
        ]
        yield _chunk(list(good), list(good.values()), broken, f"{path}: {where}", paths, note)


def parquet_columns(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    with arrow_reading(path):
        return list(pq.read_schema(path).names)


def parquet_chunks(path: Path, on_error: OnError, wanted: Sequence[str]) -> Iterator[RawChunk]:
    """Chunks of the ``wanted`` columns of a Parquet file, decoded one batch at a time."""
    import pyarrow.parquet as pq

    done = 0
    with arrow_reading(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_PER_CHUNK, columns=list(wanted)):
            columns = {name: _arrow_values(batch.column(name)) for name in wanted}
            lines = range(done + 1, done + batch.num_rows + 1)
            yield RawChunk(columns, batch.num_rows, lines, place=f"{path}: row {{}}")
            done += batch.num_rows


def _arrow_values(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> Values:
    """An Arrow column as numpy where it is numeric or temporal without nulls, else as Python values."""
    import pyarrow as pa

    if column.null_count == 0:
        if pa.types.is_integer(column.type):
            values = column.to_numpy(zero_copy_only=False)
            return values.astype(np.int64) if values.dtype != np.uint64 or values.max(initial=0) < 2**63 else values
        if pa.types.is_floating(column.type):
            return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
        if pa.types.is_timestamp(column.type):
            return column.cast(pa.timestamp("ns")).to_numpy(zero_copy_only=False)
    elif pa.types.is_timestamp(column.type):
        coarse = column.cast(pa.timestamp("us"), safe=False)
        return [None if value is None else str(value.isoformat()) for value in list[Any](coarse.to_pylist())]
    return column.to_pylist()
