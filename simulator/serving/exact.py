"""One replica, one simulated event per engine step: the plain form that the fast path is held against."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol

import numpy as np
import simpy

from simulator.serving.clock import PLAN, Phase, by_clock, on_grid
from simulator.serving.drafting import DraftingRule, ReplicaDrafting
from simulator.serving.feed import Feed
from simulator.serving.host_cache import OffloadSpace, exposed_load_s
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog
from simulator.serving.prefix_cache import NoPrefixCache
from simulator.serving.scheduler import Scheduler, StepPlan
from simulator.serving.sequence import Sequence
from simulator.speculation import AcceptanceSampler, Batch
from simulator.timing import DraftStep, EngineTimer, longest_asked

DRAWN_TOGETHER = 64
"""Verify steps whose acceptance is drawn at once under a policy."""


class Handover(Protocol):
    """Where a prefill replica's finished prompts go."""

    samples_first: bool
    """Whether the prefill replica delivers the first token."""

    def prompt_done(self, source: ExactReplica, sequence: Sequence) -> None:
        """The KV of a prompt is complete and waits in ``source``."""

    def blocks_freed(self, replica: ExactReplica) -> None:
        """A decode replica may have room for another."""


class _Failed(Exception):
    """The replica has failed while it waited for something."""


class ExactReplica:
    """An engine that plans, spends and commits one step at a time.

    Args:
        env: simulated time.
        index: number of the replica.
        feed: where its requests come from.
        make_scheduler: the batching rule, with empty caches; asked for another after a failure.
        timer: seconds of a step.
        limits: tokens, sequences, blocks.
        sampler: accepted draft tokens, or None without speculation.
        log: where results go.
        rule: the policy that chooses the draft tokens of each step, or None where their number never changes.
        resumed: requests that start again after a failure, with what they have delivered.
        prefill_only: whether finished prompts go to ``handover`` instead of being decoded here.
        handover: the way from prefill to decode replicas, where they are apart.
        offload: host memory behind the prefix cache, or None.
    """

    def __init__(
        self,
        env: simpy.Environment,
        index: int,
        feed: Feed,
        make_scheduler: Callable[[], Scheduler],
        timer: EngineTimer,
        limits: EngineLimits,
        sampler: AcceptanceSampler | None,
        log: RunLog,
        rule: DraftingRule | None = None,
        resumed: dict[int, Sequence] | None = None,
        prefill_only: bool = False,
        handover: Handover | None = None,
        offload: OffloadSpace | None = None,
    ) -> None:
        self.index = index
        self.scheduler = make_scheduler()
        self._env = env
        self._feed = feed
        self._make_scheduler = make_scheduler
        self._resumed: dict[int, Sequence] = {} if resumed is None else resumed
        self._prefill_only = prefill_only
        self._handover = handover
        self._offload = offload
        self._back: simpy.Event | None = None
        """Happens when the failed replica is back."""
        self._timer = timer
        self._limits = limits
        self._sampler = sampler
        self._log = log
        self._longest = 0 if sampler is not None else longest_asked(timer)
        self._drafting = None if rule is None else ReplicaDrafting(rule, limits, timer.windows)

    def prefix_cache(self) -> NoPrefixCache:
        """The prefix cache as it is now."""
        return self.scheduler.cache

    @property
    def held_blocks(self) -> int:
        """KV blocks that requests hold now."""
        return self.scheduler.used_blocks

    def serve(self) -> Generator[simpy.Event, None, None]:
        """Plan a step, spend its time, hand out its tokens, until no request will ever come."""
        now = 0.0
        while True:
            try:
                yield from self._steps(now)
                return
            except _Failed:
                yield from self._repair()
                now = self._env.now

    def _repair(self) -> Generator[simpy.Event, None, None]:
        """Stand still until the replica is back."""
        back = self._back
        while back is not None and not back.processed:
            try:
                yield back
            except simpy.Interrupt:
                continue

    def fail(self, process: simpy.Process, under_way: Iterable[int]) -> list[Sequence]:
        """Lose everything now and stand still until ``recover``.

        Args:
            process: what runs this replica.
            under_way: requests that were sent here and not yet taken.

        Returns:
            What was in the queues and the caches, and what was under way.
        """
        lost = [*self.scheduler.everything(), *map(self._sequence, under_way)]
        self.scheduler = self._make_scheduler()
        self._back = self._env.event()
        process.interrupt()
        return lost

    def recover(self) -> None:
        """Start again with empty caches."""
        assert self._back is not None
        self._back.succeed()
        self._back = None

    def _steps(self, now: float) -> Generator[simpy.Event, None, None]:
        """Engine steps from ``now`` on."""
        scheduler, swap, seen = self.scheduler, self.scheduler.swap, now
        while True:
            if self._feed.shared:
                yield from self._until(Phase(self._env, PLAN))
            self._collect(seen)
            drafting = self._drafting
            if drafting is not None:
                scheduler.query_len = drafting.query_len
            plan = scheduler.plan() if scheduler.has_work else None
            if plan is None or (not plan and not scheduler.preempted):
                if seen < self._env.now:
                    # No step runs over which this one was decided.
                    now = seen = max(now, self._env.now)
                    continue
                event = self._feed.wait(self._env)
                if event is None:
                    return
                yield from self._until(event)
                now = seen = max(now, self._env.now)
                continue
            for victim in scheduler.preempted:
                self._log.preemptions[victim.index] += 1
            seconds, copies_s, work = 0.0, 0.0, plan.work(scheduler.query_len, self._timer.windows, self._longest)
            draft = None if drafting is None else self._choose(drafting, plan)
            if plan:
                seconds = on_grid(self._timer.seconds(work) if draft is None else self._timer.seconds(work, draft))
            if self._offload is not None:
                copies_s = exposed_load_s(self._offload, scheduler.take_loaded(), seconds)
                seconds += copies_s
            if swap is not None:
                swapping_s = on_grid(swap.seconds(plan.blocks_out, plan.blocks_in))
                seconds += swapping_s
                copies_s += swapping_s
                self._log.swapped_blocks += plan.blocks_out
            blocks, running, waiting = scheduler.used_blocks, len(scheduler.running), len(scheduler.waiting)
            waiting += len(scheduler.swapped)
            seconds = by_clock(now, seconds)
            start, now = now, now + seconds
            seen = start if self._limits.schedules_ahead else now
            yield from self._until(self._env.timeout(max(0.0, now - self._env.now)))
            tokens = self._commit(plan, start, seconds, now)
            self._log.steps.step(self.index, start, seconds, tokens, running, waiting, blocks, work, draft, copies_s)
            self._log.exact_steps += 1
            if self._handover is not None:
                self._handover.blocks_freed(self)
            if drafting is not None and draft is not None:
                drafting.tokens = draft.tokens
                if not drafting.rests(draft.tokens):
                    for sequence in scheduler.in_step(plan):
                        sequence.drafter_tokens = sequence.computed_tokens

    def _until(self, event: simpy.Event) -> Generator[simpy.Event, None, None]:
        """Wait for ``event``; arrivals meanwhile are noticed at the next plan."""
        while not event.processed:
            try:
                yield event
            except simpy.Interrupt:
                if self._back is not None:
                    raise _Failed from None

    def _collect(self, seen: float) -> None:
        """Take in what arrived by ``seen``, when the step to come is decided."""
        log = self._log
        for request in self._feed.take(seen):
            log.replica[request] = self.index
            self.scheduler.add(self._sequence(request))
        self.scheduler.seen_s = seen

    def _sequence(self, request: int) -> Sequence:
        resumed = self._resumed.pop(request, None) if self._resumed else None
        if resumed is not None:
            return resumed
        log, priorities = self._log, self._log.stream.priorities
        priority = 0 if priorities is None else int(priorities[request])
        return Sequence(
            request, log.input_tokens[request], log.output_tokens[request], priority, log.arrival_s[request]
        )

    def _choose(self, drafting: ReplicaDrafting, plan: StepPlan) -> DraftStep[int]:
        """What the drafter does at the end of the planned step; what it skipped before is made up for."""
        batch = self.scheduler.in_step(plan)
        if not batch:
            return drafting.step(drafting.tokens)
        tokens = drafting.policy.choose(Batch(len(batch), sum(s.computed_tokens for s in batch)))
        if drafting.rests(tokens):
            return drafting.step(tokens)
        return drafting.step(tokens, [(s.drafter_tokens, s.computed_tokens) for s in batch])

    def _commit_drafted(
        self, drafting: ReplicaDrafting, plan: StepPlan, start: float, seconds: float, now: float
    ) -> int:
        """Hand out what the decoding sequences accept of the tokens that the policy had drafted; returns how many."""
        log, drafted = self._log, drafting.tokens
        nodes = drafting.query_len - 1
        delivered, accepted = 0, []
        for sequence in plan.decodes:
            taken = 0
            if drafted:
                taken = min(self._drawn(sequence), drafted)
                log.count_drafts(sequence.index, np.array([taken]))
                log.draft_tokens[sequence.index] += nodes
            sequence.verify_steps += 1
            sequence.computed_tokens += taken + 1
            accepted.append(taken)
            delivered += self._deliver(sequence, min(taken + 1, sequence.remaining_tokens), start, seconds, now)
        if accepted:
            drafting.policy.observe(drafted, accepted)
        return delivered

    def _drawn(self, sequence: Sequence) -> int:
        """Draft tokens that a sequence accepts in its present verify step if all that can be drafted are."""
        assert self._sampler is not None
        if self._sampler.drift is not None:
            return int(self._sampler.draws(sequence.index, sequence.verify_steps, 1, sequence.computed_tokens)[0])
        position = sequence.verify_steps - sequence.path_start
        if not 0 <= position < len(sequence.accepted):
            position, sequence.path_start = 0, sequence.verify_steps
            sequence.accepted = self._sampler.draws(sequence.index, sequence.verify_steps, DRAWN_TOGETHER)
        return int(sequence.accepted[position])

    def _commit(self, plan: StepPlan, start: float, seconds: float, now: float) -> int:
        """Hand out the step's tokens; returns how many."""
        log = self._log
        delivered = 0
        for sequence, tokens in plan.chunks:
            if log.scheduled_s[sequence.index] != log.scheduled_s[sequence.index]:
                log.scheduled_s[sequence.index] = start
                log.prompt_replica[sequence.index] = self.index
                log.cached_tokens[sequence.index] = sequence.cached_tokens or 0
                log.host_hit_tokens += sequence.host_tokens
            sequence.computed_tokens += tokens
            if sequence.computed_tokens < sequence.known_tokens:
                continue
            if self._prefill_only:
                delivered += self._hand_over(sequence, start, seconds, now)
                continue
            sequence.decoding = True
            delivered += self._deliver(sequence, 1, start, seconds, now)
            if self._sampler is not None and self._drafting is None and sequence.remaining_tokens:
                sequence.path_start = sequence.verify_steps
                sequence.accepted = self._sampler.path(
                    sequence.index,
                    sequence.remaining_tokens,
                    sequence.verify_steps,
                    context=sequence.computed_tokens,
                )
        if self._drafting is not None:
            return delivered + self._commit_drafted(self._drafting, plan, start, seconds, now)
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

    def _hand_over(self, sequence: Sequence, start: float, seconds: float, now: float) -> int:
        """A prompt is done: deliver its first token if that is done here, and send the KV on; returns tokens."""
        assert self._handover is not None
        tokens = self._deliver(sequence, 1, start, seconds, now) if self._handover.samples_first else 0
        if sequence.remaining_tokens:
            self.scheduler.hold(sequence)
            self._handover.prompt_done(self, sequence)
        return tokens

    def _deliver(self, sequence: Sequence, tokens: int, start: float, seconds: float, now: float) -> int:
        log = self._log
        if sequence.last_token_s is None:
            log.first_token_s[sequence.index] = now
        else:
            log.gaps_s.append(seconds if sequence.last_token_s == start else now - sequence.last_token_s)
        sequence.last_token_s = now
        sequence.generated_tokens += tokens
        if not sequence.remaining_tokens:
            self.scheduler.release(sequence)
            log.finish(sequence.index, now)
            self._feed.finished(sequence.index, now)
        return tokens
