"""What one engine step computes, in the aggregates that its time depends on."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

Number = TypeVar("Number")


class StepWork(NamedTuple, Generic[Number]):
    """Work of one engine step (integers), or of many (arrays of equal length).

    A tuple over windows holds one entry per distinct attention window of the model, in the order of
    ``StepTimer.windows``; an entry counts only the keys inside that window.
    """

    prefill_seqs: Number
    """Sequences with a prompt chunk in this step."""
    prefill_tokens: Number
    prefill_pairs: tuple[Number, ...]
    """(query, key) pairs that the causal mask admits, per window."""
    prefill_kv_tokens: tuple[Number, ...]
    """Keys that the chunks read, cached and new, per window."""
    sampled_prefills: Number
    """Chunks that complete their prompt and so yield a token."""
    sampled_kv_tokens: tuple[Number, ...]
    """Keys that their first decoding query will read, per window."""
    decode_seqs: Number
    query_len: Number
    """Tokens per decoding sequence: 1, or K+1 in a verify step."""
    decode_kv_tokens: tuple[Number, ...]
    """Keys that the decoding sequences read, per window."""
    longest_kv: Number | int = 0
    """Context of the longest decoding sequence, where timing asks for it (``longest_asked``); 0 = all alike."""
    beyond_kv: Any = 0
    """The same less the mean of as many of the longest as timing asks for."""


def some_steps(work: StepWork[Any], rows: Any) -> StepWork[Any]:
    """Some of many steps: ``rows`` of every column."""

    def taken(part: Any) -> Any:
        return part[rows] if isinstance(part, np.ndarray) else part

    return StepWork(*(tuple(map(taken, part)) if isinstance(part, tuple) else taken(part) for part in work))


def one_step(work: StepWork[Any], row: int, windows: int | None = None) -> StepWork[Any]:
    """One of many steps as plain numbers, with the first ``windows`` attention windows (default: all)."""

    def plain(part: Any) -> Any:
        return part.item() if isinstance(part, np.generic) else part

    single = some_steps(work, row)
    return StepWork(*(tuple(map(plain, part[:windows])) if isinstance(part, tuple) else plain(part) for part in single))


def causal_pairs(new_tokens: int, cached_tokens: int, window: int | None) -> int:
    """(query, key) pairs of a causal chunk: query i (0-based) sees ``min(cached + i + 1, window)`` keys.

    Args:
        new_tokens: queries in the chunk.
        cached_tokens: keys before the chunk.
        window: sliding window in tokens, or None for full attention.
    """
    if window is None:
        return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    growing = min(new_tokens, max(0, window - cached_tokens))
    return growing * cached_tokens + growing * (growing + 1) // 2 + (new_tokens - growing) * window


def keys_read(context_tokens: int, query_len: int, window: int | None) -> int:
    """Keys that ``query_len`` consecutive queries ending at ``context_tokens`` read from one sequence's cache."""
    return context_tokens if window is None else min(context_tokens, window + query_len - 1)
