"""One replica in simulated time: an engine whose steps others may see, wait for and interrupt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Protocol

import simpy

from simulator.serving.clock import PLAN, Phase, on_grid
from simulator.serving.feed import Feed
from simulator.serving.log import RunLog
from simulator.serving.prefix_cache import NoPrefixCache

if TYPE_CHECKING:
    from simulator.serving.engine import Engine, Scheduler, Sequence, StepPlan, Work


class Handover(Protocol):
    """Where a prefill replica's finished prompts go."""

    samples_first: bool
    """Whether the prefill replica delivers the first token."""

    def prompt_done(self, source: Engine, sequence: Sequence) -> None:
        """The KV of a prompt is complete and waits in ``source``."""

    def blocks_freed(self, replica: Engine) -> None:
        """A decode replica may have room for another."""


class _Failed(Exception):
    """The replica has failed while it waited for something."""


class Replica:
    """An engine among others: it advances by itself to the next moment at which somebody else could see it.

    Args:
        env: simulated time.
        engine: its steps.
        feed: where its requests come from.
        make_scheduler: the batching rule with empty caches, asked for after a failure.
    """

    def __init__(
        self, env: simpy.Environment, engine: Engine, feed: Feed, make_scheduler: Callable[[], Scheduler]
    ) -> None:
        self.engine = engine
        self._env = env
        self._feed = feed
        self._make_scheduler = make_scheduler
        self._back: simpy.Event | None = None
        """Happens when the failed replica is back."""

    @property
    def scheduler(self) -> Scheduler:
        """Its queue, its batch and its blocks."""
        scheduler: Scheduler = self.engine.scheduler
        return scheduler

    @property
    def held_blocks(self) -> int:
        """KV blocks that requests hold now."""
        return self.scheduler.used_blocks

    def prefix_cache(self) -> NoPrefixCache:
        """The prefix cache as it is now."""
        cache: NoPrefixCache = self.scheduler.cache
        return cache

    def serve(self) -> Generator[simpy.Event, None, None]:
        """Engine steps until no request will ever come."""
        while True:
            try:
                yield from self._steps()
                return
            except _Failed:
                yield from self._repair()
                self.engine.now = self.engine.seen = self._env.now

    def fail(self, process: simpy.Process, under_way: Iterable[int]) -> list[Sequence]:
        """Lose everything now and stand still until ``recover``.

        Args:
            process: what runs this replica.
            under_way: requests that were sent here and not yet taken.

        Returns:
            What was in the queues and the caches, and what was under way.
        """
        lost = [*self.scheduler.everything(), *map(self.engine.sequence, under_way)]
        self.engine.scheduler = self._make_scheduler()
        self._back = self._env.event()
        process.interrupt()
        return lost

    def renew(self) -> None:
        """Start with empty caches; for a replica that has nothing to do."""
        assert not self.scheduler.everything()
        self.engine.scheduler = self._make_scheduler()

    def recover(self) -> None:
        """Start again with empty caches."""
        assert self._back is not None
        self._back.succeed()
        self._back = None

    def _repair(self) -> Generator[simpy.Event, None, None]:
        """Stand still until the replica is back."""
        back = self._back
        while back is not None and not back.processed:
            try:
                yield back
            except simpy.Interrupt:
                continue

    def _steps(self) -> Generator[simpy.Event, None, None]:
        """Engine steps from the engine's present on."""
        engine, env = self.engine, self._env
        while True:
            if env.peek() <= env.now:  # something else happens in this instant, and planning comes last
                yield from self._until(Phase(env, PLAN))
            if engine.advance(env.peek()):
                yield from self._until(env.timeout(max(0.0, engine.end - env.now)))
                engine.commit()
                continue
            now = max(engine.now, env.now)
            if engine.seen >= now:
                event = self._feed.wait(env)
                if event is None:
                    return
                yield from self._until(event)
                now = max(now, env.now)
            # Otherwise no step runs over which the next one was decided.
            engine.now = engine.seen = now

    def _until(self, event: simpy.Event) -> Generator[simpy.Event, None, None]:
        """Wait for ``event``; arrivals meanwhile are noticed at the next plan."""
        while not event.processed:
            try:
                yield event
            except simpy.Interrupt:
                if self._back is not None:
                    raise _Failed from None

    def run(self) -> None:
        """All of its steps, where nobody looks at it meanwhile."""
        self.engine.run()


