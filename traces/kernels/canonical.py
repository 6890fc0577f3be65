"""The project's own kernel trace: CSV or Parquet with the canonical columns, read and written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as papq

from forerun.errors import warn_renamed
from traces.errors import TraceError, did_you_mean
from traces.fields import SECONDS
from traces.kernels.columns import OLD_COLUMNS, OPS, SIZES, WORDS
from traces.kernels.frame import Frame
from traces.kernels.table import KernelTable, constant, whole

DEFAULT_DTYPE = "bf16"
TIME = re.compile(rf"(?:measured|time|latency|duration|median)_({'|'.join(SECONDS)})")
"""Names of the column of times, with its unit; ``measured_s`` is the canonical one."""


def is_canonical(names: tuple[str, ...]) -> bool:
    """True if these are the columns of a canonical kernel trace."""
    return "measured_s" in names or ("op" in names and "latency" not in names and "median_ms" not in names)


def read_canonical(frame: Frame) -> KernelTable:
    """Kernels of a file in the canonical format; unknown columns are refused, not ignored.

    Raises:
        TraceError: no ``op``, no or several columns of times, an unknown column or operation, or a column missing.
    """
    old = OLD_COLUMNS.keys() & set(frame.names)
    for name in sorted(old):
        warn_renamed(f"kernel trace column {name}", OLD_COLUMNS[name])
    if old:
        frame = frame._replace(table=frame.table.rename_columns([OLD_COLUMNS.get(name, name) for name in frame.names]))
    times = [match for name in frame.names if (match := TIME.fullmatch(name))]
    frame.need("op")
    if not times:
        raise TraceError(
            f"{frame.path}: no column of times with its unit, such as time_us or measured_s (columns: {frame.listed})"
        )
    if len(times) > 1:
        columns = ", ".join(match[0] for match in times)
        raise TraceError(f"{frame.path}: {len(times)} columns of times ({columns}); keep one")
    time = times[0]
    known = (*SIZES, *WORDS, time[0], "std_s", "count")
    for name in frame.names:
        if name not in known:
            raise TraceError(
                f"{frame.path}: unknown column '{name}'{did_you_mean(name, known)} (known: {', '.join(known)})"
            )
    op = frame.texts("op")
    for name in op.names:
        if name not in OPS:
            raise TraceError(
                f"{frame.path}: op: no operation '{name}'{did_you_mean(name, OPS)} (one of {', '.join(OPS)})"
            )
        missing = [column for column in OPS[name].needed if column not in frame.names]
        if missing:
            raise TraceError(
                f"{frame.path}: op '{name}' needs the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
            )
    sizes = {name: frame.floats(name) for name in SIZES if name in frame.names}
    texts = frame.present(**{name: name for name in WORDS if name != "op"})
    dtype = frame.texts("dtype") if frame.has("dtype") else constant("", frame.rows)
    texts["dtype"] = dtype.mapped(lambda name: name or DEFAULT_DTYPE)
    std_s = frame.floats("std_s") if frame.has("std_s") else None
    count = whole(frame.floats("count")) if frame.has("count") else None
    return frame.kernels(frame.floats(time[0]) * SECONDS[time[1]], op, sizes, texts, "forerun", std_s, count)


def write_kernels(table: KernelTable, path: str | Path, parquet: bool | None = None) -> Path:
    """Write a table in the canonical format: as ``parquet`` says, else Parquet when the name ends in ``.parquet``, else
    CSV. Returns the path written."""
    target = Path(path)
    columns: dict[str, Any] = {}
    for name in WORDS:
        column = table.word(name)
        texts = column.texts()
        if name == "op" or any(texts):
            columns[name] = pa.array([text or None for text in texts], pa.string())
    for name in SIZES:
        values = table.size(name)
        if values.any():
            columns[name] = pa.array(values, pa.int64(), mask=values == 0)
    columns["measured_s"] = pa.array(table.measured_s)
    if np.isfinite(table.std_s).any():
        columns["std_s"] = pa.array(table.std_s, mask=~np.isfinite(table.std_s))
    if table.count.any():
        columns["count"] = pa.array(table.count, mask=table.count == 0)
    data = pa.table(columns)
    if target.suffix == ".parquet" if parquet is None else parquet:
        papq.write_table(data, target)
    else:
        pacsv.write_csv(data, target)
    return target
