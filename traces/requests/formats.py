"""Layouts of tabular request formats: meaning and unit of each column, and values derived from rows.

Azure's traces write times in three ways: 2023 with 7-digit fractions, 2024 in UTC with the fraction missing when zero,
2025 as ISO. BurstGPT is read by column name because version 3 inserts two columns. The canonical table and plain tables
whose columns carry common names stand last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError
from traces.requests.layout import Bound, Options, TraceColumn, TraceLayout, column_names
from traces.requests.rows import RawChunk, Record
from traces.requests.values import UNITS_PER_SECOND, Values, parse_counts, parse_durations

_AZURE = {
    "arrival_s": column_names("TIMESTAMP"),
    "input_tokens": column_names("ContextTokens"),
    "output_tokens": column_names("GeneratedTokens"),
}

AZURE_LLM = TraceLayout(
    "azure-llm",
    "Azure LLM inference traces 2023 and 2024 (TIMESTAMP, ContextTokens, GeneratedTokens)",
    _AZURE,
    signature=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    options=frozenset(),
)
AZURE_LMM = TraceLayout(
    "azure-lmm",
    "Azure LMM inference trace 2025 (TIMESTAMP, NumImages, ContextTokens with image tokens, GeneratedTokens)",
    _AZURE,
    signature=("TIMESTAMP", "NumImages", "ContextTokens", "GeneratedTokens"),
    options=frozenset(),
)


def _drop_burstgpt(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, NDArray[np.bool_]]:
    """Rows to drop: other models, and failed requests, which have 0 output tokens."""
    reasons: dict[str, NDArray[np.bool_]] = {}
    if options.model is not None:
        models = chunk.columns.get("Model")
        if models is None:
            raise TraceError(f"{chunk.place.format(chunk.lines[0])}: model={options.model!r} needs a column Model")
        reasons["other model"] = np.array([model != options.model for model in models], dtype=np.bool_)
    values = bound.values(chunk, "output_tokens")
    if options.drop_failures and values is not None:
        parsed = parse_counts(values, minimum=0)
        failed = parsed.values == 0
        failed[[problem.row for problem in parsed.problems]] = False
        reasons["failed request (0 response tokens)"] = failed
    return reasons


BURSTGPT = TraceLayout(
    "burstgpt",
    "BurstGPT versions 1 to 3 (Timestamp in s, Request tokens, Response tokens, perhaps Session ID, Elapsed time)",
    {
        "arrival_s": column_names("Timestamp:s"),
        "input_tokens": column_names("Request tokens"),
        "output_tokens": column_names("Response tokens"),
        "session_id": column_names("Session ID"),
        "measured_e2e_s": column_names("Elapsed time:s"),
    },
    signature=("Timestamp", "Request tokens", "Response tokens", "Model"),
    options=frozenset({"drop_failures", "model"}),
    drop=_drop_burstgpt,
)


_MOONCAKE = {
    "arrival_s": column_names("timestamp:ms"),
    "input_tokens": column_names("input_length"),
    "output_tokens": column_names("output_length"),
    "prefix_hashes": column_names("hash_ids"),
    "session_id": column_names("session_id"),
}


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


MOONCAKE = TraceLayout(
    "mooncake",
    "Mooncake JSONL (timestamp in ms, input_length, output_length, hash_ids of 512 tokens)",
    _MOONCAKE,
    signature=("timestamp", "input_length", "output_length"),
    options=frozenset({"block_tokens", "time_unit"}),
    block_tokens=512,
)
TIMED_TRACE = TraceLayout(
    "timed-trace",
    "vLLM timed trace: Mooncake's fields, timestamp in s, hash_ids of 16 tokens (name it; auto takes mooncake)",
    {**_MOONCAKE, "arrival_s": column_names("timestamp:s")},
    signature=("timestamp", "input_length", "output_length"),
    options=frozenset({"block_tokens", "time_unit"}),
    block_tokens=16,
)
BAILIAN = TraceLayout(
    "bailian",
    "Alibaba Bailian JSONL (chat_id, parent_chat_id, timestamp in s, input_length, output_length, hash_ids of 16)",
    {
        **_MOONCAKE,
        "arrival_s": column_names("timestamp:s"),
        "session_id": column_names("chat_id"),
        "turn": column_names("turn"),
    },
    signature=("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
    options=frozenset({"block_tokens", "time_unit"}),
    block_tokens=16,
    prepare=_sessions,
)


def _latencies(bound: Bound, chunk: RawChunk, state: dict[str, Any]) -> dict[str, Values]:
    """Latencies on the engine's clock, which differs from the clock of the arrivals."""
    stamps = {}
    for name in ("queued_ts", "first_token_ts", "last_token_ts"):
        parsed = parse_durations(chunk.columns.get(name, [None] * chunk.count))
        stamps[name] = parsed.values
        stamps[name][[problem.row for problem in parsed.problems]] = np.nan
    with np.errstate(invalid="ignore"):
        ttft = stamps["first_token_ts"] - stamps["queued_ts"]
        e2e = stamps["last_token_ts"] - stamps["queued_ts"]
    return {"measured_ttft_s": ttft, "measured_e2e_s": e2e}


