"""Step prices of an engine: recorded from the timing model for the compiled loop, else the model itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import simulator.timing as timing

if TYPE_CHECKING:
    from simulator.timing import EngineTimer

INTERPRETED = "interpreted"
"""``SOURCE`` of an engine that is not compiled."""
DRAFTERS = ("HeadsDrafter", "HostDrafter", "ParallelDrafter", "RemoteDrafter", "SequentialDrafter")
"""Drafters of ``simulator.timing`` whose parts depend on the step alone."""


def prices_of(timer: EngineTimer, engine: Any) -> Any:
    """Object that prices steps: as recorded, or the timing model itself. The latter where the engine is interpreted, or
    the timing model or its drafter is custom and may depend on more than the step.

    Args:
        timer: the timing model.
        engine: the engine's module.
    """
    drafters = (type(None), *(getattr(timing, name) for name in DRAFTERS))
    recordable = isinstance(timer, timing.ModelTimer) and type(timer.drafter) in drafters
    return engine.RecordedPrices(timer) if recordable and engine.SOURCE != INTERPRETED else engine.Prices(timer)
