"""A fleet that accepts requests while its simulated time advances. Replicas, router and engine are the same as in any
run; only the clock differs. This module reads no clock: ``Pace`` (``simulator.serve.pace``) does.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from forerun.arrays import IntArray
from simulator.running.build import Build
from simulator.running.refusals import refuse_open_ended
from simulator.serving import RunLog
from simulator.serving.compiled import engine_module
from simulator.serving.fleet.fleet import FleetRun
from simulator.serving.log import COUNTED, StepLog
from simulator.serving.timeline import Timeline
from simulator.workload import RequestStream
from traces import PrefixHashes

if TYPE_CHECKING:
    from simulator.serving.engine import HolderIndex

SLOTS = 1 << 16
"""Maximum number of simultaneous requests. Slots are reused in order, and acceptance draws depend on the slot number,
so draws repeat after this many requests."""

MOST_REHEARSED = 4096
"""Maximum events per warm-up round; without a limit, a fleet whose replicas all fail would never end a round."""


class Delivery(NamedTuple):
    """Tokens of a request that leave the engine at one moment."""

    slot: int
    tokens: int
    at_s: float
    """Simulated time of the delivery."""
    ended: bool
    refusal: str | None = None
    """Reason for which the router refused the request; None if it did not."""


class Change(NamedTuple):
    """A hash block that a replica has stored or removed, or the loss of its whole cache."""

    kind: Literal["stored", "removed", "cleared"]
    replica: int
    block: int = -1


def _watched_index(hashes: PrefixHashes, changes: list[Change]) -> HolderIndex:
    """Index of the blocks that replicas hold, which records each change."""
    base = engine_module().HolderIndex

    class Watched(base):  # type: ignore[misc, valid-type]
        clearing = False

        def add(self, hash_block: int, replica: int) -> None:
            base.add(self, hash_block, replica)
            changes.append(Change("stored", replica, hash_block))

        def drop(self, hash_block: int, replica: int) -> None:
            base.drop(self, hash_block, replica)
            if not self.clearing:
                changes.append(Change("removed", replica, hash_block))

        def drop_all(self, replica: int) -> None:
            self.clearing = True
            base.drop_all(self, replica)
            self.clearing = False
            changes.append(Change("cleared", replica))

    index: HolderIndex = Watched(hashes)
    return index


class _Environment(Timeline):
    """Simulated time in which a request may arrive at any moment. No replica simulates more than one step ahead."""

    def peek(self) -> float:
        """Time of the next event, at most the next representable instant."""
        return min(self.next_s, float(np.nextafter(self.now, inf)))

    @property
    def next_s(self) -> float:
        """Time of the next known event."""
        return super().peek()


class _Hashes(PrefixHashes):
    """Prefix hashes of the running requests, by slot."""

    slots: dict[int, IntArray]

    def __init__(self, block_tokens: int) -> None:
        super().__init__(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), block_tokens)
        slots: dict[int, IntArray] = {}
        object.__setattr__(self, "slots", slots)

    def of(self, row: int) -> IntArray:
        return self.slots[row]


class _Log(RunLog):
    """Run log with reusable slots and a list of refused requests."""

    endless = True

    def __init__(self, stream: RequestStream, steps: StepLog, positions: int) -> None:
        super().__init__(stream, steps, positions)
        self.refused: list[tuple[int, str]] = []

    def refuse(self, request: int, reason: str) -> None:
        self.refused.append((request, reason))

    def clear(self, slot: int) -> None:
        """Reset a slot for reuse."""
        for name in COUNTED:
            getattr(self, name)[slot] = 0
        self.restarts[slot] = 0
        self.scheduled_s[slot] = self.first_token_s[slot] = self.finished_s[slot] = nan

    def drop_gaps(self) -> None:
        """Delete recorded gaps between tokens, which a live fleet does not use."""
        for output in self.outputs.values():
            output.gaps.forget()


def _groups(scheduler: Any) -> Sequence[Any]:
    """Schedulers of a replica's attention groups; usually one."""
    groups: Sequence[Any] = getattr(scheduler, "groups", (scheduler,))
    return groups


def running_requests(scheduler: Any) -> int:
    return sum(len(group.running) for group in _groups(scheduler))


@dataclass
class Totals:
    """Sums over ended requests; values of running requests are in the log."""

    preemptions: int = 0
    draft_tokens: int = 0
    cache_queries: int = 0
    cache_hits: int = 0


