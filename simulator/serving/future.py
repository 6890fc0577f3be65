"""What the running requests will need, step by step: each adds its future once, when it starts to decode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request in the batch."""

    index: int
    generated: int
    """Tokens delivered before the current decode started."""
    verify_steps: int
    last_token_s: float | None
    target: int
    """Tokens to put in the cache before it decodes: prompt, and what was generated before a preemption."""
    units: list[int]
    """Prefix-cache units that it holds."""
    computed: int = 0
    start: int = -1
    """First decode step; -1 while in prefill."""
    steps: int = 0
    """Decode steps it needs."""
    cached: int | None = None
    """Prompt tokens found in the prefix cache when it first ran."""
    host_tokens: int = 0
    """Of these, tokens that came from host memory."""
    path: IntArray | None = None
    """Accepted draft tokens of each of them; None without speculation."""
    drafter_tokens: int = -1
    """Tokens in the drafter's cache while it rests; -1 while it keeps up."""


class FutureTotals:
    """Totals over the decoding requests for every future step, addressed by step number."""

    def __init__(self, rows: int, horizon: int) -> None:
        self._horizon = horizon
        self._base = 0
        self._totals = np.zeros((rows, 4 * horizon + 4096), dtype=np.int64)
        self.full_at = 3 * horizon + 4094
        """Step from which on the totals of a newcomer might not fit."""

    def window(self, start: int, steps: int) -> IntArray:
        """The totals of ``steps`` steps from ``start`` on, one row per quantity; writable."""
        at = start - self._base
        return self._totals[:, at : at + steps]

    def at(self, step: int) -> list[int]:
        """All totals at one step."""
        totals: list[int] = self._totals[:, step - self._base].tolist()
        return totals

    def range(self, row: int, start: int, stop: int) -> IntArray:
        """Totals of the steps from ``start`` up to ``stop``."""
        return self._totals[row, start - self._base : stop - self._base]

    def forget_before(self, step: int) -> None:
        """Make room: steps before ``step`` are never asked for again. Due when ``step`` reaches ``full_at``."""
        passed = step - self._base
        size = self._totals.shape[1]
        self._totals[:, : size - passed] = self._totals[:, passed:].copy()
        self._totals[:, size - passed :] = 0
        self._base = step
        self.full_at = step + size - self._horizon - 2
