"""How an engine gets at the prices of its steps: tables for the compiled loop, where a timing model has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.timing import (
    Costs,
    Drafter,
    EngineTimer,
    HeadsDrafter,
    HostDrafter,
    HostOverhead,
    ModelTimer,
    ParallelDrafter,
    SequentialDrafter,
    StagedTimer,
    StepWork,
)
from simulator.timing.drafters import DraftStep


def prices_of(timer: EngineTimer, engine: Any) -> Any:
    """What says how long steps last: tables, or the timing model itself where its prices are no tables.

    Args:
        timer: the timing model.
        engine: the engine's module.
    """
    tables = timer.tables if isinstance(timer, ModelTimer) and not isinstance(timer, StagedTimer) else None
    if tables is None:
        return engine.Prices(timer)
    assert isinstance(timer, ModelTimer)
    draft = None if timer.drafter is None else _draft_prices(timer.drafter, timer.windows, engine)
    if draft is None and timer.drafter is not None:
        return engine.Prices(timer)
    return engine.TabulatedPrices(timer, tables, draft)


def _draft_prices(drafter: Drafter, windows: tuple[int | None, ...], engine: Any) -> Any:
    """A drafter's part of a step; None where no tables are known of it."""
    order = [windows.index(window) for window in drafter.windows]
    if isinstance(drafter, HeadsDrafter):
        return engine.TabulatedDraft(order, drafter.windows, drafter.overhead, 1, drafter.table.table, 0.0)
    if isinstance(drafter, HostDrafter):
        host = HostOverhead(drafter.step_s, 0.0, drafter.per_sequence_s)
        return engine.TabulatedDraft(order, drafter.windows, host, 0, None, drafter.per_context_token_s)
    if not isinstance(drafter, SequentialDrafter | ParallelDrafter):
        return None
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


@dataclass(frozen=True, slots=True)
class ScaledStages:
    """The stages of a pipeline times one factor for batches with prompt chunks and another for the rest."""

    inner: StagedTimer
    with_prompts: float
    without: float

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.inner.stages

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Distinct attention windows."""
        return self.inner.windows

    def stage_seconds(self, work: StepWork[Any]) -> list[float]:
        """Seconds that a batch keeps each stage busy."""
        return [seconds * self._factor(work) for seconds in self.inner.stage_seconds(work)]

    def host_seconds(self, work: StepWork[Any]) -> float:
        """Seconds of the scheduler before a batch enters the first stage."""
        return self.inner.host_seconds(work) * self._factor(work)

    def seconds(self, work: StepWork[Any], draft: DraftStep[int] | None = None) -> Any:
        """Seconds of one batch that has the pipeline to itself."""
        return self.inner.seconds(work, draft) * self._factor(work)

    def costs(self, work: StepWork[Any], draft: DraftStep[Any] | None = None) -> Costs:
        """Costs of many batches, as they are priced without the factors."""
        return self.inner.costs(work, draft)

    def _factor(self, work: StepWork[Any]) -> float:
        return self.with_prompts if work.prefill_seqs else self.without
