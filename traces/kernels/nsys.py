"""Nsight Systems: kernels by name from a ``cuda_gpu_trace`` CSV or an exported SQLite file; times are nanoseconds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np

from forerun.arrays import FloatArray
from traces.errors import TraceError
from traces.fields import SECONDS
from traces.files import head
from traces.kernels.frame import read_frame
from traces.kernels.table import KernelTable, Words, make_table, words

FORMAT = "nsys"
NO_NAME = "kernel without a name"


def header_line(start: bytes) -> int | None:
    """Number of lines before the header of a ``cuda_gpu_trace`` CSV; None if there is no such header."""
    for number, line in enumerate(start.decode("utf-8", "replace").splitlines()[:200]):
        if line.lstrip('"').startswith("Start (") and "Duration (" in line:
            return number
    return None


def read_nsys(path: Path) -> KernelTable:
    """Kernels, copies and fills of a CSV or SQLite export."""
    if head(path, 16).startswith(b"SQLite format 3"):
        return _read_sqlite(path)
    return _read_csv(path)


def _read_csv(path: Path) -> KernelTable:
    before = header_line(head(path))
    if before is None:
        raise TraceError(
            f"{path}: no header 'Start (ns),Duration (ns),...'; nsys stats --report cuda_gpu_trace --format csv"
        )
    frame = read_frame(path, before)
    for unit, seconds in SECONDS.items():
        if frame.has(f"Duration ({unit})"):
            return _table(path, frame.floats(f"Duration ({unit})") * seconds, frame.texts("Name"))
    raise TraceError(f"{path}: no column 'Duration (ns)' (columns: {frame.listed})")


def _read_sqlite(path: Path) -> KernelTable:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
            if not {"CUPTI_ACTIVITY_KIND_KERNEL", "StringIds"} <= tables:
                raise TraceError(f"{path}: no GPU kernels in this export (table CUPTI_ACTIVITY_KIND_KERNEL)")
            columns = {row[1] for row in database.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
            name = next((column for column in ("demangledName", "shortName", "mangledName") if column in columns), None)
            if name is None or not {"start", "end"} <= columns:
                raise TraceError(
                    f"{path}: CUPTI_ACTIVITY_KIND_KERNEL lacks start, end or name (has {', '.join(sorted(columns))})"
                )
            rows = database.execute(
                "SELECT k.end - k.start, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
                f"LEFT JOIN StringIds s ON s.id = k.{name}"
            ).fetchall()
    except sqlite3.Error as problem:
        raise TraceError(f"{path}: not a readable SQLite export, damaged or cut short? ({problem})") from None
    if not rows:
        raise TraceError(f"{path}: no rows; a kernel trace needs at least one measurement")
    seconds = np.array([row[0] or 0 for row in rows], dtype=np.float64) * SECONDS["ns"]
    return _table(path, seconds, words([row[1] or NO_NAME for row in rows]))


def _table(path: Path, seconds: FloatArray, name: Words) -> KernelTable:
    return make_table(seconds, "other", {}, {"name": name}, str(path), FORMAT)
