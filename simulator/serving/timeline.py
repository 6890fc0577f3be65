"""Simulated time of replicas behind a router; a run without one needs no SimPy, whose import takes a while."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import simpy
from simpy.core import EmptySchedule

from simulator.serving.clock import COMMIT


class Timeline(simpy.Environment):
    """SimPy environment that can also schedule plain function calls, without creating an event for each.

    Per-request actions are such calls, at a fifth of an event's cost. Processes wait for events as usual, and
    events and calls share one order: by time, then priority, then the order in which they were scheduled.
    """

    now: float = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[float, int, int, Callable[[Any], object], Any]] = []
        self._number = count().__next__

    def call(
        self, function: Callable[[Any], object], value: Any = None, delay: float = 0.0, priority: int = COMMIT
    ) -> None:
        """Call ``function(value)`` after ``delay`` seconds."""
        heappush(self._calls, (self.now + delay, priority, self._number(), function, value))

    def phase(self, priority: int) -> simpy.Event:
        """Return an event at the present instant, after everything of higher priority, for a process to wait for."""
        event = self.event()
        self.call(event.succeed, priority=priority)
        return event

    def schedule(self, event: simpy.Event, priority: int = COMMIT, delay: float = 0.0) -> None:
        """Schedule an event that SimPy, or a process, has triggered."""
        self.call(self._happen, event, delay, priority)

    def peek(self) -> float:
        """Time of the next event or call; inf if none is scheduled."""
        return self._calls[0][0] if self._calls else inf

    def step(self) -> None:
        """Process the next event or call.

        Raises:
            EmptySchedule: nothing is scheduled.
        """
        if not self._calls:
            raise EmptySchedule
        self.now, _, _, function, value = heappop(self._calls)
        function(value)

    def _happen(self, event: simpy.Event) -> None:
        """Run the callbacks of a due event through SimPy, so that the processes waiting for it resume."""
        self._now = self.now
        super().schedule(event)
        super().step()
