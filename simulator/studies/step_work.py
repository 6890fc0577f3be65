"""Engine steps of a plain shape: fresh prompts, or sequences of equal context that decode or verify."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.timing import StepWork, causal_pairs, keys_read

IntArray = NDArray[np.int64]
Windows = Sequence[int | None]


def decode_steps(windows: Windows, seqs: IntArray, query_len: int, context_tokens: IntArray) -> StepWork[IntArray]:
    """Steps in which ``seqs[i]`` sequences of ``context_tokens[i]`` keys each compute ``query_len`` tokens.

    Args:
        windows: attention windows, as ``EngineTimer.windows``.
        seqs: sequences per step, >= 1.
        query_len: 1 to decode, K+1 to verify K draft tokens.
        context_tokens: keys per sequence, the new tokens included, >= ``query_len``.
    """
    seqs, context_tokens = np.broadcast_arrays(np.asarray(seqs, np.int64), np.asarray(context_tokens, np.int64))
    none = np.zeros(len(seqs), dtype=np.int64)
    empty = (none,) * len(windows)
    keys = tuple(
        seqs * np.array([keys_read(int(context), query_len, window) for context in context_tokens])
        for window in windows
    )
    return StepWork(none, none, empty, empty, none, empty, seqs, none + query_len, keys, none, none)


def prompt_chunks(windows: Windows, prompt_tokens: int, max_tokens: int) -> StepWork[IntArray]:
    """The steps that prefill one prompt alone, in chunks of at most ``max_tokens``."""
    starts = np.arange(0, prompt_tokens, max_tokens, dtype=np.int64)
    sizes = np.minimum(max_tokens, prompt_tokens - starts)
    none, ones = np.zeros_like(starts), np.ones_like(starts)
    last = (starts + sizes == prompt_tokens).astype(np.int64)
    pairs, keys = [], []
    for window in windows:
        both = zip(sizes.tolist(), starts.tolist(), strict=True)
        pairs.append(np.array([causal_pairs(size, start, window) for size, start in both], dtype=np.int64))
        both = zip(sizes.tolist(), starts.tolist(), strict=True)
        keys.append(np.array([keys_read(start + size, size, window) for size, start in both], dtype=np.int64))
    first_reads = tuple(last * keys_read(prompt_tokens + 1, 1, window) for window in windows)
    empty = (none,) * len(windows)
    return StepWork(ones, sizes, tuple(pairs), tuple(keys), last, first_reads, none, ones, empty, none, none)
