"""What a fast replica is about to do, or doing: one engine step, or a span of equal decode steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.serving.future import LiveRequest
from simulator.timing import DraftStep, StepWork, causal_pairs, keys_read

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(slots=True)
class Span:
    """Equal decode steps advanced together; arrays over the steps, of which only the first ``len(ends)`` are run."""

    ends: FloatArray
    seconds: FloatArray
    keys: tuple[IntArray, ...]
    """Keys read, per window."""
    blocks: IntArray
    """KV blocks in use."""
    admits: bool
    """Whether a request that arrives now would be admitted, which ends the span."""


class Planned:
    """One step, or a span that begins with it. Filled anew for each."""

    __slots__ = ("chunks", "delivered", "draft", "end", "held", "seconds", "span", "start", "work")

    chunks: list[tuple[LiveRequest, int]]
    """Sequences in prefill and their tokens."""
    delivered: int
    """Tokens for the decoding requests."""
    draft: DraftStep[int] | None
    """What a policy has the drafter do; None where it always proposes the same."""
    end: float
    held: int
    """KV blocks in use."""
    seconds: float
    span: Span | None
    start: float
    work: StepWork[Any]


def step_work(
    chunks: Sequence[tuple[LiveRequest, int]],
    windows: tuple[int | None, ...],
    decode_seqs: int,
    query_len: int,
    decode_keys: tuple[int, ...],
) -> StepWork[Any]:
    """What a step with these prompt chunks beside the decoding batch computes.

    Args:
        chunks: sequences in prefill and their tokens.
        windows: attention windows of the model's layers; None = full attention.
        decode_seqs: decoding requests.
        query_len: tokens of each.
        decode_keys: keys that they read together, per window.
    """
    size = len(windows)
    if not chunks:
        zeros = (0,) * size
        return StepWork(0, 0, zeros, zeros, 0, zeros, decode_seqs, query_len, decode_keys)
    pairs, keys, sampled_keys = [0] * size, [0] * size, [0] * size
    tokens = sampled = 0
    for live, chunk in chunks:
        tokens += chunk
        computed = live.computed
        completes = computed + chunk == live.target
        sampled += completes
        for w, window in enumerate(windows):
            pairs[w] += causal_pairs(chunk, computed, window)
            keys[w] += keys_read(computed + chunk, chunk, window)
            if completes:
                sampled_keys[w] += keys_read(live.target + 1, 1, window)
    return StepWork(
        len(chunks),
        tokens,
        tuple(pairs),
        tuple(keys),
        sampled,
        tuple(sampled_keys),
        decode_seqs,
        query_len,
        decode_keys,
    )
