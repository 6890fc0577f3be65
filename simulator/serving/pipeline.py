"""A replica cut into pipeline stages: several batches in flight, one per stage, as vLLM's batch queue keeps them."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

import simpy

from simulator.serving.batching import UnifiedScheduler
from simulator.serving.clock import PLAN, Phase, on_grid
from simulator.serving.exact import ExactReplica
from simulator.serving.feed import Feed
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog
from simulator.serving.scheduler import StepPlan
from simulator.serving.sequence import Sequence
from simulator.speculation import AcceptanceSampler
from simulator.timing import StagedTimer, StepWork


class PipelinedScheduler(UnifiedScheduler):
    """vLLM V1's rule where earlier batches have not come out yet.

    A decoding sequence waits for its token; the next chunk of a prompt may follow the one before through the
    pipeline. A sequence in flight is not preempted. Blocks, budget and order are those of ``UnifiedScheduler``; the
    budget and ``max_num_seqs`` hold for each batch and for all running sequences, as in vLLM.

    Source: ``Scheduler.schedule`` and ``EngineCore.step_with_batch_queue`` of vLLM V1 (v0.9 to v0.11).
    """

    def _plan(self) -> StepPlan:
        """What can run now beside the batches in flight; may be empty."""
        plan = super()._plan()
        for sequence in plan.decodes:
            sequence.in_flight += 1
        for sequence, _ in plan.chunks:
            sequence.in_flight += 1
        return plan

    def _allocate(self, sequence: Sequence, blocks: int) -> bool:
        """Blocks for a sequence, preempting from the end, up to itself, those that are not in flight."""
        while not self._grow(sequence, blocks):
            victim = next(one for one in reversed(self.running) if one is sequence or not one.in_flight)
            if victim.in_flight:
                return False
            self.running.remove(victim)
            self.running.append(victim)
            self._preempt_last()
            if victim is sequence:
                return False
        return True


@dataclass(slots=True)
class _Batch:
    """A batch on its way through the stages."""

    plan: StepPlan
    work: StepWork[int]
    start: float
    end: float
    """When its tokens leave the last stage."""
    blocks: int
    running: int
    waiting: int


class PipelinedReplica(ExactReplica):
    """An engine whose scheduler fills a queue of as many batches as there are stages.

    The scheduler runs, on the host, whenever the queue has room; an empty or a full queue makes it wait for the oldest
    batch (so it is ahead of the stages, whatever ``limits.schedules_ahead`` says). A batch enters a stage
    when the stage before has handed it over and the batch before has left. Step records cover the time between one
    batch coming out and the next, so that they add up to the time that the replica worked.

    Args:
        env, index, feed, limits, sampler, log: as ``ExactReplica``.
        scheduler: the batching rule.
        timer: seconds of a batch in each stage.

    Source: ``EngineCore.step_with_batch_queue`` of vLLM V1.
    """

    def __init__(
        self,
        env: simpy.Environment,
        index: int,
        feed: Feed,
        scheduler: PipelinedScheduler,
        timer: StagedTimer,
        limits: EngineLimits,
        sampler: AcceptanceSampler | None,
        log: RunLog,
    ) -> None:
        super().__init__(env, index, feed, lambda: scheduler, timer, limits, sampler, log)
        self._stages = timer
        self._free_s = [0.0] * timer.stages
        """When each stage is done with what it was given."""
        self._recorded_s = 0.0
        """End of the latest step record."""

    def serve(self) -> Generator[simpy.Event, None, None]:
        """Fill the pipeline, take out what is finished, until no request will ever come."""
        scheduler, env = self.scheduler, self._env
        in_flight: deque[_Batch] = deque()
        now = 0.0
        while True:
            if self._feed.shared:
                yield from self._until(Phase(env, PLAN))
            self._collect(now)
            batch = self._plan(now) if scheduler.has_work and len(in_flight) < self._stages.stages else None
            if batch is not None:
                in_flight.append(batch)
                now = min(batch.end, now + on_grid(self._stages.host_seconds(batch.work)))
            elif in_flight:
                batch = in_flight.popleft()
                now = max(now, batch.end)
                yield from self._until(env.timeout(max(0.0, now - env.now)))
                self._take_out(batch, now)
                continue
            elif not scheduler.has_work:
                event = self._feed.wait(env)
                if event is None:
                    return
                yield from self._until(event)
                now = max(now, env.now)
                continue
            yield from self._until(env.timeout(max(0.0, now - env.now)))

    def _plan(self, now: float) -> _Batch | None:
        """A batch of what can run, sent on its way; None when nothing can."""
        scheduler, log = self.scheduler, self._log
        plan = scheduler.plan()
        for victim in scheduler.preempted:
            log.preemptions[victim.index] += 1
        if not plan:
            return None
        work = plan.work(self._limits.query_len, self._timer.windows)
        for sequence, tokens in plan.chunks:
            if log.scheduled_s[sequence.index] != log.scheduled_s[sequence.index]:
                log.scheduled_s[sequence.index] = now
                log.cached_tokens[sequence.index] = sequence.cached_tokens or 0
            sequence.computed_tokens += tokens
        end = now + on_grid(self._stages.host_seconds(work))
        for stage, seconds in enumerate(self._stages.stage_seconds(work)):
            end = max(end, self._free_s[stage]) + on_grid(seconds)
            log.stage_busy_s += seconds
            self._free_s[stage] = end
        used, running, waiting = scheduler.used_blocks, len(scheduler.running), len(scheduler.waiting)
        return _Batch(plan, work, now, end, used, running, waiting)

    def _take_out(self, batch: _Batch, now: float) -> None:
        """Hand out a batch's tokens; a prompt is done when none of its chunks is in flight any more."""
        plan = batch.plan
        for sequence, _ in plan.chunks:
            sequence.in_flight -= 1
        for sequence in plan.decodes:
            sequence.in_flight -= 1
        done = StepPlan([(sequence, 0) for sequence, _ in plan.chunks if not sequence.in_flight], plan.decodes)
        tokens = self._commit(done, batch.start, now - batch.start, now)
        start = max(batch.start, self._recorded_s)
        self._recorded_s = now
        self._log.stage_open_s += (now - start) * self._stages.stages
        self._log.steps.step(
            self.index, start, now - start, tokens, batch.running, batch.waiting, batch.blocks, batch.work
        )
        self._log.exact_steps += 1
