"""Recognise a file's format by its content, never by its name, and open it as raw chunks."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.yaml_files import packaged
from traces.errors import TraceError, did_you_mean, shown
from traces.fields import Record, column_words, objects_of, squash
from traces.files import OnError, first_line, first_text, head, is_parquet, visible_keys
from traces.requests.agents import agentic_chunks, dag_chunks
from traces.requests.calls import (
    SESSION_KEYS,
    coding_agent_chunks,
    is_server_log,
    json_documents,
    json_files,
    otel_chunks,
    server_log_chunks,
    spans_of,
)
from traces.requests.documents import sharegpt_chunks, vllm_bench_chunks
from traces.requests.formats import LAYOUTS, PLAIN
from traces.requests.layout import MAP_EXAMPLE, Options, TraceLayout, can_guess, mapped_layout, no_tokens_hint
from traces.requests.rows import (
    Paths,
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
from traces.requests.values import LEAST_UNIX_S, float_of, moment_of

_DOCUMENTS: dict[str, Callable[[Path, Options], Iterator[RawChunk]]] = {
    "agentic": agentic_chunks,
    "aiperf-dag": dag_chunks,
    "coding-agent": coding_agent_chunks,
    "otel": otel_chunks,
    "server-log": server_log_chunks,
    "servegen": servegen_chunks,
    "sharegpt": sharegpt_chunks,
    "vllm-bench": vllm_bench_chunks,
}
"""Formats that are no tables of rows, with their readers."""
_TABLES = [layout for name, layout in LAYOUTS.items() if name not in _DOCUMENTS and name != "timed-trace"]

FORMATS: dict[str, str] = {layout.name: layout.title for layout in LAYOUTS.values()}
"""Names accepted by ``format=`` in addition to ``auto``, each with a title."""

READERS: dict[str, Callable[[Path], Iterable[Record]]] = {}
"""Registered readers by format: each yields one mapping per request, with the canonical column names as keys."""


def register_reader(format: str, title: str, read: Callable[[Path], Iterable[Record]]) -> None:
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
        streams: True if the rows arrive a chunk at a time; otherwise the file is one document.
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
        columns: mapping of a table's columns, with the keys of ``layout.MAPPED``; only for ``format`` auto.

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
        return OpenedTrace(
            path, layout, None, lambda *_: record_chunks(path, list(READERS[format](path))), streams=False
        )
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
    try:
        return (_json if start in "{[" else _csv)(path, text, layout, columns)
    except TraceError:
        if layout is None and columns is None and is_server_log(head(path, _LOG_HEAD_BYTES).decode(errors="replace")):
            return _document(path, "server-log")
        raise


_LOG_HEAD_BYTES = 4 << 20
"""Bytes of a server's log in which its first request is looked for."""


def _folder(path: Path, layout: TraceLayout | None) -> OpenedTrace:
    name = layout.name if layout else None
    if name in (None, "servegen") and pool_files(path):
        return _document(path, "servegen")
    files = json_files(path)
    if files and name is None:
        name = open_trace(files[0], "auto").layout.name
    if files and name in ("agentic", "otel", "coding-agent"):
        return _document(path, name)
    raise TraceError(
        f"{path}: a folder is read as ServeGen pool (chunk-*-trace.csv), agent sessions or spans (*.json, *.jsonl); it "
        f"holds neither" + (f" that fits format {layout.name!r}" if layout else "")
    )


def _document(path: Path, format: str) -> OpenedTrace:
    return OpenedTrace(path, LAYOUTS[format], None, lambda options, _: _DOCUMENTS[format](path, options), streams=False)


def _parquet(path: Path, layout: TraceLayout | None, columns: Mapping[str, str] | None) -> OpenedTrace:
    names = parquet_columns(path)
    if layout is None:
        start = next(parquet_chunks(path, "skip", names), None)
        sample = {name: values[0] for name, values in start.columns.items()} if start and start.count else {}
        layout = _recognise(path, names, "columns", sample, columns, lambda: parquet_chunks(path, "skip", names))
    used = {column.name for column in layout.bind(names, str(path)).values()}
    wanted = names if layout.whole_rows else [name for name in names if name in used]
    return OpenedTrace(path, layout, names, lambda _, on_error: parquet_chunks(path, on_error, wanted), streams=True)


