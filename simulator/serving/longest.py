"""The longest contexts of a decoding batch: every sequence grows by one token a step, so their order never changes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

from simulator.serving.future import LiveRequest


class LongestContexts:
    """Finds the longest contexts among the decoding requests of a replica without speculation.

    Args:
        count: how many of the longest count.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._sorted: list[tuple[int, int, int]] = []
        """(first step less the tokens before it, request, first step), the longest first; those that left linger."""

    def add(self, live: LiveRequest) -> None:
        """A request starts to decode in step ``live.start``."""
        insort(self._sorted, (live.start - live.target, live.index, live.start))

    def at(self, step: int, running: Mapping[int, LiveRequest]) -> tuple[int, float]:
        """Of the decoding requests in a step.

        Returns:
            Tokens that the longest attends to, its new one included, and how many it has beyond the mean of the longest
            ``count``; zeros where none decodes.
        """
        contexts: list[int] = []
        place = 0
        while place < len(self._sorted) and len(contexts) < self._count:
            offset, index, start = self._sorted[place]
            live = running.get(index)
            if live is None or live.start != start or live.start - live.target != offset:
                del self._sorted[place]
                continue
            contexts.append(step - offset + 1)
            place += 1
        if not contexts:
            return 0, 0.0
        return contexts[0], (len(contexts) * contexts[0] - sum(contexts)) / len(contexts)
