"""Writing the canonical request table as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from traces.errors import TraceError
from traces.requests.table import FLOAT_COLUMNS, RequestTable


def write_requests(table: RequestTable, path: str | Path) -> Path:
    """Write ``table`` with canonical columns; the ending of ``path`` chooses CSV, JSONL (both also .gz) or Parquet.

    Floats are written so that reading gives the same bits. What was not measured is an empty field or null. Block ids
    go into ``prefix_hashes`` (in CSV separated by blanks) with their size in ``block_tokens``; where requests wait for
    each other, their numbers go into ``request`` and ``after``.

    Raises:
        TraceError: another ending, or a place that cannot be written.
    """
    path = Path(path)
    name = path.name.lower().removesuffix(".gz")
    kind = "parquet" if path.name.lower().endswith(".parquet") else name.rsplit(".", 1)[-1]
    writers = {"csv": _write_csv, "jsonl": _write_jsonl, "parquet": _write_parquet}
    if kind not in writers:
        raise TraceError(f"{path}: a name ending in .csv, .jsonl (or .csv.gz, .jsonl.gz) or .parquet expected")
    try:
        writers[kind](table, path)
    except OSError as problem:
        raise TraceError(f"{path}: cannot be written ({problem.strerror or problem})") from problem
    return path


def _open_text(path: Path) -> TextIO:
    """A text stream to ``path``, gzip-compressed (without a time stamp, so equal tables give equal files) for .gz."""
    if path.name.lower().endswith(".gz"):
        return io.TextIOWrapper(
            cast("Any", gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)), encoding="utf-8", newline=""
        )
    return path.open("w", encoding="utf-8", newline="")


def _python_columns(table: RequestTable) -> dict[str, list[Any]]:
    """Columns as Python values, None for what was not measured, sessions by name."""
    columns: dict[str, list[Any]] = {}
    for name, values in table.columns().items():
        if name in FLOAT_COLUMNS:
            columns[name] = [None if value != value else value for value in values.tolist()]
        elif name == "session_id":
            columns[name] = [table.session_names[code] if code >= 0 else None for code in values.tolist()]
        elif name == "turn":
            columns[name] = [None if value < 0 else value for value in values.tolist()]
        else:
            columns[name] = values.tolist()
    return columns


def _list_columns(table: RequestTable) -> dict[str, list[Any]]:
    """The columns of prefix blocks and of requests that wait for each other, where the table has them."""
    columns: dict[str, list[Any]] = {}
    hashes = table.prefix_hashes
    if hashes is not None:
        columns["prefix_hashes"] = [hashes.of(row).tolist() for row in range(len(table))]
        columns["block_tokens"] = [hashes.block_tokens] * len(table)
    if table.follows is not None:
        columns["request"] = list(range(len(table)))
        columns["after"] = [[] for _ in range(len(table))]
        for before, waiting in table.follows.tolist():
            columns["after"][waiting].append(before)
    return columns


def _write_csv(table: RequestTable, path: Path) -> None:
    columns = _python_columns(table)
    for name, values in _list_columns(table).items():
        columns[name] = [" ".join(map(str, value)) if isinstance(value, list) else value for value in values]
    with _open_text(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_jsonl(table: RequestTable, path: Path) -> None:
    columns = _python_columns(table) | _list_columns(table)
    with _open_text(path) as stream:
        for row in zip(*columns.values(), strict=True):
            stream.write(json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n")


def _write_parquet(table: RequestTable, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays: dict[str, Any] = {}
    for name, values in table.columns().items():
        if name in ("session_id", "turn"):
            arrays[name] = pa.array(_python_columns(table)[name], pa.string() if name == "session_id" else pa.int64())
        else:
            arrays[name] = pa.array(values, mask=np.isnan(values) if name in FLOAT_COLUMNS else None)
    if table.prefix_hashes is not None:
        hashes = table.prefix_hashes
        arrays["prefix_hashes"] = pa.LargeListArray.from_arrays(
            pa.array(hashes.offsets, pa.int64()), pa.array(hashes.ids, pa.int64())
        )
        arrays["block_tokens"] = pa.array(np.full(len(table), hashes.block_tokens, dtype=np.int64))
    if table.follows is not None:
        after = _list_columns(table)["after"]
        arrays |= {"request": pa.array(range(len(table))), "after": pa.array(after, pa.large_list(pa.int64()))}
    pq.write_table(pa.table(arrays), path)
