"""Formats of request traces: ``formats.yaml`` describes their columns; here stands what is derived from whole rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from forerun.arrays import BoolArray
from forerun.yaml_files import packaged
from traces.errors import TraceError
from traces.requests.layout import Bound, Options, TraceColumn, TraceLayout
from traces.requests.rows import RawChunk, Record
from traces.requests.values import UNITS_PER_SECOND, Values, parse_counts, parse_durations


def _drop_burstgpt(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, BoolArray]:
    """Rows to drop: other models, and failed requests, which have 0 output tokens."""
    reasons: dict[str, BoolArray] = {}
    if options.model is not None:
        models = chunk.columns.get("Model")
        if models is None:
            raise TraceError(f"{chunk.place.format(chunk.lines[0])}: model={options.model!r} needs a column Model")
        reasons["other model"] = np.array([model != options.model for model in models], dtype=np.bool_)
    values = bound.values(chunk, "output_tokens")
    if options.drop_failures and values is not None:
        parsed = parse_counts(values, minimum=0)
        failed = parsed.values == 0
        failed[list(parsed.problems)] = False
        reasons["failed request (0 response tokens)"] = failed
    return reasons


def _sessions(bound: Bound, chunk: RawChunk, state: dict[str, Any]) -> dict[str, Values]:
    """The conversation of each request, named after its first chat (memory grows with the number of chats)."""
    roots: dict[object, str] = state.setdefault("roots", {})
    sessions = []
    empty = [None] * chunk.count
    chats, parents = (chunk.columns.get(name, empty) for name in ("chat_id", "parent_chat_id"))
    for chat, parent in zip(chats, parents, strict=True):
        parent = parent if isinstance(parent, str | int) else None
        root = roots.get(parent, "" if chat is None else str(chat))
        if isinstance(chat, str | int):
            roots[chat] = root
        sessions.append(root)
    derived: dict[str, Values] = {"session_id": sessions}
    turns = chunk.columns.get("turn")
    if turns is not None:
        derived["turn"] = np.maximum(parse_counts(turns, 0, "turns").values.astype(np.int64) - 1, 0)
    return derived


def _latencies(bound: Bound, chunk: RawChunk, state: dict[str, Any]) -> dict[str, Values]:
    """Latencies on the engine's clock, which differs from the clock of the arrivals."""
    stamps = {}
    for name in ("queued_ts", "first_token_ts", "last_token_ts"):
        parsed = parse_durations(chunk.columns.get(name, [None] * chunk.count))
        stamps[name] = parsed.values
        stamps[name][list(parsed.problems)] = np.nan
    with np.errstate(invalid="ignore"):
        ttft = stamps["first_token_ts"] - stamps["queued_ts"]
        e2e = stamps["last_token_ts"] - stamps["queued_ts"]
    return {"measured_ttft_s": ttft, "measured_e2e_s": e2e}


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


def _flat_aiperf(record: Record) -> Record:
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


def _flat_usage(record: Record) -> Record:
    """A response of OpenAI's API with the counts of its ``usage`` beside the other fields."""
    usage = record.get("usage")
    return {**record, **(usage if isinstance(usage, dict) else {})}


def _drop_aiperf(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, BoolArray]:
    """Warm-up requests always, failed and cancelled requests with ``drop_failed``."""
    reasons = {"warm-up request": np.array(chunk.columns["warm_up"], dtype=np.bool_)}
    if options.drop_failures:
        reasons["failed request"] = np.array(chunk.columns["failed"], dtype=np.bool_)
    return reasons


def _drop_failed(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, BoolArray]:
    """Mark failed requests, for which the client recorded an error."""
    errors = chunk.columns.get("errors")
    if errors is None or not options.drop_failures:
        return {}
    return {"failed request": np.array([bool(error) for error in errors], dtype=np.bool_)}


_FROM_ROWS: dict[str, dict[str, Any]] = {
    "burstgpt": {"drop": _drop_burstgpt},
    "bailian": {"prepare": _sessions},
    "llmservingsim-measured": {"prepare": _latencies},
    "aiperf": {"flatten": _flat_aiperf, "drop": _drop_aiperf},
    "openai": {"flatten": _flat_usage},
    "vllm-bench": {"drop": _drop_failed},
}


def _candidates(names: str | list[str]) -> tuple[TraceColumn, ...]:
    """Columns from names, with a unit behind a colon; names that stand for several units come after all others."""
    plain, with_units = [], []
    for name, _, unit in (text.partition(":") for text in ([names] if isinstance(names, str) else names)):
        if unit in ("any", "suffix"):
            with_units += [TraceColumn(f"{name}_{suffix}", suffix) for suffix in UNITS_PER_SECOND]
        if unit != "suffix":
            plain.append(TraceColumn(name, None if unit in ("", "any") else unit))
    return (*plain, *with_units)


def _layouts() -> dict[str, TraceLayout]:
    layouts = {}
    described = packaged("traces.requests", "formats.yaml")
    for name, fields in described.items():
        fields["columns"] = {canonical: _candidates(names) for canonical, names in fields["columns"].items()}
        for key, kind in (("signature", tuple), ("required", tuple), ("options", frozenset)):
            if key in fields:
                fields[key] = kind(fields[key])
        layouts[name] = TraceLayout(name, **fields, **_FROM_ROWS.get(name, {}))
    return layouts


LAYOUTS = _layouts()
"""Every format by name; tables stand in the order in which they are recognised, the most particular first."""
PLAIN = LAYOUTS["plain"]