def _json(path: Path, text: str, layout: TraceLayout | None, columns: Mapping[str, str] | None) -> OpenedTrace:
    """JSON lines, a list of rows, or one object that is a document or holds rows."""
    lines = text.lstrip().replace("\r", "\n").split("\n")
    lines = lines if len(lines) > 1 else [first_line(path)]
    parsed: list[Record] = [record for line in lines[:_SAMPLE_LINES] if (record := _object(line)) is not None]
    rows: list[Record] | None = None
    if _object(lines[0]) is None:
        keys = visible_keys(text)
        if layout is None and (name := _document_of([dict.fromkeys(keys)])):
            return _document(path, name)
        try:
            documents = [document for _, document in json_documents(path)]
        except TraceError:
            if not parsed or text.lstrip()[0] == "[":
                raise
        else:
            document = documents[0] if len(documents) == 1 else documents
            parsed, rows = objects_of(document if isinstance(document, list) else [document]), _rows_in(document)
            if not parsed:
                raise TraceError(f"{path}: a JSON list without any object; a list of requests expected")
    if layout is None and (name := _document_of(parsed)):
        return _document(path, name)
    inner = _rows_in(parsed[0]) if len(parsed) == 1 and rows is None else []
    if inner and layout is None and not any(one.accepts(list(parsed[0])) for one in _TABLES):
        rows = inner

    def chunks(paths: Paths, on_error: OnError) -> Iterator[RawChunk]:
        return jsonl_chunks(path, on_error, paths) if rows is None else record_chunks(path, rows, paths=paths)

    sample = (parsed if rows is None else rows)[:_SAMPLE_LINES]
    chosen = layout or _recognise_records(path, sample, columns, chunks)
    return OpenedTrace(path, chosen, None, lambda _, on_error: chunks(chosen.paths, on_error), streams=rows is None)


_SAMPLE_LINES = 20
"""Lines of JSON that are looked at to recognise a format."""


def _object(line: str) -> dict[str, object] | None:
    with suppress(ValueError, RecursionError):
        if isinstance(parsed := json.loads(line), dict):
            return parsed
    return None


def _document_of(records: Sequence[Record]) -> str | None:
    """Format of a document (or lines) that is no table of rows, by the keys of its first objects."""
    keys = set().union(*records[:1])
    for name in ("agentic", "aiperf-dag"):
        if set(LAYOUTS[name].signature) <= keys:
            return name
    if "input_lens" in keys or {"total_input_tokens", "request_throughput"} <= keys:
        return "vllm-bench"
    if keys & {"conversations", "conversation"}:
        return "sharegpt"
    if any(session <= record.keys() for record in records for session in SESSION_KEYS):
        return "coding-agent"
    if keys & {"resourceSpans", "resourceLogs", "batches"} or next(spans_of(list(records)), None) is not None:
        return "otel"
    if any(str(record.get("event", "")).startswith("request.") and "rid" in record for record in records):
        return "server-log"
    return None


def _rows_in(document: object) -> list[Record]:
    """Rows of a JSON document: its longest list of objects; rows inside buckets get the buckets' fields."""
    if isinstance(document, Mapping):
        lists = [rows for value in document.values() if (rows := objects_of(value))]
        lists = lists or [_rows_in(value) for value in document.values() if isinstance(value, Mapping)]
        document = max(lists, key=len, default=[])
    joined: list[Record] = []
    for row in objects_of(document):
        parts = next((rows for value in row.values() if (rows := objects_of(value))), [])
        if parts and PLAIN.accepts(list(parts[0])) and not PLAIN.accepts(list(row)):
            joined += ({**row, **part} for part in parts)
        else:
            joined.append(row)
    return joined


def _leaves(record: Record, path: str = "", depth: int = 4) -> Iterator[tuple[str, str, object]]:
    """(name, dotted path, value) of the values in a record and the objects inside it, the outer ones first."""
    yield from ((key, path + key, value) for key, value in record.items() if not isinstance(value, Mapping | list))
    for key, value in record.items():
        if isinstance(value, Mapping) and depth:
            yield from _leaves(value, f"{path}{key}.", depth - 1)


def _recognise_records(
    path: Path,
    sample: Sequence[Record],
    columns: Mapping[str, str] | None,
    chunks: Callable[[Paths, OnError], Iterator[RawChunk]],
) -> TraceLayout:
    """The layout of JSON records, whose columns may stand inside nested objects."""
    names = list(dict.fromkeys(key for record in sample for key in record))
    first = {key: value for record in reversed(sample) for key, value in record.items()}
    try:
        return _recognise(path, names, "keys", first, columns, lambda: chunks({}, "skip"))
    except TraceError as problem:
        leaves: dict[str, tuple[str, object]] = {}
        for name, place, value in sorted((leaf for one in sample for leaf in _leaves(one)), key=_depth):
            leaves.setdefault(name, (place, value))
        paths = {name: [place] for name, (place, _) in leaves.items()}
        inner = {name: value for name, (_, value) in leaves.items()}
        if inner.keys() <= set(names) or _SUMS in str(problem):
            raise
        with suppress(TraceError):
            layout = _recognise(path, list(inner), "keys", inner, columns, lambda: chunks(paths, "skip"))
            used = [column.name for column in layout.bind(list(inner), str(path)).values()]
            note = "; ".join(filter(None, [layout.note, f"read inside: {', '.join(paths[name][0] for name in used)}"]))
            return replace(layout, paths={name: paths[name] for name in used}, note=note)
        raise


