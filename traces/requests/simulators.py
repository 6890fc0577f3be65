"""Request files of other simulators: Vidur, LLMServingSim, APEX+."""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.requests.layout import Bound, Layout, columns
from traces.requests.rows import RawChunk
from traces.requests.values import Values, parse_durations


def _latencies(bound: Bound, chunk: RawChunk, state: dict[str, Any]) -> dict[str, Values]:
    """Latencies from the engine's own clock, which is not the clock of the arrivals."""
    stamps = {}
    for name in ("queued_ts", "first_token_ts", "last_token_ts"):
        parsed = parse_durations(chunk.columns.get(name, [None] * chunk.count))
        stamps[name] = parsed.values
        stamps[name][[problem.row for problem in parsed.problems]] = np.nan
    with np.errstate(invalid="ignore"):
        ttft = stamps["first_token_ts"] - stamps["queued_ts"]
        e2e = stamps["last_token_ts"] - stamps["queued_ts"]
    return {"measured_ttft_s": ttft, "measured_e2e_s": e2e}


VIDUR = Layout(
    "vidur",
    "Vidur processed trace (num_prefill_tokens, num_decode_tokens, perhaps arrived_at in s)",
    {
        "arrival_s": columns("arrived_at:s"),
        "input_tokens": columns("num_prefill_tokens"),
        "output_tokens": columns("num_decode_tokens"),
    },
    signature=("num_prefill_tokens", "num_decode_tokens"),
    required=("input_tokens", "output_tokens"),
)
LLMSERVINGSIM = Layout(
    "llmservingsim",
    "LLMServingSim workload (arrival_time_ns, input_toks, output_toks)",
    {
        "arrival_s": columns("arrival_time_ns:ns"),
        "input_tokens": columns("input_toks"),
        "output_tokens": columns("output_toks"),
    },
    signature=("arrival_time_ns", "input_toks", "output_toks"),
)
LLMSERVINGSIM_MEASURED = Layout(
    "llmservingsim-measured",
    "LLMServingSim measured requests (arrival_time in s, input_toks, output_toks, queued_ts, first_token_ts, "
    "last_token_ts)",
    {
        "arrival_s": columns("arrival_time:s"),
        "input_tokens": columns("input_toks"),
        "output_tokens": columns("output_toks"),
    },
    signature=("arrival_time", "input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts"),
    prepare=_latencies,
)
APEX = Layout(
    "apex",
    "APEX+ trace (StartTimeOffset in ns, ContextTokens, GeneratedTokens)",
    {
        "arrival_s": columns("StartTimeOffset:ns"),
        "input_tokens": columns("ContextTokens"),
        "output_tokens": columns("GeneratedTokens"),
    },
    signature=("StartTimeOffset", "ContextTokens", "GeneratedTokens"),
)
