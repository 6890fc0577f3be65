"""Step prices of an engine: tables for the compiled loop if the timing model has them, else the model itself."""

from __future__ import annotations

from typing import Any

from simulator.timing import (
    Drafter,
    EngineTimer,
    HeadsDrafter,
    HostDrafter,
    HostOverhead,
    ModelTimer,
    ParallelDrafter,
    SequentialDrafter,
)


def prices_of(timer: EngineTimer, engine: Any) -> Any:
    """Object that prices steps: tables, or the timing model itself if its prices cannot be tabulated.

    Args:
        timer: the timing model.
        engine: the engine's module.
    """
    tables = timer.tables if isinstance(timer, ModelTimer) else None
    if tables is None:
        return engine.Prices(timer)
    assert isinstance(timer, ModelTimer)
    draft = None if timer.drafter is None else _draft_prices(timer.drafter, timer.windows, engine)
    if draft is None and timer.drafter is not None:
        return engine.Prices(timer)
    return engine.TabulatedPrices(timer, tables, draft)


def _draft_prices(drafter: Drafter, windows: tuple[int | None, ...], engine: Any) -> Any:
    """Prices of a drafter's part of a step; None if they cannot be tabulated."""
    order = [windows.index(window) for window in drafter.windows]
    if isinstance(drafter, HeadsDrafter):
        return engine.TabulatedDraft(order, drafter.windows, drafter.overhead, 1, drafter.table.table, 0.0)
    if isinstance(drafter, HostDrafter):
        host = HostOverhead(drafter.step_s, 0.0, drafter.per_sequence_s)
        return engine.TabulatedDraft(order, drafter.windows, host, 0, None, drafter.per_context_token_s)
    if not isinstance(drafter, SequentialDrafter | ParallelDrafter):
        return None
    if isinstance(drafter, SequentialDrafter) and drafter.step.deployment.framework.drafts == "per-sequence":
        return None  # the compiled loop knows passes that serve all sequences
    tables = drafter.step.tables
    fusion = None if drafter.fusion is None else drafter.fusion.table
    if isinstance(drafter, ParallelDrafter):
        parts = (drafter.windows, drafter.overhead, tables, fusion, drafter.num_speculative_tokens)
        return engine.ParallelDraft(order, *parts)
    return engine.SequentialDraft(
        order,
        drafter.windows,
        drafter.overhead,
        tables,
        fusion,
        drafter.depth,
        drafter.longest_path + 1,
        drafter.modules if drafter.separate_modules else 0,
        drafter.reads_target_cache,
        drafter.depth if drafter.reads_target_cache else len(drafter.pass_tokens),
        list(drafter.pass_groups),
    )
