"""Rows gathered one by one, as event traces give them, and turned into a table at the end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from traces.kernels.columns import SIZES, WORDS
from traces.kernels.table import LARGEST_SIZE, KernelTable, Words, make_table, words


class RowBuilder:
    """Collects rows of a small trace (thousands of kernels, each looked at by itself)."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._sizes: dict[str, dict[int, int]] = {}
        self._texts: dict[str, dict[int, str]] = {}

    def add(self, op: str, seconds: float, sizes: Mapping[str, int], texts: Mapping[str, str]) -> None:
        """Add one kernel; ``sizes`` and ``texts`` by canonical column."""
        row = len(self._seconds)
        self._seconds.append(seconds)
        self._texts.setdefault("op", {})[row] = op
        for name, value in sizes.items():
            assert name in SIZES, name
            self._sizes.setdefault(name, {})[row] = value
        for name, text in texts.items():
            assert name in WORDS, name
            self._texts.setdefault(name, {})[row] = text

    def table(self, source: str, format: str, skipped: Mapping[str, int] | None = None) -> KernelTable:
        """Everything added, as a table; a size that no kernel has counts as not told."""
        rows = len(self._seconds)
        sizes = {}
        for name, values in self._sizes.items():
            column = np.zeros(rows, dtype=np.int64)
            column[list(values)] = [value if abs(value) <= LARGEST_SIZE else 0 for value in values.values()]
            sizes[name] = column
        texts: dict[str, Words] = {
            name: words([values.get(row, "") for row in range(rows)]) for name, values in self._texts.items()
        }
        op = texts.pop("op", words([]))
        return make_table(np.array(self._seconds, dtype=np.float64), op, sizes, texts, source, format, skipped=skipped)
