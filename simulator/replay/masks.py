"""What a causal mask, with or without a sliding window, admits: for whole columns of shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def admitted_pairs(q_len: FloatArray, kv_len: FloatArray, window: FloatArray) -> FloatArray:
    """Pairs (query, key) of one sequence; the last ``q_len`` of ``kv_len`` tokens are the queries.

    The query at position p (from 1) sees ``min(p, window)`` keys; window 0 = all of them.
    """
    full = q_len * (kv_len - q_len) + q_len * (q_len + 1) / 2
    first = kv_len - q_len + 1
    growing = np.minimum(q_len, np.maximum(0.0, window - first))
    limited = growing * (first + window - 1) / 2 + (q_len - growing) * window
    return np.where((window == 0) | (window >= kv_len), full, limited)


def tokens_read(q_len: FloatArray, kv_len: FloatArray, window: FloatArray) -> FloatArray:
    """Tokens of one sequence whose K and V some query can see."""
    return np.where(window == 0, kv_len, np.minimum(kv_len, window + q_len - 1))
