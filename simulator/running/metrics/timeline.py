"""A run as a Chrome trace (ui.perfetto.dev, chrome://tracing): steps with their kernels, counters, requests.

Format: "Trace Event Format", Google (2016): complete (X), counter (C), asynchronous (b, e) and metadata (M) events;
``ts`` and ``dur`` in microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from simulator.running.metrics.summary import completed_requests
from simulator.running.metrics.usage import BOUNDS

if TYPE_CHECKING:
    from simulator.running.records import RunRecords
    from simulator.running.step_rows import SampledStep, StepDetail
    from simulator.serving.log import Span
    from simulator.serving.records import RequestRecords, StepRecords
    from simulator.timing import Kernel

MAX_SLICES = 50_000
"""Engine-step slices in one trace; runs of more steps merge neighbours."""

MAX_REQUESTS = 300

REQUESTS_PID = 1
FIRST_REPLICA_PID = 2
NS_PER_S = 1e9
NS_PER_US = 1e3

SUMMED = ("prefill_tokens", "output_tokens", "seconds", *(f"{bound}_s" for bound in BOUNDS), "flops", "bytes")
STEP_COUNTS = ("prefill_seqs", "prefill_tokens", "decode_seqs", "query_len", "decode_kv_tokens", "output_tokens")
STEP_TIMES = {"busy": "seconds"} | {bound: f"{bound}_s" for bound in BOUNDS}
LARGEST = ("prefill_seqs", "decode_seqs", "query_len", "decode_kv_tokens", "running", "waiting", "kv_blocks")

DRAFT_TRACK, VERIFY_TRACK, HOST_TRACK, FIRST_CHIP_TRACK = 1001, 1002, 1003, 1010
"""Track numbers beyond those of the engine steps."""
MOST_CHIPS = 8
"""Maximum number of chips shown per replica (all run the same kernels)."""
MOST_KERNELS = 4000
"""Kernel slices of one sampled step on one chip."""
Event = dict[str, Any]


def write_timeline(
    path: Path, result: RunRecords, max_slices: int = MAX_SLICES, max_requests: int = MAX_REQUESTS, run: str = ""
) -> None:
    """Write the trace of ``result`` to ``path`` as one JSON object."""
    remarks = thinning_remarks(len(result.steps), len(result.requests), max_slices, max_requests)
    about = {"run": run, "basis": result.basis, "seed": result.seed, "notes": remarks}
    head = {"displayTimeUnit": "ms", "otherData": about}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": [')
        for number, event in enumerate(timeline_events(result, max_slices, max_requests)):
            file.write((",\n" if number else "\n") + json.dumps(event, allow_nan=False, separators=(",", ":")))
        file.write("\n]}\n")


def thinning_remarks(
    steps: int, requests: int, max_slices: int = MAX_SLICES, max_requests: int = MAX_REQUESTS
) -> list[str]:
    """Remarks on the steps and requests that a trace leaves out."""
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
        pid = FIRST_REPLICA_PID + int(replica)
        yield _process_name(pid, f"replica {int(replica)}{pool}")
        yield from step_events(result.steps, int(replica), group)
        if result.detail is not None:
            yield from lane_events(result.steps, result.detail, int(replica), pid)
            yield from kernel_events(result.steps, result.detail, int(replica), pid)


def span_events(spans: Iterable[Span]) -> Iterator[Event]:
    for number, span in enumerate(spans):
        common = {"cat": span.name, "name": span.name, "id": number, "pid": FIRST_REPLICA_PID + span.replica, "tid": 0}
        for phase, at_s in (("b", span.start_s), ("e", span.end_s)):
            yield {"ph": phase, "ts": round(at_s * NS_PER_S) / NS_PER_US} | common


def step_events(steps: StepRecords, replica: int, group: int) -> Iterator[Event]:
    """Slices of ``group`` steps of a replica, with counters at their starts. Sums, and the largest batch, queue and KV
    use; steps that overlap (pipeline parallelism) have separate tracks."""
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
        yield _track(pid, track, f"engine steps {track}")
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        step = {name: values[row] for name, values in merged.items()}
        kind = step_kind(step["prefill_tokens"], step["decode_seqs"], step["query_len"])
        arguments = {"steps": int(sizes[row])} | {name: step[name] for name in STEP_COUNTS}
        arguments |= {f"{name}_ms": round(step[column] * 1e3, 6) for name, column in STEP_TIMES.items()}
        yield _slice(kind, "step", pid, tracks[row], start, end, arguments | {k: step[k] for k in ("flops", "bytes")})
        counter = {"ph": "C", "pid": pid, "ts": start / NS_PER_US}
        yield counter | {"name": "KV blocks", "args": {"in use": step["kv_blocks"]}}
        yield counter | {"name": "requests", "args": {"running": step["running"], "waiting": step["waiting"]}}


def step_kind(prefill_tokens: int, decode_seqs: int, query_len: int) -> str:
    """``prefill``, ``decode``, ``verify`` (decode of several tokens per sequence), ``mixed`` or ``idle``."""
    if prefill_tokens and decode_seqs:
        return "mixed"
    if prefill_tokens:
        return "prefill"
    if decode_seqs:
        return "verify" if query_len > 1 else "decode"
    return "idle"


def track_numbers(start_ns: IntArray, end_ns: IntArray) -> list[int]:
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
    """The life of the first ``max_requests`` finished requests as nested slices: queued, prefill, decode."""
    done = completed_requests(requests)
    facts = ("input_tokens", "output_tokens", "cached_tokens", "preemptions", "replica", "accepted_tokens")
    moments = (requests.arrival_s, requests.scheduled_s, requests.first_token_s, requests.finished_s)
    for row in np.flatnonzero(done[:max_requests]).tolist():
        times = [_nanoseconds(column[row : row + 1])[0] / NS_PER_US for column in moments]
        about = {name: int(getattr(requests, name)[row]) for name in facts}
        common = {"cat": "request", "id": row, "pid": REQUESTS_PID, "tid": 1}
        yield {"ph": "b", "name": f"request {row}", "ts": times[0], "args": about} | common
        for name, begin, end in zip(("queued", "prefill", "decode"), times[:-1], times[1:], strict=True):
            yield {"ph": "b", "name": name, "ts": begin} | common
            yield {"ph": "e", "name": name, "ts": end} | common
        yield {"ph": "e", "name": f"request {row}", "ts": times[-1]} | common


def lane_events(steps: StepRecords, detail: StepDetail, replica: int, pid: int) -> Iterator[Event]:
    """Draft and verify slices, in sequence, of each step of ``replica`` that verifies draft tokens."""
    if detail.draft_s is None or len(detail.draft_s) != len(steps):
        return
    rows = np.flatnonzero((steps.replica == replica) & (detail.draft_s > 0))
    if not len(rows):
        return
    yield _track(pid, DRAFT_TRACK, "draft")
    yield _track(pid, VERIFY_TRACK, "verify")
    for row in rows[np.argsort(steps.start_s[rows], kind="stable")].tolist():
        start, seconds, draft = float(steps.start_s[row]), float(steps.seconds[row]), float(detail.draft_s[row])
        about = {"sequences": int(steps.decode_seqs[row]), "tokens each": int(steps.query_len[row])}
        yield _part("verify", "step", pid, VERIFY_TRACK, start, seconds - draft, about)
        yield _part("draft", "step", pid, DRAFT_TRACK, start + seconds - draft, draft, about)


def kernel_events(steps: StepRecords, detail: StepDetail, replica: int, pid: int) -> Iterator[Event]:
    """The sampled steps of ``replica``: host work, then the kernels of every chip in the order in which they run."""
    samples = [sample for sample in detail.sampled if int(steps.replica[sample.row]) == replica]
    if not samples:
        return
    chips = min(detail.devices, MOST_CHIPS)
    yield _track(pid, HOST_TRACK, "host work of sampled steps")
    for chip in range(chips):
        yield _track(pid, FIRST_CHIP_TRACK + chip, f"chip {chip}: kernels of sampled steps")
    for sample in samples:
        start, seconds = float(steps.start_s[sample.row]), float(steps.seconds[sample.row])
        yield _part("host", "host", pid, HOST_TRACK, start, sample.host_s, {})
        for chip in range(chips):
            yield from _kernels(sample, pid, FIRST_CHIP_TRACK + chip, start + sample.host_s, start + seconds)


def _kernels(sample: SampledStep, pid: int, track: int, start_s: float, end_s: float) -> Iterator[Event]:
    total = sum(kernel.step_s for kernel in sample.kernels)
    available_s = max(0.0, end_s - start_s - sample.draft_s)
    scale = min(1.0, available_s / total) if total else 1.0
    at = start_s
    for kernel in kernel_layer_order(sample.kernels):
        about = {"bound": kernel.bound, "flops": kernel.flops, "bytes": kernel.bytes, "family": kernel.family}
        if kernel.dtype:
            about["format"] = kernel.dtype
        length = kernel.step_s * scale
        yield _part(kernel.name, "kernel", pid, track, at, length, about | {"kernels": kernel.times})
        at += length
    if sample.draft_s:
        yield _part("draft", "kernel", pid, track, end_s - sample.draft_s, sample.draft_s, {})


def kernel_layer_order(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels one after the other, layer by layer; where that would be too many slices, equal ones stay together."""
    if sum(kernel.times for kernel in kernels) > MOST_KERNELS:
        return list(kernels)
    groups: list[list[Kernel]] = []
    for kernel in kernels:
        last = groups[-1] if groups else []
        together = last and kernel.times > 1 and last[-1].times > 1
        if together and kernel.name not in {one.name for one in last}:
            last.append(kernel)
        else:
            groups.append([kernel])
    ordered = []
    for group in groups:
        layers = min(kernel.times for kernel in group)
        for layer, kernel in product(range(layers), group):
            times = kernel.times * (layer + 1) // layers - kernel.times * layer // layers
            ordered.append(kernel._replace(times=times))
    return ordered


def _part(name: str, kind: str, pid: int, track: int, start_s: float, seconds: float, about: Event) -> Event:
    """A slice of some seconds, at least none."""
    begin, end = round(start_s * NS_PER_S), round((start_s + max(0.0, seconds)) * NS_PER_S)
    return _slice(name, kind, pid, track, begin, end, about)


def _slice(name: str, kind: str, pid: int, track: int, start_ns: int, end_ns: int, about: Event) -> Event:
    times = {"ts": start_ns / NS_PER_US, "dur": (end_ns - start_ns) / NS_PER_US}
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": track, **times, "args": about}


def _track(pid: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": track, "args": {"name": name}}


def _process_name(pid: int, name: str) -> Event:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def _nanoseconds(seconds: FloatArray) -> IntArray:
    """Whole nanoseconds, so that the end of a step and the start of the next stay equal in the file."""
    return np.rint(seconds * NS_PER_S).astype(np.int64)