def _depth(leaf: tuple[str, str, object]) -> int:
    return leaf[1].count(".")


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
    if layout is None and not any(one.accepts(names) for one in _TABLES) and is_server_log(text):
        return _document(path, "server-log")
    row = next(csv.reader(later, delimiter=csv_dialect(line)), [])
    sample = dict(zip(names, row, strict=False))
    chosen = layout or _recognise(path, names, "columns", sample, columns, lambda: csv_chunks(path, "skip"))
    used = chosen.bind(names, f"{path}:1")
    wanted = None if chosen.whole_rows else [column.name for column in used.values()]
    typed = [column.name for canonical, column in used.items() if canonical in _TYPED]
    return OpenedTrace(path, chosen, names, lambda _, on_error: csv_chunks(path, on_error, wanted, typed), streams=True)


def _recognise(
    path: Path,
    names: list[str],
    kind: str,
    sample: Record,
    columns: Mapping[str, str] | None,
    chunks: Callable[[], Iterator[RawChunk]],
) -> TraceLayout:
    """The first table format that fits the column names, else a layout from the user's mapping or a guess."""
    layout = None if columns else next((one for one in _TABLES if one.accepts(names)), None)
    if columns or layout in (PLAIN, LAYOUTS["litellm"]) or (layout is None and can_guess(names, sample)):
        _refuse_sums(path, sample, chunks)
    if layout is not None:
        return layout
    if columns or can_guess(names, sample):
        return mapped_layout(columns or {}, names, str(path), sample)
    seen = ", ".join(shown(name) for name in names[:12]) or "none"
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    present = [name for name in ("input_tokens", "output_tokens") if PLAIN.accepts_for(name, names)]
    if present:
        more += f"; {present[0]} is there, but no column for the other token count"
    more += no_tokens_hint(names)
    raise TraceError(
        f"{path}: no trace format fits; {kind} seen: {seen}{more}{_nearest(names)}. Say which is which with --map "
        f"{MAP_EXAMPLE} (workload.columns in a scenario). {_accepted()}"
    )


def _nearest(names: Sequence[str]) -> str:
    """Format whose columns a table has most of, and the missing ones; empty if it has none."""
    lacks = {}
    for layout in _TABLES:
        wanted = layout.signature or [one for one in layout.required if not layout.accepts_for(one, names)]
        lacks[layout.name] = [name for name in wanted if squash(name) not in set(map(squash, names))]
    best = min(
        lacks, key=lambda name: len(lacks[name]) / max(1, len(LAYOUTS[name].signature or LAYOUTS[name].required))
    )
    few = len(lacks[best]) < len(LAYOUTS[best].signature or LAYOUTS[best].required)
    return f"; nearest is {best}, which lacks {', '.join(lacks[best])}" if few else ""


_SUMS = "the rows are sums over many requests"
_HOUR_S = 3600
_MOST_UNIX_S = 1e10
_LEAST_BUCKET_S = 600
_COUNTED, _BEGIN, _END = (set(words) for words in packaged("traces.requests", "guesses.yaml")["sums"].values())
_DAY = re.compile(r"\d{4}[-/]\d{1,2}([-/]\d{1,2})?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?[AaPp][Mm])?")


