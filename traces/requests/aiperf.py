"""AIPerf per-request records (profile_export.jsonl)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.requests.layout import Bound, Layout, Options, columns
from traces.requests.rows import RawChunk, Record
from traces.requests.values import UNITS_PER_SECOND

_SECONDS = {"sec": 1.0, **{unit: 1.0 / scale for unit, scale in UNITS_PER_SECOND.items()}}


def _metric(record: Record, name: str) -> Any:
    """A metric's value, durations in seconds; None when it was not measured, the value itself when it is no number."""
    metrics = record.get("metrics")
    metric = metrics.get(name) if isinstance(metrics, dict) else None
    value = metric.get("value") if isinstance(metric, dict) else metric
    unit = metric.get("unit") if isinstance(metric, dict) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and isinstance(unit, str) and unit in _SECONDS:
        return value * _SECONDS[unit]
    return value


def _flatten(record: Record) -> Record:
    """The few facts a request table needs from one record."""
    metadata = record.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    phase = metadata.get("benchmark_phase", metadata.get("phase_kind"))
    output = _metric(record, "output_sequence_length")
    return {
        "request_start_ns": metadata.get("request_start_ns"),
        "input_sequence_length": _metric(record, "input_sequence_length"),
        "output_sequence_length": _metric(record, "output_token_count") if output is None else output,
        "time_to_first_token": _metric(record, "time_to_first_token"),
        "request_latency": _metric(record, "request_latency"),
        "conversation_id": metadata.get("conversation_id"),
        "turn_index": metadata.get("turn_index"),
        "failed": bool(record.get("error")) or bool(metadata.get("was_cancelled")),
        "warm_up": phase is not None and phase != "profiling",
    }


def _drop(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, NDArray[np.bool_]]:
    """Warm-up requests always, failed and cancelled requests when asked."""
    reasons = {"warm-up request": np.array(chunk.columns["warm_up"], dtype=np.bool_)}
    if options.drop_failures:
        reasons["failed request"] = np.array(chunk.columns["failed"], dtype=np.bool_)
    return reasons


AIPERF = Layout(
    "aiperf",
    "AIPerf profile_export.jsonl (metadata.request_start_ns, metrics.input_sequence_length ...)",
    {
        "arrival_s": columns("request_start_ns:ns"),
        "input_tokens": columns("input_sequence_length"),
        "output_tokens": columns("output_sequence_length"),
        "session_id": columns("conversation_id"),
        "turn": columns("turn_index"),
        "measured_ttft_s": columns("time_to_first_token:s"),
        "measured_e2e_s": columns("request_latency:s"),
    },
    signature=("metadata", "metrics"),
    options=frozenset({"drop_failures"}),
    flatten=_flatten,
    drop=_drop,
)
