"""Reading request traces: whole as one table, or as a stream of tables in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from forerun.arrays import IntArray
from traces.catalogue import resolve
from traces.errors import TraceError, did_you_mean
from traces.files import OnError
from traces.requests.detect import OpenedTrace, open_trace
from traces.requests.layout import Options
from traces.requests.scan import Piece, Scan
from traces.requests.table import PrefixHashes, RequestTable

CHUNK_ROWS = 65_536
"""Rows of a streamed table when the caller says nothing."""


def read_requests(
    path: str | Path,
    format: str = "auto",
    *,
    on_error: OnError = "stop",
    limit: int | None = None,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> RequestTable:
    """Read a whole request trace, sorted by arrival, the first arrival at 0.

    Args:
        path: a file, a folder (ServeGen pool, agent sessions) or the name of a sample (``sample_names()``).
        format: a name of ``traces.FORMATS``, or "auto" to recognise it by content; the result says which it was.
        on_error: "stop" raises at the first bad row; "skip" leaves bad rows out and counts them in ``skipped``.
        limit: read no more than this many good rows, in file order.
        columns: which column of a table means what, where its names leave that open: ``arrival``, ``input``,
            ``output``, ``session``, ``ttft``, ``e2e``; a time unit may follow (``ts:ms``). Others are guessed.
        options: fields of ``traces.Options`` that the format takes, such as ``block_tokens=16``.

    Raises:
        TraceError: nothing to read, no format fits, an option the format does not take, a bad row.
    """
    source, scan = _open(path, format, on_error, limit, columns, options)
    pieces = list(_pieces(source, scan, limit))
    if not pieces:
        raise TraceError(_nothing(source, scan))
    return _table(Piece.concatenate(pieces), source, scan, scan.skipped)


def iter_requests(
    path: str | Path,
    format: str = "auto",
    *,
    on_error: OnError = "stop",
    limit: int | None = None,
    chunk_rows: int = CHUNK_ROWS,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[RequestTable]:
    """Read a request trace as tables of at most ``chunk_rows`` requests, in order of arrival throughout.

    CSV, JSONL and Parquet are read as a stream: memory is a few chunks (plus the names of the sessions), however long
    the file. Rows that stand up to ``chunk_rows`` rows away from their place in time are put right. Formats that are
    one document (ServeGen, agent sessions, ShareGPT, vLLM results) are read whole and handed out in chunks.
    Each chunk's ``skipped`` counts only what was skipped since the chunk before. Arguments as in ``read_requests``.

    Raises:
        TraceError: as ``read_requests``, and when rows are farther out of order than a stream can mend.
    """
    if isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int) or chunk_rows < 1:
        raise TraceError(f"chunk_rows: {chunk_rows!r}: a whole number >= 1 expected")
    source, scan = _open(path, format, on_error, limit, columns, options)
    return _stream(source, scan, limit, chunk_rows)


def _open(
    path: str | Path,
    format: str,
    on_error: str,
    limit: int | None,
    columns: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> tuple[OpenedTrace, Scan]:
    """Check the arguments and recognise the file."""
    if on_error not in ("stop", "skip"):
        raise TraceError(f"on_error: {on_error!r}: 'stop' or 'skip' expected")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise TraceError(f"limit: {limit!r}: a whole number >= 1 expected")
    source = open_trace(resolve(path), format, columns)
    known = {option.name for option in fields(Options)}
    for name in options:
        if name not in source.layout.options:
            takes = ", ".join(sorted(source.layout.options)) or "none"
            hint = did_you_mean(name, known) if name not in known else ""
            raise TraceError(
                f"{source.path}: format {source.layout.name!r} takes no option {name!r}{hint} (it takes: {takes})"
            )
    try:
        chosen = Options(**options)
    except TypeError as problem:
        raise TraceError(f"{source.path}: options {dict(options)}: {problem}") from None
    return source, Scan(source.layout, chosen, "stop" if on_error == "stop" else "skip")


def _pieces(source: OpenedTrace, scan: Scan, limit: int | None) -> Iterator[Piece]:
    return scan.pieces(source.chunks(scan.options, scan.on_error), source.names, str(source.path), limit)


def _nothing(source: OpenedTrace, scan: Scan) -> str:
    if scan.skipped:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in scan.skipped.most_common(4))
        return f"{source.path}: no usable request; {scan.skipped.total()} rows left out ({reasons})"
    return f"{source.path}: no requests (format {source.layout.name!r}); at least one row is needed"


def _table(
    piece: Piece, source: OpenedTrace, scan: Scan, skipped: Mapping[str, int], origin_s: float | None = None
) -> RequestTable:
    """Sort by arrival (stable), count from the first arrival (or ``origin_s``), and freeze."""
    arrival = piece.arrays.get("arrival_s")
    if arrival is not None:
        misplaced = int(np.count_nonzero(np.diff(arrival) < 0))
        if misplaced:
            if not source.layout.merged:
                scan.note(f"{misplaced} rows earlier than the row before them; sorted by arrival")
            piece = piece.take(np.argsort(arrival, kind="stable"))
        arrival = piece.arrays["arrival_s"]
        origin_s = float(arrival[0]) if origin_s is None else origin_s
        piece.arrays["arrival_s"] = arrival - origin_s
    numbers, after, clock_s = piece.arrays.pop("request", None), piece.lists.get("after"), scan.clock.clock_s
    return RequestTable(
        **piece.arrays,
        prefix_hashes=piece.lists.get("prefix_hashes"),
        follows=None if numbers is None or after is None else _follows(numbers, after),
        session_names=tuple(scan.session_codes) if "session_id" in piece.arrays else (),
        began_s=None if clock_s is None or origin_s is None else clock_s + origin_s,
        source=str(source.path),
        format=source.layout.name,
        skipped=skipped,
        notes=tuple(scan.notes),
    )


def _follows(numbers: IntArray, after: PrefixHashes) -> IntArray:
    """Pairs of rows (waited for, waiting). What is not there is not waited for, nor is what came later."""
    order = np.argsort(numbers, kind="stable")
    waiting = np.repeat(np.arange(len(numbers)), np.diff(after.offsets))
    place = np.minimum(np.searchsorted(numbers, after.ids, sorter=order), len(numbers) - 1)
    before = order[place]
    known = (numbers[before] == after.ids) & (before < waiting)
    return np.column_stack([before[known], waiting[known]]).astype(np.int64)


def _stream(source: OpenedTrace, scan: Scan, limit: int | None, chunk_rows: int) -> Iterator[RequestTable]:
    pieces = _pieces(source, scan, limit)
    if not source.streams:
        pieces = iter([Piece.concatenate(whole)]) if (whole := list(pieces)) else iter([])
    reported: Counter[str] | None = None
    origin = last = None
    for chunk in _ordered(pieces, source, scan, chunk_rows):
        if (arrival := chunk.arrays.get("arrival_s")) is not None:
            if last is None:
                origin = last = float(arrival[0])
            if arrival[0] < last:
                raise TraceError(
                    f"{source.path}: rows stand more than {chunk_rows} rows away from their place in time; "
                    "read_requests sorts the whole file, or take a larger chunk_rows"
                )
            last = float(arrival[-1])
        yield _table(chunk, source, scan, scan.skipped - (reported or Counter()), origin)
        reported = scan.skipped.copy()
    if reported is None:
        raise TraceError(_nothing(source, scan))


def _ordered(pieces: Iterator[Piece], source: OpenedTrace, scan: Scan, chunk_rows: int) -> Iterator[Piece]:
    """Chunks in order of arrival; one chunk is always held back so that late rows can still find their place."""
    held: Piece | None = None
    for piece in _regrouped(pieces, chunk_rows):
        held = piece if held is None else Piece.concatenate([held, piece])
        arrival = held.arrays.get("arrival_s")
        if arrival is not None and np.any(np.diff(arrival) < 0):
            if not source.layout.merged:
                scan.note("rows not in order of arrival; sorted")
            held = held.take(np.argsort(arrival, kind="stable"))
        while len(held) >= 2 * chunk_rows:
            chunk, held = held.take(slice(0, chunk_rows)), held.take(slice(chunk_rows, None))
            yield chunk
    if held is not None:
        yield from _cut(held, chunk_rows)


def _regrouped(pieces: Iterator[Piece], chunk_rows: int) -> Iterator[Piece]:
    """Pieces of at most ``chunk_rows`` rows; small ones come together."""
    waiting: list[Piece] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(map(len, waiting)) >= chunk_rows:
            yield from _cut(Piece.concatenate(waiting), chunk_rows)
            waiting = []
    if waiting:
        yield Piece.concatenate(waiting)


def _cut(piece: Piece, chunk_rows: int) -> Iterator[Piece]:
    """Consecutive parts of at most ``chunk_rows`` rows."""
    for start in range(0, len(piece), chunk_rows):
        yield piece.take(slice(start, start + chunk_rows))
