"""Writing the canonical request table as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import numpy as np

from traces.errors import TraceError
from traces.requests.table import FLOAT_COLUMNS, RequestTable

if TYPE_CHECKING:
    import pyarrow as pa


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
        writers[kind](_arrow_table(table), path)
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


def _arrow_table(table: RequestTable) -> pa.Table:
    """The table with nulls for what was not measured, sessions by name, and lists of blocks and of awaited requests."""
    import pyarrow as pa

    arrays: dict[str, Any] = {}
    for name, values in table.columns().items():
        if name == "session_id":
            names = [table.session_names[code] if code >= 0 else None for code in values.tolist()]
            arrays[name] = pa.array(names, pa.string())
        else:
            absent = np.isnan(values) if name in FLOAT_COLUMNS else values < 0
            arrays[name] = pa.array(values, mask=absent if absent.any() else None)
    hashes = table.prefix_hashes
    if hashes is not None:
        arrays["prefix_hashes"] = pa.LargeListArray.from_arrays(
            pa.array(hashes.offsets, pa.int64()), pa.array(hashes.ids, pa.int64())
        )
        arrays["block_tokens"] = pa.array(np.full(len(table), hashes.block_tokens, dtype=np.int64))
    if table.follows is not None:
        after: list[list[int]] = [[] for _ in range(len(table))]
        for before, waiting in table.follows.tolist():
            after[waiting].append(before)
        arrays |= {"request": pa.array(range(len(table))), "after": pa.array(after, pa.large_list(pa.int64()))}
    return pa.table(arrays)


def _write_csv(table: pa.Table, path: Path) -> None:
    columns = table.to_pydict()
    for name in {"prefix_hashes", "after"} & columns.keys():
        columns[name] = [" ".join(map(str, ids)) for ids in columns[name]]
    with _open_text(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_jsonl(table: pa.Table, path: Path) -> None:
    columns = table.to_pydict()
    with _open_text(path) as stream:
        for row in zip(*columns.values(), strict=True):
            stream.write(json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n")


def _write_parquet(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path)
