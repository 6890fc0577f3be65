"""Recognise a file's format by its content, never by its name, and open it as raw chunks."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from forerun.dataclass import dataclass
from traces.errors import TraceError, did_you_mean, shown
from traces.files import OnError, first_text, is_parquet, load_document, visible_keys
from traces.requests.agents import agentic_chunks, dag_chunks, otel_chunks, session_files
from traces.requests.documents import sharegpt_chunks, vllm_bench_chunks
from traces.requests.formats import LAYOUTS, PLAIN
from traces.requests.layout import MAP_EXAMPLE, Options, TraceLayout, can_guess, mapped_layout
from traces.requests.rows import (
    RawChunk,
    csv_chunks,
    csv_dialect,
    jsonl_chunks,
    parquet_chunks,
    parquet_columns,
    record_chunks,
    split_header,
)
from traces.requests.servegen import is_servegen_header, pool_files, servegen_chunks

_DOCUMENTS: dict[str, Callable[[Path, Options], Iterator[RawChunk]]] = {
    "agentic": agentic_chunks,
    "aiperf-dag": dag_chunks,
    "otel": otel_chunks,
    "servegen": servegen_chunks,
    "sharegpt": sharegpt_chunks,
    "vllm-bench": vllm_bench_chunks,
}
"""Formats that are no tables of rows, with their readers."""
_TABLES = [layout for name, layout in LAYOUTS.items() if name not in _DOCUMENTS and name != "timed-trace"]

FORMATS: dict[str, str] = {layout.name: layout.title for layout in LAYOUTS.values()}
"""Names accepted by ``format=`` in addition to ``auto``, each with a title."""

READERS: dict[str, Callable[[Path], Iterable[Mapping[str, Any]]]] = {}
"""Registered readers by format: each yields one mapping per request, with the canonical column names as keys."""


def register_reader(format: str, title: str, read: Callable[[Path], Iterable[Mapping[str, Any]]]) -> None:
    """Add a trace format.

    Args:
        format: name of the format, for ``workload.format`` and ``--format``.
        title: short description, for lists of formats.
        read: yields one mapping per request: ``arrival_s``, ``input_tokens``, ``output_tokens`` and the optional
            canonical columns.
    """
    FORMATS[format] = title
    LAYOUTS[format] = replace(LAYOUTS["forerun"], name=format, title=title)
    READERS[format] = read


_TYPED = ("arrival_s", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class OpenedTrace:
    """A trace that has been recognised and can be opened.

    Attributes:
        path: file or folder.
        layout: layout of its format.
        names: column names, or None if they are known only from the rows.
        chunks: function that opens the trace.
        streams: whether the rows arrive a chunk at a time; otherwise the file is one document.
    """

    path: Path
    layout: TraceLayout
    names: list[str] | None
    chunks: Callable[[Options, OnError], Iterator[RawChunk]]
    streams: bool


def open_trace(path: Path, format: str, columns: Mapping[str, str] | None = None) -> OpenedTrace:
    """Recognise ``path`` (or use the given format) and return how to read it.

    Args:
        path: file or folder.
        format: a name of ``FORMATS``, or ``auto``.
        columns: which column of a table means what, in the words of ``layout.MAPPED``; for ``format`` auto alone.

    Raises:
        TraceError: nothing there, unreadable, unknown format name, or content that no format fits.
    """
    if format != "auto" and format not in LAYOUTS:
        hint = did_you_mean(format, [*LAYOUTS, "auto"])
        raise TraceError(f"no trace format {format!r}{hint}; known: auto, {', '.join(LAYOUTS)}")
    if columns and format != "auto":
        raise TraceError(f"{path}: format {format!r} says what the columns mean; leave it out, or leave columns out")
    layout = LAYOUTS.get(format)
    if layout is not None and format in READERS:
        read = READERS[format]
        return OpenedTrace(path, layout, None, lambda *_: record_chunks(path, list(read(path))), streams=False)
    if path.is_dir():
        return _folder(path, layout)
    if format in _DOCUMENTS:
        return _document(path, format)
    if is_parquet(path):
        return _parquet(path, layout, columns)
    text = first_text(path)
    start = text.lstrip()[:1]
    if not start:
        raise TraceError(f"{path}: the file holds nothing but blanks; a trace needs at least one request")
    if start == "{":
        return _json_object(path, text, layout, columns)
    if start == "[":
        return _json_list(path, layout, columns)
    return _csv(path, text, layout, columns)


def _folder(path: Path, layout: TraceLayout | None) -> OpenedTrace:
    servegen, sessions, name = pool_files(path), session_files(path), layout.name if layout else None
    if name in (None, "servegen") and servegen:
        return _document(path, "servegen")
    if name in (None, "agentic") and sessions:
        return _document(path, "agentic")
    raise TraceError(
        f"{path}: a folder is read as ServeGen pool (chunk-*-trace.csv) or as agent sessions (*.json); it holds neither"
        + (f" that fits format {layout.name!r}" if layout else "")
    )


def _document(path: Path, format: str) -> OpenedTrace:
    return OpenedTrace(path, LAYOUTS[format], None, lambda options, _: _DOCUMENTS[format](path, options), streams=False)


def _parquet(path: Path, layout: TraceLayout | None, columns: Mapping[str, str] | None) -> OpenedTrace:
    names = parquet_columns(path)
    layout = layout or _recognise(path, names, "columns", {}, columns)
    used = {column.name for column in layout.bind(names, str(path)).columns.values()}
    wanted = names if layout.drop or layout.prepare or layout.flatten else [name for name in names if name in used]
    return OpenedTrace(
        path, layout, names, lambda options, on_error: parquet_chunks(path, on_error, wanted), streams=True
    )


def _json_object(path: Path, text: str, layout: TraceLayout | None, columns: Mapping[str, str] | None) -> OpenedTrace:
    """JSON lines, or one object that is an agent session, spans or a benchmark result."""
    lines = text.lstrip().replace("\r", "\n").split("\n")
    record = next((parsed for line in lines[:20] if (parsed := _object(line)) is not None), None)
    keys = visible_keys(text) if record is None else set(record)
    if _object(lines[0]) is None and len(lines) > 1:
        keys |= visible_keys(text)
    for agents in ("agentic", "aiperf-dag", "otel"):
        if layout is None and set(LAYOUTS[agents].signature) <= keys:
            return _document(path, agents)
    if layout is None and ("input_lens" in keys or {"total_input_tokens", "request_throughput"} <= keys):
        return _document(path, "vllm-bench")
    if layout is None and record is None and len(lines) > 1:
        raise TraceError(
            f"{path}: neither JSON lines nor a JSON trace: the first line is {shown(lines[0], 60)}; keys seen: "
            f"{', '.join(sorted(keys)[:12]) or 'none'}. {_accepted()}"
        )
    chosen = layout or _recognise(path, sorted(keys) if record is None else list(record), "keys", record or {}, columns)
    return OpenedTrace(
        path, chosen, None, lambda options, on_error: jsonl_chunks(path, on_error, chosen.flatten), streams=True
    )


def _object(line: str) -> dict[str, object] | None:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _json_list(path: Path, layout: TraceLayout | None, columns: Mapping[str, str] | None) -> OpenedTrace:
    document = load_document(path)
    first = next((entry for entry in document if isinstance(entry, dict)), {}) if isinstance(document, list) else {}
    if layout is None and ("conversations" in first or "conversation" in first):
        return _document(path, "sharegpt")
    if not first:
        raise TraceError(f"{path}: a JSON list without any object; a list of requests expected")
    chosen = layout or _recognise(path, list(first), "keys", first, columns)
    return OpenedTrace(
        path, chosen, None, lambda options, on_error: record_chunks(path, document, flatten=chosen.flatten), False
    )


def _csv(path: Path, text: str, layout: TraceLayout | None, columns: Mapping[str, str] | None) -> OpenedTrace:
    """A CSV table with a header, or the windows of a ServeGen client."""
    line, *later = text.lstrip("\r\n").replace("\r", "\n").split("\n", 2)[:2]
    names = split_header(path, line)
    if layout is None and is_servegen_header(names):
        return _document(path, "servegen")
    if layout is None and any(name and name.replace(".", "", 1).isdigit() for name in names):
        raise TraceError(
            f"{path}:1: {shown(line, 60)} looks like data; a header line with column names expected. {_accepted()}"
        )
    row = next(csv.reader(later, delimiter=csv_dialect(line)), [])
    sample = dict(zip(names, row, strict=False))
    chosen = layout or _recognise(path, names, "columns", sample, columns)
    used = chosen.bind(names, f"{path}:1").columns
    wanted = None if chosen.drop or chosen.prepare else [column.name for column in used.values()]
    typed = [column.name for canonical, column in used.items() if canonical in _TYPED]
    return OpenedTrace(
        path, chosen, names, lambda options, on_error: csv_chunks(path, on_error, wanted, typed), streams=True
    )


def _recognise(
    path: Path, names: list[str], kind: str, sample: Mapping[str, Any], columns: Mapping[str, str] | None
) -> TraceLayout:
    """The first table format that the column names fit, or what a user or a guess makes of them."""
    if columns:
        return mapped_layout(columns, names, str(path), sample)
    for layout in _TABLES:
        if layout.accepts(names):
            return layout
    if can_guess(names, sample):
        return mapped_layout({}, names, str(path), sample)
    seen = ", ".join(shown(name) for name in names[:12]) or "none"
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    present = [name for name in ("input_tokens", "output_tokens") if PLAIN.accepts_for(name, names)]
    if present:
        more += f"; {present[0]} is there, but no column for the other token count"
    raise TraceError(
        f"{path}: no trace format fits; {kind} seen: {seen}{more}. Say which is which with --map {MAP_EXAMPLE} "
        f"(workload.columns in a scenario). {_accepted()}"
    )


def _accepted() -> str:
    return (
        "Accepted: CSV, JSONL or Parquet with arrival_s, input_tokens, output_tokens (or common names for them), "
        f"or format={', '.join(name for name in LAYOUTS if name not in ('forerun', 'plain'))}"
    )