VIDUR = TraceLayout(
    "vidur",
    "Vidur processed trace (num_prefill_tokens, num_decode_tokens, perhaps arrived_at in s)",
    {
        "arrival_s": column_names("arrived_at:s"),
        "input_tokens": column_names("num_prefill_tokens"),
        "output_tokens": column_names("num_decode_tokens"),
    },
    signature=("num_prefill_tokens", "num_decode_tokens"),
    required=("input_tokens", "output_tokens"),
)
LLMSERVINGSIM = TraceLayout(
    "llmservingsim",
    "LLMServingSim workload (arrival_time_ns, input_toks, output_toks)",
    {
        "arrival_s": column_names("arrival_time_ns:ns"),
        "input_tokens": column_names("input_toks"),
        "output_tokens": column_names("output_toks"),
    },
    signature=("arrival_time_ns", "input_toks", "output_toks"),
)
LLMSERVINGSIM_MEASURED = TraceLayout(
    "llmservingsim-measured",
    "LLMServingSim measured requests (arrival_time in s, input_toks, output_toks, queued_ts, first_token_ts, "
    "last_token_ts)",
    {
        "arrival_s": column_names("arrival_time:s"),
        "input_tokens": column_names("input_toks"),
        "output_tokens": column_names("output_toks"),
    },
    signature=("arrival_time", "input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts"),
    prepare=_latencies,
)
APEX = TraceLayout(
    "apex",
    "APEX+ trace (StartTimeOffset in ns, ContextTokens, GeneratedTokens)",
    {
        "arrival_s": column_names("StartTimeOffset:ns"),
        "input_tokens": column_names("ContextTokens"),
        "output_tokens": column_names("GeneratedTokens"),
    },
    signature=("StartTimeOffset", "ContextTokens", "GeneratedTokens"),
)


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
    """Fields of one AIPerf record that a request table needs."""
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


def _drop_aiperf(bound: Bound, chunk: RawChunk, options: Options) -> Mapping[str, NDArray[np.bool_]]:
    """Warm-up requests always, failed and cancelled requests with ``drop_failed``."""
    reasons = {"warm-up request": np.array(chunk.columns["warm_up"], dtype=np.bool_)}
    if options.drop_failures:
        reasons["failed request"] = np.array(chunk.columns["failed"], dtype=np.bool_)
    return reasons


