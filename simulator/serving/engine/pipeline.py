"""A replica with pipeline stages: several batches in flight."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

from simulator.serving.engine.common import NAN, _on_grid, cython, isnan
from simulator.serving.engine.loop import Engine
from simulator.serving.engine.schedulers.scheduler import Scheduler
from simulator.serving.engine.sequence import Sequence, StepPlan
from simulator.serving.engine.work import Work


@cython.final
@cython.cclass
class StagedBatch:
    """A batch on its way through the stages of a pipeline."""

    plan: StepPlan
    work: Work
    start: cython.double
    end: cython.double
    """When its tokens leave the last stage."""
    blocks: cython.longlong
    running: cython.longlong
    waiting: cython.longlong

    def __init__(self, plan: StepPlan, windows: tuple[int | None, ...], start: cython.double) -> None:
        self.plan, self.start = plan, start
        self.work = Work(windows)


@cython.final
@cython.cclass
class PipelinedEngine(Engine):
    """An engine whose scheduler fills a queue of as many batches as there are stages.

    The scheduler runs, on the host, whenever the queue has room; an empty or a full queue makes it wait for the oldest
    batch (so it is ahead of the stages, whatever ``limits.schedules_ahead`` says). A batch enters a stage
    when the stage before has handed it over and the batch before has left. What is planned and committed is one turn
    of the scheduler: a batch sent, or one taken out. Step records cover the time between one batch coming out and the
    next, so that they add up to the time that the replica worked.

    Args:
        stages: of the pipeline.
        others: as ``Engine``.

    Source: ``EngineCore.step_with_batch_queue`` of vLLM V1.
    """

    _stages: cython.longlong
    _under_way: Any
    """Batches in the pipeline, the oldest first."""
    _leaving: StagedBatch | None
    """The batch that leaves the pipeline in the planned turn."""
    _free_s: cython.double[::1]
    """Time at which each stage has finished its batches."""
    _recorded_s: cython.double
    """End of the latest step record."""

    def __init__(self, stages: int, **others: Any) -> None:
        Engine.__init__(self, **others)
        self._stages = stages
        self._under_way = deque()
        self._leaving = None
        self._free_s = array("d", [0.0]) * stages
        self._recorded_s = 0.0

    @cython.ccall
    def begin(self, now: cython.double) -> cython.bint:
        """Send a batch of what can run, else wait for the oldest; False when there is nothing to do."""
        self._leaving = None
        self.planned = True
        if self.scheduler._works() and len(self._under_way) < self._stages and self._send(now):
            return True
        if self._under_way:
            self._leaving = self._under_way.popleft()
            self.end = max(now, self._leaving.end)
            return True
        self.planned = False
        return False

    @cython.cfunc
    def _send(self, now: cython.double) -> cython.bint:
        """Send a batch of what can run on its way; False when nothing can."""
        sequence: Sequence
        tokens: cython.longlong
        stage: cython.longlong
        seconds: cython.double
        scheduler: Scheduler = self.scheduler
        if self.copies is not None:
            self.copies.clock[0] = now
        plan: StepPlan = scheduler.plan()
        for sequence in scheduler.preempted:
            self.log.preemptions[sequence.index] += 1
        if not (plan.chunks or plan.decodes):
            return False
        batch: StagedBatch = StagedBatch(plan, self.prices.timer.windows, now)
        batch.work.measure(plan, scheduler.query_len, 0)
        for sequence, tokens in plan.chunks:
            if isnan(self.output.scheduled_s[sequence.index]):
                self._schedule_first(sequence, now)
            sequence.computed_tokens += tokens
        factor: cython.double = self._factor(batch.work)
        sent: cython.double = now + _on_grid(self._with_more(self.prices.host_seconds(batch.work) * factor))
        batch.end = sent
        ends = [] if self.copies is None else self.copies.send(now)
        for stage, seconds in enumerate(self.prices.stage_seconds(batch.work)):
            seconds *= factor
            batch.end = max(batch.end, self._free_s[stage])
            if self.copies is not None and ends:
                seconds += self.copies.staged_s(ends, stage, batch.end, _on_grid(seconds))
            batch.end += _on_grid(seconds)
            self.log.stage_busy_s += seconds
            self._free_s[stage] = batch.end
        batch.blocks, batch.running, batch.waiting = scheduler._used(), len(scheduler.running), len(scheduler.waiting)
        self._under_way.append(batch)
        self.end = min(batch.end, sent)
        return True

    @cython.ccall
    def commit(self) -> None:
        """Deliver the tokens of the batch that leaves the pipeline, if one does."""
        batch: StagedBatch
        tokens: cython.longlong
        self.planned = False
        self.now = self.seen = self.end
        if self._leaving is None:
            return
        batch = self._leaving
        batch.plan.leave()
        tokens = self.deliver(batch.plan, NAN, self.now)
        if self.copies is not None:
            self.copies.clock[0] = self.now
            self.scheduler.save()
        self.work, self.start = batch.work, max(batch.start, self._recorded_s)
        self._seconds, self._recorded_s = self.now - self.start, self.now
        self._running, self._waiting, self._blocks = batch.running, batch.waiting, batch.blocks
        self.log.stage_open_s += self._seconds * self._stages
        self._new_row(tokens)

    @cython.ccall
    def tells(self) -> cython.bint:
        """True if the batch that leaves the pipeline may have the last token of a request."""
        return self._leaving is not None and self._ends(self._leaving.plan)