class LiveFleet:
    """Fleet of a scenario that accepts requests while its simulated time advances."""

    def __init__(self, build: Build, slots: int = SLOTS, watch: bool = False) -> None:
        refuse_open_ended(build.pools)
        self.build = build
        self.changes: list[Change] = []
        """Blocks stored and removed since they were last published, if the fleet is watched."""
        prompts, answers = np.ones((2, slots), dtype=np.int64)  # the log writes to each of them
        self._hashes = _Hashes(build.main.limits.block_size)
        stream = RequestStream(np.zeros(slots), prompts, answers, None, prefix_hashes=self._hashes, answers_hashed=True)
        main = build.fleet.pools[0]
        steps = StepLog(len(main.timer.windows), sys.maxsize, main.rule is not None, StepLog.forget)
        positions = main.sampler.num_speculative_tokens if main.sampler is not None else 0
        self.log = _Log(stream, steps, positions)
        if watch:
            self.log.holders = _watched_index(self._hashes, self.changes)
        self._env = _Environment()
        self._run = FleetRun(build.fleet, self.log, [], self._env)
        self._out: list[Delivery] = []
        for group in self._run.steps:
            group.watch = self._watched
        for replica in self._run.replicas:
            replica.engine.counting = False  # each sequence is looked at after each step
        self._free = deque(range(slots))
        self.totals = Totals()

    @property
    def now(self) -> float:
        return float(self._env.now)

    @property
    def next_s(self) -> float:
        """Simulated time of the next known event; inf if there is none."""
        return self._env.next_s

    @property
    def schedulers(self) -> list[Any]:
        """Current scheduler of each replica, with its queue, batch and KV blocks."""
        return [replica.scheduler for replica in self._run.replicas]

    @property
    def queued(self) -> int:
        """Number of requests that wait at the router, at a replica or in an API server."""
        return self.under_way - sum(map(running_requests, self.schedulers))

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def under_way(self) -> int:
        """Number of requests that have not ended."""
        return len(self._hashes.slots)

    def submit(
        self, input_tokens: int, output_tokens: int, hashes: Sequence[int] = (), at_s: float = 0.0
    ) -> int | None:
        """Submit a request; returns its slot, or None if no slot is free.

        Args:
            input_tokens, output_tokens: lengths of prompt and answer; check the fleet's ``refusal`` first.
            hashes: prefix hashes of the whole blocks of prompt and answer.
            at_s: simulated time of arrival; a time in the past counts as now.
        """
        if not self._free:
            return None
        self._step_to(at_s)
        if at_s > self.now:
            self._env.run(until=at_s)
        log, slot = self.log, self._free.popleft()
        log.clear(slot)
        log.input_tokens[slot], log.output_tokens[slot] = input_tokens, output_tokens
        log.arrival_s[slot] = self.now
        self._hashes.slots[slot] = np.asarray(hashes, dtype=np.int64)
        self._run.router.announce(slot)
        return slot

    def advance(self, to_s: float) -> list[Delivery]:
        """Advance simulated time up to at most ``to_s``; returns the deliveries in chronological order."""
        self._step_to(to_s)
        deliveries, self._out[:] = self._out[:], []
        deliveries += [Delivery(slot, 0, self.now, True, reason) for slot, reason in self.log.refused]
        self.log.refused.clear()
        for delivery in deliveries:
            if delivery.ended:
                self._settle(delivery.slot)
        self.log.ended[0] = 0  # the router would take as many as there are slots for all there will ever be
        self.log.drop_gaps()
        return deliveries

    def cancel(self, slot: int) -> None:
        """Cancel a request: it leaves the queue, or ends with its next token."""
        log = self.log
        for replica, source in zip(self._run.replicas, self._run.sources, strict=True):
            matches = (
                (scheduler_group, one)
                for scheduler_group in _groups(replica.scheduler)
                for one in scheduler_group.everything()
                if one.index == slot
            )
            for scheduler, sequence in matches:
                if sequence in scheduler.waiting and not sequence.generated_tokens and not sequence.blocks:
                    scheduler.waiting.remove(sequence)
                    self._out.append(Delivery(slot, 0, self.now, True))
                    source.finished(slot, self.now)
                    return
                log.output_tokens[slot] = sequence.output_tokens = min(
                    sequence.output_tokens, sequence.generated_tokens + 1
                )
                return
        log.output_tokens[slot] = 1

    def _watched(self, engine: Any) -> None:
        """Commit the step that an engine has planned, and record a delivery for each request that got tokens."""
        batches = (scheduler.running for scheduler in _groups(engine.scheduler))
        before = [(sequence, sequence.generated_tokens) for batch in batches for sequence in batch]
        engine.commit()
        for sequence, had in before:
            if sequence.generated_tokens != had:
                ended = sequence.generated_tokens >= sequence.output_tokens
                at_s = max(engine.end, engine.client_s)
                delivery = Delivery(sequence.index, sequence.generated_tokens - had, at_s, ended)
                if at_s > engine.end:
                    self._env.call(self._out.append, delivery, at_s - engine.end)
                else:
                    self._out.append(delivery)

    def _step_to(self, to_s: float) -> None:
        env = self._env
        while env.next_s <= to_s:
            env.step()

    def _settle(self, slot: int) -> None:
        """Account for a finished request and free its slot."""
        log, totals = self.log, self.totals
        totals.preemptions += log.preemptions[slot]
        totals.draft_tokens += log.draft_tokens[slot]
        if log.scheduled_s[slot] == log.scheduled_s[slot]:
            totals.cache_queries += log.input_tokens[slot]
            totals.cache_hits += log.cached_tokens[slot]
        log.preemptions[slot] = log.draft_tokens[slot] = 0
        del self._hashes.slots[slot]
        self._free.append(slot)


def rehearse(build: Build) -> None:
    """Serve artificial requests, so that price tables exist before clients connect. Building tables on demand would
    stall streams for up to a tenth of a second each time.
    """
    limits = build.main.limits
    fleet = LiveFleet(build, slots=limits.max_num_seqs + 1)
    capacity_tokens = (limits.num_blocks - limits.watermark_blocks) * limits.block_size
    longest = min(limits.max_num_batched_tokens, limits.max_model_len or capacity_tokens, capacity_tokens) - 2
    prompts = [longest >> power for power in range(longest.bit_length()) if longest >> power]
    batch = [(1, 1 + row % 256) for row in range(1, limits.max_num_seqs)]
    for requests in (*([(prompt, 2)] for prompt in prompts), batch):
        for prompt, answer in requests:
            if build.fleet.refusal(prompt, answer) is None:
                fleet.submit(prompt, answer, at_s=fleet.now)
        for _ in range(MOST_REHEARSED):
            if not fleet.under_way or fleet.next_s == inf:
                break
            fleet.advance(fleet.next_s)
