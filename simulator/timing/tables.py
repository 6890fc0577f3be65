"""Attention times looked up instead of computed anew in every step, by the same formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CELL_TOKENS_PER_SEQUENCE = 16
MAX_CELL_TOKENS = 256
"""Distance of the contexts at which the decode formula is evaluated: 16 tokens per sequence, at most 256 in all."""
FIRST_CELLS = 128


class DecodeTable:
    """Seconds of one decode attention kernel by sequences, queries per sequence and keys read in all.

    For each pair (sequences, queries) the formula is evaluated at equally spaced contexts, as far as has been asked
    for, and interpolated linearly: the kernel's time is linear in its keys but where it gains a split or a wave, and
    there the jump spreads over one cell.

    Args:
        formula: seconds of (sequences, queries, keys); keys may be an array.
    """

    def __init__(self, formula: Callable[[Any, Any, Any], Any]) -> None:
        self._formula = formula
        self._rows: dict[tuple[int, int], tuple[int, list[float], FloatArray]] = {}
        """Cell width, values as a list for single look-ups, and as an array for many."""

    def __call__(self, seqs: int, query_len: int, keys: Any) -> Any:
        """Seconds for ``keys`` keys in all: a number, or an array for an array."""
        row = self._rows.get((seqs, query_len))
        if isinstance(keys, np.ndarray):
            width, _, values = self._reach(seqs, query_len, int(keys.max()))
            cells = keys // width
            lows = values[cells]
            return lows + (keys - cells * width) * ((values[cells + 1] - lows) / width)
        if row is None or keys >= (len(row[1]) - 1) * row[0]:
            row = self._reach(seqs, query_len, keys)
        width, points, _ = row
        cell = keys // width
        low = points[cell]
        return low + (keys - cell * width) * ((points[cell + 1] - low) / width)

    def _reach(self, seqs: int, query_len: int, keys: int) -> tuple[int, list[float], FloatArray]:
        """The row of a batch, long enough for ``keys``."""
        row = self._rows.get((seqs, query_len))
        if row is not None and keys < (len(row[1]) - 1) * row[0]:
            return row
        width = min(CELL_TOKENS_PER_SEQUENCE * seqs, MAX_CELL_TOKENS)
        cells = max(FIRST_CELLS, 2 * (keys // width + 1))
        points = np.arange(cells + 1, dtype=np.float64) * width
        points[0] = 1.0
        values = np.asarray(self._formula(seqs, query_len, points), dtype=np.float64)
        row = self._rows[(seqs, query_len)] = (width, values.tolist(), values)
        return row


def fresh_prompt_seconds(
    formula: Callable[[Any, Any, Any, Any], Any], window: int | None, max_tokens: int
) -> list[float]:
    """Seconds of prefill attention for one prompt without anything cached, for 0 to ``max_tokens`` tokens.

    Args:
        formula: seconds of (sequences, new tokens, (query, key) pairs, keys).
        window: sliding window in tokens, or None.
        max_tokens: longest prompt chunk.
    """
    tokens = np.arange(1, max_tokens + 1, dtype=np.float64)
    growing = tokens if window is None else np.minimum(tokens, window)
    pairs = growing * (growing + 1) / 2 + (tokens - growing) * (window or 0)
    return [0.0, *np.asarray(formula(1.0, tokens, pairs, tokens)).tolist()]
