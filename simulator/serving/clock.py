"""Order within one instant, and a time grid on which sums are exact.

Replicas in lockstep finish at the same instant. What happens then must not depend on which event was scheduled first,
so an instant has three phases: replicas commit their steps, the router hands requests out, replicas plan.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import numpy as np
import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, EventPriority

TICKS_PER_S = 2.0**40
"""Step times are whole ticks of 0.9 ps: sums of them are exact in double precision up to 8,192 s.

Beyond, the spacing of doubles is larger than a tick, and a step lasts from one double to another (the engine's
``_by_clock``): steps neither overlap nor drift from the clock, and one is 0.1 ns off after ten days and 0.1 us after
thirty years.
"""

COMMIT: EventPriority = NORMAL
"""Priority of events whose time is known in advance: steps that end, requests that are seen, KV that arrives."""
ROUTE = EventPriority(2)
"""Priority of the router within an instant."""
PLAN = EventPriority(3)
"""Priority of planning within an instant."""


def on_grid(seconds: Any) -> Any:
    """A step's seconds rounded to whole ticks; a number or an array."""
    if isinstance(seconds, np.ndarray):
        return np.rint(seconds * TICKS_PER_S) / TICKS_PER_S
    return round(float(seconds) * TICKS_PER_S) / TICKS_PER_S


class Timeline(simpy.Environment):
    """SimPy's simulated time, which also calls a function at a time, without an event around it.

    What happens to every request is such a call, at a fifth of an event's cost; processes wait for events as ever, and
    both happen in one order: by time, by priority, in the order in which they were requested.
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

    def phase(self, priority: EventPriority) -> simpy.Event:
        """An event at the present instant, after everything of higher priority, for a process to wait for."""
        event = self.event()
        self.call(event.succeed, priority=priority)
        return event

    def schedule(self, event: simpy.Event, priority: EventPriority = COMMIT, delay: float = 0.0) -> None:
        """An event that SimPy, or a process, has triggered."""
        self.call(self._happen, event, delay, priority)

    def peek(self) -> float:
        """Time of what happens next; inf for nothing."""
        return self._calls[0][0] if self._calls else inf

    def step(self) -> None:
        """Let the next thing happen.

        Raises:
            EmptySchedule: nothing will.
        """
        if not self._calls:
            raise EmptySchedule
        self.now, _, _, function, value = heappop(self._calls)
        function(value)

    def _happen(self, event: simpy.Event) -> None:
        """An event's time has come: what waits for it goes on, as SimPy has it."""
        self._now = self.now
        super().schedule(event)
        super().step()
