"""One replica, one simulated event per engine step: the plain form that the fast path is held against."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from simulator.serving.clock import PLAN, Phase, on_grid
from simulator.serving.feed import Feed
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog
from simulator.serving.scheduler import Scheduler, StepPlan
from simulator.serving.sequence import Sequence
from simulator.speculation import AcceptanceSampler
from simulator.timing import EngineTimer


class ExactReplica:
    """An engine that plans, spends and commits one step at a time.

    Args:
        env: simulated time.
        index: number of the replica.
        feed: where its requests come from.
        scheduler: the batching rule.
        timer: seconds of a step.
        limits: tokens, sequences, blocks.
        sampler: accepted draft tokens, or None without speculation.
        log: where results go.
    """

    def __init__(
        self,
        env: simpy.Environment,
        index: int,
        feed: Feed,
        scheduler: Scheduler,
        timer: EngineTimer,
        limits: EngineLimits,
        sampler: AcceptanceSampler | None,
        log: RunLog,
    ) -> None:
        self._env = env
        self._index = index
        self._feed = feed
        self._scheduler = scheduler
        self._timer = timer
        self._limits = limits
        self._sampler = sampler
        self._log = log

    def serve(self) -> Generator[simpy.Event, None, None]:
        """Plan a step, spend its time, hand out its tokens, until no request will ever come."""
        scheduler = self._scheduler
        now = seen = 0.0
        while True:
            if self._feed.shared:
                yield from self._until(Phase(self._env, PLAN))
            self._collect(seen)
            if not scheduler.has_work:
                event = self._feed.wait(self._env)
                if event is None:
                    return
                yield from self._until(event)
                now = seen = max(now, self._env.now)
                continue
            plan = scheduler.plan()
            for victim in scheduler.preempted:
                self._log.preemptions[victim.index] += 1
            seconds, work = 0.0, plan.work(self._limits.query_len, self._timer.windows)
            if plan:
                seconds = on_grid(self._timer.seconds(work))
            blocks, running, waiting = scheduler.used_blocks, len(scheduler.running), len(scheduler.waiting)
            start, now = now, now + seconds
            seen = start if self._limits.schedules_ahead else now
            yield from self._until(self._env.timeout(max(0.0, now - self._env.now)))
            tokens = self._commit(plan, start, seconds, now)
            self._log.steps.step(self._index, start, seconds, tokens, running, waiting, blocks, work)
            self._log.exact_steps += 1

    def _until(self, event: simpy.Event) -> Generator[simpy.Event, None, None]:
        """Wait for ``event``; arrivals meanwhile are noticed at the next plan."""
        while not event.processed:
            try:
                yield event
            except simpy.Interrupt:
                continue

    def _collect(self, seen: float) -> None:
        """Take in what arrived by ``seen``, when the step to come is decided."""
        log = self._log
        for request in self._feed.take(seen):
            log.replica[request] = self._index
            self._scheduler.add(Sequence(request, log.input_tokens[request], log.output_tokens[request]))

    def _commit(self, plan: StepPlan, start: float, seconds: float, now: float) -> int:
        """Hand out the step's tokens; returns how many."""
        log = self._log
        delivered = 0
        for sequence, tokens in plan.chunks:
            if log.scheduled_s[sequence.index] != log.scheduled_s[sequence.index]:
                log.scheduled_s[sequence.index] = start
                log.cached_tokens[sequence.index] = sequence.cached_tokens or 0
            sequence.computed_tokens += tokens
            if sequence.computed_tokens < sequence.known_tokens:
                continue
            sequence.decoding = True
            delivered += self._deliver(sequence, 1, start, seconds, now)
            if self._sampler is not None and sequence.remaining_tokens:
                sequence.path_start = sequence.verify_steps
                sequence.accepted = self._sampler.path(sequence.index, sequence.remaining_tokens, sequence.verify_steps)
        for sequence in plan.decodes:
            tokens = 1
            if self._sampler is not None:
                position = sequence.verify_steps - sequence.path_start
                log.count_drafts(sequence.index, sequence.accepted[position : position + 1])
                tokens += int(sequence.accepted[position])
                sequence.verify_steps += 1
            sequence.computed_tokens += tokens
            delivered += self._deliver(sequence, min(tokens, sequence.remaining_tokens), start, seconds, now)
        return delivered

    def _deliver(self, sequence: Sequence, tokens: int, start: float, seconds: float, now: float) -> int:
        log = self._log
        if sequence.last_token_s is None:
            log.first_token_s[sequence.index] = now
        else:
            log.gaps_s.append(seconds if sequence.last_token_s == start else now - sequence.last_token_s)
        sequence.last_token_s = now
        sequence.generated_tokens += tokens
        if not sequence.remaining_tokens:
            self._scheduler.release(sequence)
            log.finish(sequence.index, now)
            self._feed.finished(now)
        return tokens
