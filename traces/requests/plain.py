"""The canonical table and plain tables whose columns carry common names."""

from __future__ import annotations

from traces.requests.layout import Column, Layout, columns


def _times(*names: str) -> tuple[Column, ...]:
    """Each name bare (unit by plausibility, dates allowed) and with a unit behind it."""
    bare = tuple(Column(name) for name in names)
    return bare + tuple(Column(f"{name}_{unit}", unit) for name in names for unit in ("s", "ms", "us", "ns"))


def _latency(*names: str) -> tuple[Column, ...]:
    """Each name with a unit behind it; a latency without unit is not guessed."""
    return tuple(Column(f"{name}_{unit}", unit) for name in names for unit in ("s", "ms", "us", "ns"))


CANONICAL_COLUMNS = {
    "arrival_s": columns("arrival_s:s"),
    "input_tokens": columns("input_tokens"),
    "output_tokens": columns("output_tokens"),
    "session_id": columns("session_id"),
    "turn": columns("turn"),
    "think_time_s": columns("think_time_s:s"),
    "prefix_hashes": columns("prefix_hashes"),
    "block_tokens": columns("block_tokens"),
    "measured_ttft_s": columns("measured_ttft_s:s"),
    "measured_e2e_s": columns("measured_e2e_s:s"),
}

FORERUN = Layout(
    "forerun",
    "canonical table (arrival_s, input_tokens, output_tokens; optional session_id, turn, think_time_s, prefix_hashes "
    "with block_tokens, measured_ttft_s, measured_e2e_s)",
    CANONICAL_COLUMNS,
    signature=("input_tokens", "output_tokens", "arrival_s"),
    options=frozenset({"block_tokens"}),
)

PLAIN = Layout(
    "plain",
    "plain table with common column names (such as timestamp, prompt_tokens, completion_tokens)",
    {
        "arrival_s": columns("arrival_s:s")
        + _times(
            "arrival", "arrival_time", "arrived_at", "timestamp", "request_time", "start_time", "time", "ts", "sent_at"
        ),
        "input_tokens": columns(
            *("input_tokens", "prompt_tokens", "input_length", "input_len", "prompt_len", "prompt_length"),
            *("num_input_tokens", "num_prompt_tokens", "num_prefill_tokens", "n_input_tokens", "input_toks"),
            *("context_tokens", "request_tokens", "prefill_tokens", "input_sequence_length", "isl", "in_tokens"),
        ),
        "output_tokens": columns(
            *("output_tokens", "completion_tokens", "output_length", "output_len", "num_output_tokens"),
            *("num_completion_tokens", "num_decode_tokens", "n_output_tokens", "output_toks", "generated_tokens"),
            *("response_tokens", "decode_tokens", "output_sequence_length", "osl", "out_tokens", "generation_len"),
        ),
        "session_id": columns("session_id", "conversation_id", "session", "client_id", "user_id"),
        "turn": columns("turn", "turn_index"),
        "think_time_s": _latency("think_time"),
        "prefix_hashes": columns("prefix_hashes", "hash_ids", "block_hashes"),
        "block_tokens": columns("block_tokens", "block_size"),
        "measured_ttft_s": _latency("measured_ttft", "ttft", "time_to_first_token"),
        "measured_e2e_s": _latency("measured_e2e", "e2e", "e2el", "e2e_latency", "request_latency", "elapsed"),
    },
    required=("input_tokens", "output_tokens"),
    options=frozenset({"block_tokens", "time_unit"}),
)
