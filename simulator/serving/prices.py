"""Step prices of an engine: recorded from the timing model for the compiled loop, else the model itself."""

from __future__ import annotations

from typing import Any

from simulator.timing import (
    EngineTimer,
    HeadsDrafter,
    HostDrafter,
    ModelTimer,
    ParallelDrafter,
    RemoteDrafter,
    SequentialDrafter,
)

INTERPRETED = "interpreted"
"""``SOURCE`` of an engine that is not compiled."""
DRAFTERS = (type(None), HeadsDrafter, HostDrafter, ParallelDrafter, RemoteDrafter, SequentialDrafter)
"""Drafters whose parts depend on the step alone."""


def prices_of(timer: EngineTimer, engine: Any) -> Any:
    """Object that prices steps: as recorded, or the timing model itself. The latter where the engine is interpreted, or
    the timing model or its drafter is custom and may depend on more than the step.

    Args:
        timer: the timing model.
        engine: the engine's module.
    """
    recordable = isinstance(timer, ModelTimer) and type(timer.drafter) in DRAFTERS
    return engine.RecordedPrices(timer) if recordable and engine.SOURCE != INTERPRETED else engine.Prices(timer)