def _refuse_sums(path: Path, sample: Record, chunks: Callable[[], Iterator[RawChunk]]) -> None:
    """Refuse a table whose rows count several requests, or cover whole hours or days.

    Args:
        path: the file, for the error.
        sample: values of the first row.
        chunks: opens the rows; only the first chunk is read, and only where names or values of the row raise a doubt.
    """
    counted = [name for name in sample if _counts_requests(name) and float_of(sample[name]) is not None]
    times = [name for name in sample if _seconds(sample[name]) is not None]
    days, clocks = (
        [name for name, value in sample.items() if isinstance(value, str) and pattern.fullmatch(value.strip())]
        for pattern in (_DAY, _CLOCK)
    )
    whole = [name for name in times if _on_the_hour(sample[name])]
    others = [name for name in sample if name not in (*days, *clocks, *whole)]
    if any(name in times or PLAIN.accepts_for("arrival_s", [name]) for name in others):
        days, clocks, whole = [], [], []  # another column has the arrivals
    if days and clocks:
        raise TraceError(
            f"{path}: date and time are in two columns, {days[0]!r} and {clocks[0]!r}; join them in one, such as "
            f"'2026-07-01 09:30:00'"
        )
    first, last = (
        next((name for name in times if not words.isdisjoint(column_words(name))), "") for words in (_BEGIN, _END)
    )
    if not counted and not days and not (first and last) and not whole:
        return
    start = next(iter(chunks()), None)
    rows = [] if start is None else [
        dict(zip(sample, row, strict=True)) for row in zip(*map(start.column, sample), strict=True)
    ]  # fmt: skip
    spans = [(_seconds(row[first]) or 0.0, _seconds(row[last]) or 0.0) for row in rows if first and last]
    count = next((name for name in counted if any((float_of(row[name]) or 0) > 1 for row in rows)), None)
    lengths = {end - begin for begin, end in spans}
    if count is not None:
        what = f"column {count!r} counts {shown(sample[count])} requests in the first"
    elif days:
        what = f"column {days[0]!r} has dates without a time of day"
    elif len(lengths) == 1 and min(lengths) >= _LEAST_BUCKET_S:
        what = f"each covers {min(lengths):.0f} s"
    elif len(rows) > 1 and whole and all(_on_the_hour(row[name]) for name in times for row in rows):
        what = f"all times in {whole[0]!r} are whole hours"
    else:
        return
    way = _load(rows, count, spans)
    raise TraceError(f"{path}: {_SUMS}, not requests ({what}); {way}")


def _load(rows: Sequence[Record], count: str | None, spans: Sequence[tuple[float, float]]) -> str:
    """Way out of a table of sums over spans of time: a workload with the means that it states."""
    way = "describe the load in the scenario's workload"
    seconds = max(end for _, end in spans) - min(begin for begin, _ in spans) if spans else 0.0
    requests = sum(float_of(row[count]) or 0 for row in rows) if count else 0
    if not requests:
        return f"{way}: arrivals, input_tokens and output_tokens of a request"
    rate = f"request_rate: {requests / seconds:.3g}{_profile(rows, count, spans, seconds)}" if seconds > 0 else ""
    means = [f"arrivals: {{{rate}}}"] if rate else []
    for side in ("input_tokens", "output_tokens"):
        name = next((name for name in rows[0] if PLAIN.accepts_for(side, [name])), None)
        if name is not None:
            means.append(f"{side}: {sum(float_of(row[name]) or 0 for row in rows) / requests:.0f}")
    return f"{way}; their means: {', '.join(means) or 'not stated'} ({requests:.0f} requests; single lengths are lost)"


_MOST_BUCKETS = 24


def _profile(rows: Sequence[Record], count: str | None, spans: Sequence[tuple[float, float]], seconds: float) -> str:
    """Rate over time of a table of counts, as ``arrivals.profile`` has it; empty with one span or many."""
    counts: dict[float, float] = {}
    for row, (begin, _) in zip(rows, spans, strict=True):
        counts[begin] = counts.get(begin, 0.0) + (float_of(row[count]) or 0 if count else 0)
    width, first = spans[0][1] - spans[0][0], min(counts)
    if not 1 < len(counts) <= _MOST_BUCKETS:
        return ""
    mean = sum(counts.values()) / seconds * width
    points = [[begin - first + width / 2, counts[begin] / mean] for begin in sorted(counts)]
    points = [[0, points[0][1]], *points, [seconds, points[-1][1]]]
    return f", profile: [{', '.join(f'[{at_s:.0f}, {factor:.3g}]' for at_s, factor in points)}]"


def _counts_requests(name: str) -> bool:
    """True for names such as ``num_model_requests``, ``request_count`` and ``requests``, not for ``request_id``."""
    words = set(column_words(name))
    several = words & {"requests", "calls"}
    single = words & {"request", "call"}
    return bool(several or (single and words & _COUNTED)) and words - several - single <= _COUNTED


def _seconds(value: object) -> float | None:
    """A Unix time in seconds, as a number or an ISO 8601 date with its time."""
    moment = moment_of(value, 1.0)
    return moment if moment is not None and LEAST_UNIX_S <= moment <= _MOST_UNIX_S else None


def _on_the_hour(value: object) -> bool:
    seconds = _seconds(value)
    return seconds is not None and seconds % _HOUR_S == 0


def _accepted() -> str:
    return (
        "Accepted: CSV, JSONL or Parquet with arrival_s, input_tokens, output_tokens (or common names for them), "
        f"or format={', '.join(name for name in LAYOUTS if name not in ('forerun', 'plain'))}"
    )
