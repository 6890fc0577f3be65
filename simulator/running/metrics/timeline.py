"""A run as a Chrome trace (ui.perfetto.dev, chrome://tracing): engine steps, counters and the life of requests.

Format: "Trace Event Format", Google (2016): complete (X), counter (C), asynchronous (b, e) and metadata (M) events;
``ts`` and ``dur`` in microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.running.metrics.summary import completed_requests
from simulator.running.metrics.timeline_detail import kernel_events, lane_events
from simulator.running.metrics.usage import BOUNDS

if TYPE_CHECKING:
    from simulator.running.records import RunRecords
    from simulator.serving.log import Span
    from simulator.serving.records import RequestRecords, StepRecords

MAX_SLICES = 50_000
"""Engine-step slices in one trace; runs of more steps merge neighbours."""

MAX_REQUESTS = 300
"""Requests whose life is drawn."""

REQUESTS_PID = 1
FIRST_REPLICA_PID = 2
NS_PER_S = 1e9
NS_PER_US = 1e3

SUMMED = ("prefill_tokens", "output_tokens", "seconds", *(f"{bound}_s" for bound in BOUNDS), "flops", "bytes")
LARGEST = ("prefill_seqs", "decode_seqs", "query_len", "decode_kv_tokens", "running", "waiting", "kv_blocks")

Event = dict[str, Any]


def write_timeline(
    path: Path, result: RunRecords, max_slices: int = MAX_SLICES, max_requests: int = MAX_REQUESTS, run: str = ""
) -> None:
    """Write the trace of ``result`` to ``path`` as one JSON object.

    Its ``otherData`` says what is left out, and the name of the run (see :mod:`simulator.running.metrics.run_folder`).
    """
    remarks = thinning_remarks(len(result.steps), len(result.requests), max_slices, max_requests)
    head = {
        "displayTimeUnit": "ms",
        "otherData": {"run": run, "basis": result.basis, "seed": result.seed, "notes": remarks},
    }
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": [')
        separator = "\n"
        for event in timeline_events(result, max_slices, max_requests):
            file.write(separator + json.dumps(event, allow_nan=False, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")


def thinning_remarks(
    steps: int, requests: int, max_slices: int = MAX_SLICES, max_requests: int = MAX_REQUESTS
) -> list[str]:
    """What a trace of so many steps and requests leaves out, in words."""
    remarks = []
    if steps > max_slices:
        group = ceil(steps / max_slices)
        remarks.append(f"trace.json: {steps} engine steps drawn as slices of up to {group} steps each")
    if requests > max_requests:
        remarks.append(f"trace.json: the first {max_requests} of {requests} requests are drawn")
    return remarks


def timeline_events(
    result: RunRecords, max_slices: int = MAX_SLICES, max_requests: int = MAX_REQUESTS
) -> Iterator[Event]:
    """All events of the trace: names of the tracks, steps and counters per replica, then requests."""
    yield _process_name(REQUESTS_PID, "requests")
    yield from request_events(result.requests, max_requests)
    yield from span_events(result.spans)
    group = max(1, ceil(len(result.steps) / max_slices))
    names = [pool.name for pool in result.pools for _ in range(pool.replicas)]
    for replica in np.unique(result.steps.replica):
        pool = f" ({names[replica]})" if len(result.pools) > 1 else ""
        yield _process_name(FIRST_REPLICA_PID + int(replica), f"replica {int(replica)}{pool}")
        yield from step_events(result.steps, int(replica), group)
        if result.detail is not None:
            pid = FIRST_REPLICA_PID + int(replica)
            yield from lane_events(result.steps, result.detail, int(replica), pid)
            yield from kernel_events(result.steps, result.detail, int(replica), pid)


def span_events(spans: Iterable[Span]) -> Iterator[Event]:
    """KV transfers to a replica and its failures as asynchronous slices of its process."""
    for number, span in enumerate(spans):
        common = {"cat": span.name, "name": span.name, "id": number, "pid": FIRST_REPLICA_PID + span.replica, "tid": 0}
        for phase, at_s in (("b", span.start_s), ("e", span.end_s)):
            yield {"ph": phase, "ts": round(at_s * NS_PER_S) / NS_PER_US} | common


def step_events(steps: StepRecords, replica: int, group: int) -> Iterator[Event]:
    """The steps of one replica as slices of ``group`` steps each, with counters at the start of each.

    A slice of several steps gives sums of tokens, work and time, and the largest batch, queue and KV use; between its
    steps the engine may have been idle (``busy_ms`` against the slice's length). Steps that overlap (pipeline
    parallelism) go on separate tracks.
    """
    rows = np.flatnonzero(steps.replica == replica)
    rows = rows[np.argsort(steps.start_s[rows], kind="stable")]
    firsts = np.arange(0, len(rows), group)
    sizes = np.diff(np.append(firsts, len(rows)))
    start_ns = _nanoseconds(steps.start_s[rows][firsts])
    end_ns = np.maximum.reduceat(_nanoseconds(steps.start_s[rows] + steps.seconds[rows]), firsts)
    merged = {name: np.add.reduceat(getattr(steps, name)[rows], firsts).tolist() for name in SUMMED}
    merged |= {name: np.maximum.reduceat(getattr(steps, name)[rows], firsts).tolist() for name in LARGEST}
    tracks = track_numbers(start_ns, end_ns)
    pid = FIRST_REPLICA_PID + replica
    for track in sorted(set(tracks)):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": track, "args": {"name": f"engine steps {track}"}}
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        step = {name: values[row] for name, values in merged.items()}
        ts = start / NS_PER_US
        yield {
            "ph": "X",
            "name": step_kind(step["prefill_tokens"], step["decode_seqs"], step["query_len"]),
            "cat": "step",
            "pid": pid,
            "tid": tracks[row],
            "ts": ts,
            "dur": (end - start) / NS_PER_US,
            "args": _step_arguments(step, int(sizes[row])),
        }
        yield {"ph": "C", "name": "KV blocks", "pid": pid, "ts": ts, "args": {"in use": step["kv_blocks"]}}
        yield {
            "ph": "C",
            "name": "requests",
            "pid": pid,
            "ts": ts,
            "args": {"running": step["running"], "waiting": step["waiting"]},
        }


def step_kind(prefill_tokens: int, decode_seqs: int, query_len: int) -> str:
    """``prefill``, ``decode``, ``verify`` (decode of several tokens per sequence), ``mixed`` or ``idle``."""
    if prefill_tokens and decode_seqs:
        return "mixed"
    if prefill_tokens:
        return "prefill"
    if decode_seqs:
        return "verify" if query_len > 1 else "decode"
    return "idle"


def _step_arguments(step: dict[str, Any], size: int) -> dict[str, Any]:
    bound_ms = {f"{bound}_ms": round(step[f"{bound}_s"] * 1e3, 6) for bound in BOUNDS}
    counts = ("prefill_seqs", "prefill_tokens", "decode_seqs", "query_len", "decode_kv_tokens", "output_tokens")
    arguments = {"steps": size} | {name: step[name] for name in counts}
    return (
        arguments
        | {"busy_ms": round(step["seconds"] * 1e3, 6)}
        | bound_ms
        | {"flops": step["flops"], "bytes": step["bytes"]}
    )


def track_numbers(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> list[int]:
    """Track of each slice, counted from 1, so that slices of one track never overlap; starts ascend."""
    if not len(start_ns) or np.all(start_ns[1:] >= end_ns[:-1]):
        return [1] * len(start_ns)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    tracks = []
    for start, end in zip(start_ns.tolist(), end_ns.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        track = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end, track))
        tracks.append(track)
    return tracks


def request_events(requests: RequestRecords, max_requests: int) -> Iterator[Event]:
    """The life of the first ``max_requests`` requests as nested asynchronous slices: queued, prefill, decode.

    Requests that never finished are left out.
    """
    done = completed_requests(requests)
    for row in np.flatnonzero(done[:max_requests]).tolist():
        times = [
            _nanoseconds(column[row : row + 1])[0] / NS_PER_US
            for column in (requests.arrival_s, requests.scheduled_s, requests.first_token_s, requests.finished_s)
        ]
        about = {
            "input_tokens": int(requests.input_tokens[row]),
            "output_tokens": int(requests.output_tokens[row]),
            "cached_tokens": int(requests.cached_tokens[row]),
            "preemptions": int(requests.preemptions[row]),
            "replica": int(requests.replica[row]),
            "accepted_tokens": int(requests.accepted_tokens[row]),
        }
        common = {"cat": "request", "id": row, "pid": REQUESTS_PID, "tid": 1}
        yield {"ph": "b", "name": f"request {row}", "ts": times[0], "args": about} | common
        for name, begin, end in zip(("queued", "prefill", "decode"), times[:-1], times[1:], strict=True):
            yield {"ph": "b", "name": name, "ts": begin} | common
            yield {"ph": "e", "name": name, "ts": end} | common
        yield {"ph": "e", "name": f"request {row}", "ts": times[-1]} | common


def _process_name(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def _nanoseconds(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole nanoseconds, so that the end of a step and the start of the next stay equal in the file."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)
