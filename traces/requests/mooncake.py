"""Mooncake JSON lines and their relatives: vLLM's timed trace, Alibaba Bailian."""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.requests.layout import Bound, Layout, columns
from traces.requests.rows import RawChunk
from traces.requests.values import Values, parse_counts

_COLUMNS = {
    "arrival_s": columns("timestamp:ms"),
    "input_tokens": columns("input_length"),
    "output_tokens": columns("output_length"),
    "prefix_hashes": columns("hash_ids"),
    "session_id": columns("session_id"),
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


MOONCAKE = Layout(
    "mooncake",
    "Mooncake JSONL (timestamp in ms, input_length, output_length, hash_ids of 512 tokens)",
    _COLUMNS,
    signature=("timestamp", "input_length", "output_length"),
    options=frozenset({"block_tokens", "time_unit"}),
    block_tokens=512,
)
TIMED_TRACE = Layout(
    "timed-trace",
    "vLLM timed trace: Mooncake's fields, timestamp in s, hash_ids of 16 tokens (name it; auto takes mooncake)",
    {**_COLUMNS, "arrival_s": columns("timestamp:s")},
    signature=("timestamp", "input_length", "output_length"),
    options=frozenset({"block_tokens", "time_unit"}),
    block_tokens=16,
)
BAILIAN = Layout(
    "bailian",
    "Alibaba Bailian JSONL (chat_id, parent_chat_id, timestamp in s, input_length, output_length, hash_ids of 16)",
    {**_COLUMNS, "arrival_s": columns("timestamp:s"), "session_id": columns("chat_id"), "turn": columns("turn")},
    signature=("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
    options=frozenset({"block_tokens", "time_unit"}),
    block_tokens=16,
    prepare=_sessions,
)