AIPERF = TraceLayout(
    "aiperf",
    "AIPerf profile_export.jsonl (metadata.request_start_ns, metrics.input_sequence_length ...)",
    {
        "arrival_s": column_names("request_start_ns:ns"),
        "input_tokens": column_names("input_sequence_length"),
        "output_tokens": column_names("output_sequence_length"),
        "session_id": column_names("conversation_id"),
        "turn": column_names("turn_index"),
        "measured_ttft_s": column_names("time_to_first_token:s"),
        "measured_e2e_s": column_names("request_latency:s"),
    },
    signature=("metadata", "metrics"),
    options=frozenset({"drop_failures"}),
    flatten=_flat_aiperf,
    drop=_drop_aiperf,
)


def _times(*names: str) -> tuple[TraceColumn, ...]:
    """Each name without a unit (inferred by plausibility, dates allowed) and with each unit suffix."""
    bare = tuple(TraceColumn(name) for name in names)
    return bare + tuple(TraceColumn(f"{name}_{unit}", unit) for name in names for unit in ("s", "ms", "us", "ns"))


def _latency(*names: str) -> tuple[TraceColumn, ...]:
    """Each name with each unit suffix; the unit of a latency is never guessed."""
    return tuple(TraceColumn(f"{name}_{unit}", unit) for name in names for unit in ("s", "ms", "us", "ns"))


CANONICAL_COLUMNS = {
    "arrival_s": column_names("arrival_s:s"),
    "input_tokens": column_names("input_tokens"),
    "output_tokens": column_names("output_tokens"),
    "session_id": column_names("session_id"),
    "turn": column_names("turn"),
    "think_time_s": column_names("think_time_s:s"),
    "prefix_hashes": column_names("prefix_hashes"),
    "block_tokens": column_names("block_tokens"),
    "request": column_names("request"),
    "after": column_names("after"),
    "measured_ttft_s": column_names("measured_ttft_s:s"),
    "measured_e2e_s": column_names("measured_e2e_s:s"),
}

FORERUN = TraceLayout(
    "forerun",
    "canonical table (arrival_s, input_tokens, output_tokens; optional session_id, turn, think_time_s, prefix_hashes "
    "with block_tokens, request and after (requests that it waits for), measured_ttft_s, measured_e2e_s)",
    CANONICAL_COLUMNS,
    signature=("input_tokens", "output_tokens", "arrival_s"),
    options=frozenset({"block_tokens"}),
)

PLAIN = TraceLayout(
    "plain",
    "plain table with common column names (such as timestamp, prompt_tokens, completion_tokens)",
    {
        "arrival_s": column_names("arrival_s:s")
        + _times(
            "arrival", "arrival_time", "arrived_at", "timestamp", "request_time", "start_time", "time", "ts", "sent_at"
        ),
        "input_tokens": column_names(
            *("input_tokens", "prompt_tokens", "input_length", "input_len", "prompt_len", "prompt_length"),
            *("num_input_tokens", "num_prompt_tokens", "num_prefill_tokens", "n_input_tokens", "input_toks"),
            *("context_tokens", "request_tokens", "prefill_tokens", "input_sequence_length", "isl", "in_tokens"),
        ),
        "output_tokens": column_names(
            *("output_tokens", "completion_tokens", "output_length", "output_len", "num_output_tokens"),
            *("num_completion_tokens", "num_decode_tokens", "n_output_tokens", "output_toks", "generated_tokens"),
            *("response_tokens", "decode_tokens", "output_sequence_length", "osl", "out_tokens", "generation_len"),
        ),
        "session_id": column_names("session_id", "conversation_id", "session", "client_id", "user_id"),
        "turn": column_names("turn", "turn_index"),
        "think_time_s": _latency("think_time"),
        "prefix_hashes": column_names("prefix_hashes", "hash_ids", "block_hashes"),
        "block_tokens": column_names("block_tokens", "block_size"),
        "measured_ttft_s": _latency("measured_ttft", "ttft", "time_to_first_token"),
        "measured_e2e_s": _latency("measured_e2e", "e2e", "e2el", "e2e_latency", "request_latency", "elapsed"),
    },
    required=("input_tokens", "output_tokens"),
    options=frozenset({"block_tokens", "time_unit"}),
)
