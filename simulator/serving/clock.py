"""Order within one instant, and a time grid on which sums are exact.

Replicas in lockstep finish at the same instant. What happens then must not depend on which event was scheduled first,
so an instant has three phases: replicas commit their steps, the router hands requests out, replicas plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import simpy
from simpy.core import SimTime
from simpy.events import EventPriority

TICKS_PER_S = 2.0**40
"""Step times are whole ticks of 0.9 ps: sums of them are exact in double precision up to ``EXACT_S``."""
EXACT_S = 2.0**53 / TICKS_PER_S
"""Beyond 8,192 s doubles are further apart than a tick; a step then lasts from one double to another."""

ROUTE = 2
"""Priority of the router within an instant; commits come before (SimPy's NORMAL is 1)."""
PLAN = 3
"""Priority of planning within an instant."""


def on_grid(seconds: Any) -> Any:
    """A step's seconds rounded to whole ticks; a number or an array."""
    if isinstance(seconds, np.ndarray):
        return np.rint(seconds * TICKS_PER_S) / TICKS_PER_S
    return round(float(seconds) * TICKS_PER_S) / TICKS_PER_S


def by_clock(now: float, seconds: float) -> float:
    """The seconds of a step that begins at ``now``, as simulated time counts them.

    Up to ``EXACT_S`` they are what they are. Beyond, they are the difference of the two times that the step lies
    between, so that sums of them stay exact: steps neither overlap nor drift from the clock, however far out. One is
    0.1 ns off after ten days and 0.1 us after thirty years.
    """
    end = now + seconds
    return seconds if end <= EXACT_S else end - now


class Phase(simpy.Event):
    """An event at the present instant, after everything of higher priority."""

    def __init__(self, env: simpy.Environment, priority: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value: Any = None
        now: SimTime = 0
        env.schedule(self, EventPriority(priority), now)
