"""Files as chunks of raw columns: CSV, JSON lines, lists of JSON records and Parquet behind one shape."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from traces.errors import TraceError, shown
from traces.files import Block, OnError, csv_records, first_text, reading, text_blocks
from traces.requests.values import Values

Record = Mapping[str, Any]
Flatten = Callable[[Record], Record]

_ROWS_PER_CHUNK = 32_768

ARROW_FROM_BLOCK = 3
"""Blocks of a CSV file after which Arrow's parser takes over what it can: its import costs as much as those blocks."""


@dataclass(frozen=True, slots=True)
class RawChunk:
    """Uninterpreted rows of a file.

    Attributes:
        columns: values by column name: text from CSV, JSON values from JSON, numpy arrays from Parquet.
        count: rows in this chunk.
        lines: number of each row in the file (1-based line, or row where a file has no lines).
        broken: rows that could not be split into columns: (number, reason, what is wrong).
        place: format of a row's location in errors, e.g. ``"trace.csv:{}"``.
        note: remark on how the file was read.
    """

    columns: dict[str, Values]
    count: int
    lines: Sequence[int]
    broken: list[tuple[int, str, str]] = field(default_factory=list)
    place: str = "{}"
    note: str = ""


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
        wanted: columns that are needed at least; None for all.
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
        broken: list[tuple[int, str, str]] = []
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
    if not block.clean or '"' in block.text or "\r" in block.text.replace("\r\n", ""):
        return None
    if not set(wanted) <= set(names):
        return None
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    keys = {name: str(names.index(name)) for name in wanted}  # by place: names may stand twice
    text = {keys[name]: pa.string() for name in wanted if name not in typed}
    try:
        table = pa_csv.read_csv(
            io.BytesIO(block.text.encode()),
            read_options=pa_csv.ReadOptions(
                column_names=list(map(str, range(len(names)))),
                use_threads=False,
                block_size=len(block.text) * 4 + 64,
            ),
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


def jsonl_chunks(path: Path, on_error: OnError, flatten: Flatten | None = None) -> Iterator[RawChunk]:
    """Chunks of a file with one JSON object per line; blank lines do not count as rows."""
    place = f"{path}:{{}}"
    for block in text_blocks(path, on_error):
        texts = block.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        lines = [block.first_line + index for index, text in enumerate(texts) if text and not text.isspace()]
        texts = [texts[line - block.first_line] for line in lines]
        broken: list[tuple[int, str, str]] = []
        records = _parse_together(texts)
        if records is None:
            lines, records, broken = _parse_each(lines, texts)
        if lines or broken:
            yield _chunk_of_records(records, lines, broken, place, flatten)


def _parse_together(texts: list[str]) -> list[Record] | None:
    """All lines in one call of the JSON parser; None when any line is not exactly one object."""
    try:
        records = json.loads(f"[{','.join(texts)}]")
    except (ValueError, RecursionError):
        return None
    return records if len(records) == len(texts) and set(map(type, records)) <= {dict} else None


def _parse_each(lines: list[int], texts: list[str]) -> tuple[list[int], list[Record], list[tuple[int, str, str]]]:
    """Line by line: numbers and records of the good ones, and what is wrong with the others."""
    kept: list[int] = []
    records: list[Record] = []
    broken: list[tuple[int, str, str]] = []
    for line, text in zip(lines, texts, strict=True):
        try:
            record = json.loads(text)
        except json.JSONDecodeError as problem:
            broken.append((line, "not JSON", f"not valid JSON: {problem.msg} (column {problem.colno})"))
        except (ValueError, RecursionError) as problem:
            broken.append((line, "not JSON", f"not usable JSON: {shown(str(problem), 80)}"))
        else:
            if isinstance(record, dict):
                kept.append(line)
                records.append(record)
            else:
                broken.append((line, "not an object", f"{shown(record)}: one JSON object per line expected"))
    return kept, records, broken


def _chunk_of_records(
    records: Sequence[Record],
    lines: Sequence[int],
    broken: list[tuple[int, str, str]],
    place: str,
    flatten: Flatten | None,
) -> RawChunk:
    """Columns from records; a key that a record lacks is None there."""
    if flatten is not None:
        records = [flatten(record) for record in records]
    keys: dict[str, None] = {}
    for record in records:
        keys.update(dict.fromkeys(record))
    columns: dict[str, Values] = {key: [record.get(key) for record in records] for key in keys}
    return RawChunk(columns, len(records), lines, broken, place)


def record_chunks(
    path: Path, records: Sequence[Any], where: str = "entry {}", flatten: Flatten | None = None, note: str = ""
) -> Iterator[RawChunk]:
    """Chunks of a list of JSON objects that is in memory already; ``where`` names an entry by its 1-based number."""
    place = f"{path}: {where}"
    for start in range(0, len(records), _ROWS_PER_CHUNK):
        part = list(enumerate(islice(records, start, start + _ROWS_PER_CHUNK), start=start + 1))
        good = [(number, record) for number, record in part if isinstance(record, dict)]
        broken = [
            (number, "not an object", f"{shown(record)}: a JSON object expected")
            for number, record in part
            if not isinstance(record, dict)
        ]
        numbers = [number for number, _ in good]
        yield replace(_chunk_of_records([record for _, record in good], numbers, broken, place, flatten), note=note)


def parquet_columns(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with reading(path):
            return list(pq.read_schema(path).names)
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        raise TraceError(f"{path}: not a usable Parquet file ({shown(str(problem), 120)})") from None


def parquet_chunks(path: Path, on_error: OnError, wanted: Sequence[str]) -> Iterator[RawChunk]:
    """Chunks of the ``wanted`` columns of a Parquet file, decoded one batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        with reading(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_PER_CHUNK, columns=list(wanted)):
                columns = {name: _arrow_values(batch.column(name)) for name in wanted}
                yield RawChunk(
                    columns, batch.num_rows, range(done + 1, done + batch.num_rows + 1), [], f"{path}: row {{}}"
                )
                done += batch.num_rows
    except (pa.ArrowException, UnicodeDecodeError) as problem:
        raise TraceError(f"{path}: row {done + 1} or later: damaged Parquet ({shown(str(problem), 120)})") from None


def _arrow_values(column: Any) -> Values:
    """An Arrow column as numpy where it is numeric or temporal without nulls, else as Python values."""
    import pyarrow as pa

    if column.null_count == 0:
        if pa.types.is_integer(column.type):
            values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
            return values.astype(np.int64) if values.dtype != np.uint64 or values.max(initial=0) < 2**63 else values
        if pa.types.is_floating(column.type):
            return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
        if pa.types.is_timestamp(column.type):
            return np.asarray(column.cast(pa.timestamp("ns")).to_numpy(zero_copy_only=False))
    elif pa.types.is_timestamp(column.type):
        coarse = column.cast(pa.timestamp("us"), safe=False)
        return [None if value is None else value.isoformat() for value in coarse.to_pylist()]
    values_list: list[Any] = column.to_pylist()
    return values_list