@dataclass(slots=True)
class _Batch:
    """A batch on its way through the stages."""

    plan: StepPlan
    work: Work
    start: float
    host_s: float
    """Of the scheduler before it enters the first stage."""
    end: float
    """When its tokens leave the last stage."""
    blocks: int
    running: int
    waiting: int


class PipelinedReplica(Replica):
    """An engine whose scheduler fills a queue of as many batches as there are stages.

    The scheduler runs, on the host, whenever the queue has room; an empty or a full queue makes it wait for the oldest
    batch (so it is ahead of the stages, whatever ``limits.schedules_ahead`` says). A batch enters a stage
    when the stage before has handed it over and the batch before has left. Step records cover the time between one
    batch coming out and the next, so that they add up to the time that the replica worked.

    Args:
        env, engine, feed, make_scheduler: as ``Replica``.
        stages: of the pipeline.
        log: where the stages' times go.

    Source: ``EngineCore.step_with_batch_queue`` of vLLM V1.
    """

    def __init__(
        self,
        env: simpy.Environment,
        engine: Engine,
        feed: Feed,
        make_scheduler: Callable[[], Scheduler],
        stages: int,
        log: RunLog,
    ) -> None:
        super().__init__(env, engine, feed, make_scheduler)
        self._stages = stages
        self._log = log
        self._free_s = [0.0] * stages
        """When each stage is done with what it was given."""
        self._recorded_s = 0.0
        """End of the latest step record."""

    def run(self) -> None:
        """All of its steps, where nobody looks at it meanwhile."""
        self._env.process(self.serve())
        self._env.run()

    def _steps(self) -> Generator[simpy.Event, None, None]:
        """Fill the pipeline, take out what is finished, until no request will ever come."""
        scheduler, env = self.scheduler, self._env
        in_flight: deque[_Batch] = deque()
        now = 0.0
        while True:
            if self._feed.shared:
                yield from self._until(Phase(env, PLAN))
            self.engine.collect(now)
            batch = self._send(now) if scheduler.has_work and len(in_flight) < self._stages else None
            if batch is not None:
                in_flight.append(batch)
                now = min(batch.end, now + batch.host_s)
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

    def _send(self, now: float) -> _Batch | None:
        """A batch of what can run, sent on its way; None when nothing can."""
        scheduler, log = self.scheduler, self._log
        plan = scheduler.plan()
        for victim in scheduler.preempted:
            log.preemptions[victim.index] += 1
        if not plan:
            return None
        batch = self.engine.fresh_work()
        batch.measure(plan, scheduler.query_len, 0)
        for sequence, tokens in plan.chunks:
            if isnan(log.scheduled_s[sequence.index]):
                log.scheduled_s[sequence.index] = now
                log.cached_tokens[sequence.index] = sequence.cached_tokens
            sequence.computed_tokens += tokens
        host_s = on_grid(self.engine.prices.host_seconds(batch))
        end = now + host_s
        for stage, seconds in enumerate(self.engine.prices.stage_seconds(batch)):
            end = max(end, self._free_s[stage]) + on_grid(seconds)
            log.stage_busy_s += seconds
            self._free_s[stage] = end
        used, running, waiting = scheduler.used_blocks, len(scheduler.running), len(scheduler.waiting)
        return _Batch(plan, batch, now, host_s, end, used, running, waiting)

    def _take_out(self, batch: _Batch, now: float) -> None:
        """Hand out a batch's tokens."""
        batch.plan.leave()
        tokens = self.engine.deliver(batch.plan, nan, now)
        start = max(batch.start, self._recorded_s)
        self._recorded_s = now
        self._log.stage_open_s += (now - start) * self._stages
        self.engine.record(batch.work, start, now - start, tokens, batch.running, batch.waiting, batch.blocks)
