"""Order within one instant, and a time grid on which sums are exact.

Replicas in lockstep finish at the same instant. What happens then must not depend on which event was scheduled first,
so an instant has three phases: replicas commit their steps, the router hands requests out, replicas plan.
"""

from __future__ import annotations

import numpy as np

from hwprofiles.formulas import Num

TICKS_PER_S = 2.0**40
"""Step times are whole ticks of 0.9 ps: sums of them are exact in double precision up to 8,192 s.

Beyond that, doubles are spaced wider than a tick, and a step lasts from one double to another (the engine's
``_by_clock``): steps neither overlap nor drift from the clock, and one is 0.1 ns off after ten days and 0.1 us after
thirty years.
"""

COMMIT = 1
"""Priority of events with a time known in advance (SimPy's ``NORMAL``). They are the end of a step, and the arrival of
a request or of transferred KV."""
ROUTE = 2
"""Priority of the router within an instant."""
PLAN = 3
"""Priority of planning within an instant."""


def on_grid(seconds: Num) -> Num:
    """A step's seconds rounded to whole ticks; a number or an array."""
    if isinstance(seconds, np.ndarray):
        ticks = seconds * TICKS_PER_S
        np.rint(ticks, out=ticks)
        ticks /= TICKS_PER_S
        return ticks
    return round(float(seconds) * TICKS_PER_S) / TICKS_PER_S
