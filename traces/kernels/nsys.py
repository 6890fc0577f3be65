"""Kernels with names and times alone: Nsight Systems, Nsight Compute, rocprof, vLLM's layerwise profile."""

from __future__ import annotations

import csv
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from forerun.arrays import FloatArray
from forerun.yaml_files import packaged
from traces.errors import TraceError, shown
from traces.fields import SECONDS, Record, number_of, object_at, objects_at
from traces.files import head, load_document
from traces.kernels.frame import Frame, read_frame
from traces.kernels.table import KernelTable, Words, make_table, whole, words

FORMAT = "nsys"
NO_NAME = "kernel without a name"
OTHER_METRIC = "metric that is no duration"
DURATIONS = ("gpu__time_duration.sum", "Duration")
"""Metrics of Nsight Compute that are a kernel's time."""
LAYERWISE = "vllm-layerwise"
_EUROPEAN = re.compile(r"\d\.\d{3}\.\d{3}|\d\.\d{3},\d|^\d+,(?:\d{1,2}|\d{4,})$")
_RULES: list[dict[str, str]] = packaged("traces.kernels", "formats.yaml")["by-name"]
_ROLES = ("name", "with", "time", "total", "calls", "metric", "unit", "begin", "end")


class KernelHeader(dict[str, str]):
    """Columns of a table of kernels by role, of the ``format`` whose header stands after ``before`` lines."""

    def __init__(self, columns: Mapping[str, str], format: str, before: int, unit: str) -> None:
        super().__init__(columns)
        self.format, self.before, self.unit = format, before, unit


def header_of(start: bytes) -> KernelHeader | None:
    """Header of a table of kernels by name, after the lines that a profiler prints first; None without one."""
    for before, line in enumerate(start.decode("utf-8-sig", "replace").splitlines()[:2000]):
        cells = [cell.strip() for cell in next(csv.reader([line]), [])] if "," in line else []
        for rule in _RULES if len(cells) > 1 else ():
            matches = {
                role: next((match for cell in cells if (match := re.fullmatch(rule[role], cell))), None)
                for role in _ROLES
                if role in rule
            }
            if all(matches.values()):
                columns = {role: match[0] for role, match in matches.items() if match}
                units = [match[1] for role, match in matches.items() if match and match.groups() and role != "with"]
                return KernelHeader(columns, rule["format"], before, (units or ["ns"])[0].lower())
    return None


def read_nsys(path: Path) -> KernelTable:
    """Kernels, copies and fills of a CSV or SQLite export."""
    if head(path, 16).startswith(b"SQLite format 3"):
        return _read_sqlite(path)
    header = header_of(head(path))
    if header is None:
        raise TraceError(
            f"{path}: no header with the name and the time of kernels; nsys stats --report cuda_gpu_trace --format csv"
        )
    frame = read_frame(path, header.before, footer=True)
    european = any(_EUROPEAN.search(text) for text in frame.texts(header["time"]).names) if "metric" in header else None
    if "metric" in header:
        frame = frame.drop(~frame.texts(header["metric"]).matching(DURATIONS.__contains__), OTHER_METRIC)
    count = None
    if "begin" in header:
        seconds = (frame.floats(header["end"]) - frame.floats(header["begin"])) * SECONDS["ns"]
    elif "total" in header:
        count = whole(_numbers(frame, header["calls"]))
        seconds = _numbers(frame, header["total"]) / np.maximum(count, 1) * SECONDS[header.unit]
    else:
        frame, factors = _units(frame, header)
        seconds = _numbers(frame, header["time"], european) * factors
    texts: dict[str, str | Words] = {"name": frame.texts(header["name"])}
    return frame.kernels(seconds, "other", {}, texts, header.format, None, count)


def _units(frame: Frame, header: KernelHeader) -> tuple[Frame, FloatArray]:
    """Rows of values, and the seconds of each unit, from a column, the row below the header or the name."""
    if "unit" in header:
        names = frame.texts(header["unit"])
        return frame, np.array([_unit(frame, name) for name in names.names])[names.codes]
    first = frame.texts(header["time"])
    word = first.names[first.codes[0]] if frame.rows else ""
    if word.isalpha():
        rest = frame._replace(table=frame.table.slice(1))
        return rest, np.full(rest.rows, _unit(frame, word))
    return frame, np.full(frame.rows, SECONDS[header.unit])


def _unit(frame: Frame, word: str) -> float:
    """Seconds of a unit such as ``usecond``, ``us`` or ``second``."""
    short = word.replace("second", "s")
    if short not in SECONDS:
        raise TraceError(f"{frame.path}: {shown(word)} is no unit of time")
    return SECONDS[short]


def _numbers(frame: Frame, name: str, european: bool | None = None) -> FloatArray:
    """A number column, perhaps with commas between thousands, or with points and decimal commas as in Europe."""
    column = frame.texts(name)
    european = any(_EUROPEAN.search(text) for text in column.names) if european is None else european
    thousands, decimal = (".", ",") if european else (",", ".")
    try:
        numbers = [text.replace(thousands, "").replace(decimal, ".") for text in column.names]
        return np.array([float(text or "nan") for text in numbers])[column.codes]
    except ValueError:
        return frame.floats(name)


def summaries_of(document: object) -> list[Record]:
    """Trees of a vLLM layerwise profile: of the document itself, or of each phase (prefill, decode)."""
    phases = [document, *document.values()] if isinstance(document, Mapping) else []
    return [tree for phase in phases for tree in objects_at(phase, "summary_stats")]


def read_layerwise(path: Path) -> KernelTable:
    """Kernels of vLLM's layerwise profile: the leaves of its trees, whose other nodes are layers."""
    nodes, leaves = summaries_of(load_document(path)), list[tuple[str, float, int]]()
    if not nodes:
        raise TraceError(f"{path}: no summary_stats, as vllm.profiler.layerwise_profile writes them")
    while nodes:
        node = nodes.pop()
        nodes += objects_at(node, "children")
        entry = object_at(node, "entry")
        calls, total = (number_of(entry.get(name)) for name in ("invocations", "cuda_time_us"))
        if calls and total and not objects_at(node, "children"):
            leaves.append((str(entry.get("name", NO_NAME))[:200], total / calls * SECONDS["us"], int(calls)))
    texts = {"name": words([name for name, _, _ in leaves])}
    seconds, counts = np.array([one[1] for one in leaves]), np.array([one[2] for one in leaves])
    return make_table(seconds, "other", {}, texts, str(path), LAYERWISE, None, counts)


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
