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

Beyond that, doubles are spaced wider than a tick, and a step lasts from one double to another (the engine's
``_by_clock``): steps neither overlap nor drift from the clock, and one is 0.1 ns off after ten days and 0.1 us after
thirty years.
"""

COMMIT: EventPriority = NORMAL
"""Priority of events with a time known in advance: end of a step, arrival of a request or of transferred KV."""
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

    def phase(self, priority: EventPriority) -> simpy.Event:
        """Return an event at the present instant, after everything of higher priority, for a process to wait for."""
        event = self.event()
        self.call(event.succeed, priority=priority)
        return event

    def schedule(self, event: simpy.Event, priority: EventPriority = COMMIT, delay: float = 0.0) -> None:
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
