"""One replica advanced from one structural event to the next; results equal the step-by-step path.

Every decoding request adds its future, step by step, to running totals (keys read, blocks held, tokens delivered) when
it starts to decode, so a step costs a look-up however many requests are in the batch, and steps between two
structural events (an admission, a completion, a block shortage) are priced together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from math import inf
from typing import Any

import numpy as np
import simpy

from simulator.serving.clock import PLAN, Phase, by_clock, on_grid
from simulator.serving.decoding import DecodingBatch
from simulator.serving.drafting import DraftingRule
from simulator.serving.feed import Feed
from simulator.serving.future import LiveRequest
from simulator.serving.host_cache import OffloadSpace, exposed_load_s
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog
from simulator.serving.planned import Planned, Span, step_work
from simulator.serving.prefix_cache import NoPrefixCache, PrefixCache
from simulator.speculation import AcceptanceSampler
from simulator.timing import EngineTimer, longest_asked

SHORT_SPAN = 12
"""Pure decode runs of at most so many steps are priced one by one: vectors cost more than they save."""


class FastReplica:
    """An engine under vLLM V1's unified scheduler, advanced span by span.

    Arguments as ``ExactReplica``; ``limits`` must let every running request into each step
    (``max_num_seqs * query_len <= max_num_batched_tokens``).
    """

    def __init__(
        self,
        env: simpy.Environment,
        index: int,
        feed: Feed,
        timer: EngineTimer,
        limits: EngineLimits,
        sampler: AcceptanceSampler | None,
        cache: NoPrefixCache,
        log: RunLog,
        rule: DraftingRule | None = None,
        offload: OffloadSpace | None = None,
    ) -> None:
        self._env = env
        self._index = index
        self._feed = feed
        self._shared = feed.shared
        """Whether simulated time must pass step by step for others to see; alone, only idle time is waited for."""
        self._timer = timer
        self._limits = limits
        self._sampler = sampler
        self._cache = cache
        self._caching = isinstance(cache, PrefixCache)
        self._log = log
        self._offload = offload
        self._windows = timer.windows
        self._batch = DecodingBatch(limits, timer.windows, log, sampler, rule, longest_asked(timer))
        self._future = self._batch.future
        self._block_row = self._batch.block_row
        self._ending = self._batch.ending
        self._waiting: deque[LiveRequest] = deque()
        self._running: dict[int, LiveRequest] = {}
        self._partial: LiveRequest | None = None
        self._step = 0
        self._planned = Planned()
        self._last_start = 0.0
        """When the last step that was run began."""
        self._in_step = False
        """Whether a planned step or span is on its way."""

    def prefix_cache(self) -> NoPrefixCache:
        """The prefix cache as it is now; asked for by a router while steps run."""
        if self._in_step:
            held, span = self._planned.held, self._planned.span
            if span is not None:
                held = int(span.blocks[int(np.searchsorted(span.ends, self._env.now))])
            self._evict_idle(held)
        return self._cache

    @property
    def held_blocks(self) -> int:
        """KV blocks that requests hold now."""
        return self._future.at(self._step)[self._block_row] + self._partial_blocks - self._cache.shared_blocks

    def serve(self) -> Generator[simpy.Event, None, None]:
        """Advance from structural event to structural event until no request will ever come."""
        now = seen = 0.0
        while True:
            if self._shared:
                yield from self._wait(Phase(self._env, PLAN))
            self._collect(seen)
            if not self._running and not self._waiting:
                event = self._feed.wait(self._env)
                if event is None:
                    return
                yield from self._wait(event)
                now = seen = max(now, self._env.now)
                continue
            self._plan(now)
            if self._shared:
                self._in_step = True
                yield from self._spend()
                self._in_step = False
            now = self._commit()
            seen = self._last_start if self._limits.schedules_ahead else now
            if self._step >= self._future.full_at:
                self._future.forget_before(self._step)

    def _collect(self, seen: float) -> None:
        """Take in what arrived by ``seen``, when the step to come is decided."""
        log = self._log
        for request in self._feed.take(seen):
            log.replica[request] = self._index
            self._waiting.append(LiveRequest(request, 0, 0, None, log.input_tokens[request], []))

    def _plan(self, now: float) -> None:
        """Decide on one step at ``now``, or on that and the equal steps that follow, and price it."""
        limits, planned, batch = self._limits, self._planned, self._batch
        totals, preempted = self._future.at(self._step), False
        if totals[self._block_row] + self._partial_blocks - self._cache.shared_blocks > limits.num_blocks:
            totals, preempted = self._make_room(now), True
        held = totals[self._block_row]
        budget = limits.max_num_batched_tokens - batch.size * batch.query_len
        chunks: list[tuple[LiveRequest, int]] = []
        partial = self._partial
        if partial is not None:
            chunk = min(partial.target - partial.computed, budget)
            needed = limits.blocks(partial.computed + chunk)
            if held + needed - self._cache.shared_blocks > limits.num_blocks:
                self._preempt_partial()
                preempted = True
            else:
                held += needed
                budget -= chunk
                if chunk:
                    self._cache.add(partial.index, partial.units, partial.computed + chunk)
                    chunks.append((partial, chunk))
        if not preempted and self._waiting:
            held = self._admit(chunks, budget, held)
        planned.chunks, planned.start = chunks, now
        planned.held = held - self._cache.shared_blocks
        planned.delivered = batch.size if self._sampler is None else totals[-1]
        keys = tuple(totals[: self._block_row])
        planned.work = step_work(chunks, self._windows, batch.size, batch.query_len, keys)
        if batch.longest is not None:
            longest_kv, beyond_kv = batch.longest.at(self._step, self._running)
            planned.work = planned.work._replace(longest_kv=longest_kv, beyond_kv=beyond_kv)
        draft = None if batch.adaptive is None else batch.propose(self._running, chunks, self._step)
        planned.draft = draft
        if draft is None:
            planned.seconds = on_grid(self._timer.seconds(planned.work))
        else:
            planned.seconds = on_grid(self._timer.seconds(planned.work, draft))
        planned.copies_s = 0.0
        if chunks and self._offload is not None:
            planned.copies_s = exposed_load_s(self._offload, self._cache.take_loaded(), planned.seconds)
            planned.seconds += planned.copies_s
        planned.seconds = by_clock(now, planned.seconds)
        planned.end = now + planned.seconds
        planned.span = None
        if not chunks and not preempted and (draft is None or not draft.switched):
            self._plan_span(planned)

    def _plan_span(self, planned: Planned) -> None:
        """Extend a pure decode step to the steps after it, if nothing structural comes too soon."""
        first, now = self._step, planned.start
        stop = self._batch.next_end(first) + 1
        admits = not self._waiting and len(self._running) < self._limits.max_num_seqs
        arrival = self._feed.next_s() if admits else inf
        if arrival < inf:
            stop = min(stop, first + int((arrival - now) / max(planned.seconds, 1e-9)) + 2)
        if stop - first <= SHORT_SPAN:
            return
        blocks = self._future.range(self._block_row, first, stop)
        beside = self._partial_blocks - self._cache.shared_blocks
        room = self._limits.num_blocks - beside
        if self._waiting:
            # Evicting what the first in the queue would reuse can make it small enough to be admitted.
            room -= self._cache.idle_blocks
        if int(blocks[-1]) > room:
            stop = first + max(1, int(np.searchsorted(blocks, room, side="right")))
        keys = tuple(self._future.range(w, first, stop) for w in range(len(self._windows)))
        work, draft = planned.work._replace(decode_kv_tokens=keys), planned.draft
        if self._batch.longest is not None:
            work = work._replace(longest_kv=work.longest_kv + np.arange(stop - first))
        seconds = on_grid(self._timer.seconds(work) if draft is None else self._timer.seconds(work, draft))
        seconds = by_clock(now, seconds)
        ends = np.cumsum(np.concatenate(((now,), seconds)))[1:]
        if arrival < inf:
            ends = ends[: int(np.searchsorted(ends, arrival)) + 1]
        planned.span = Span(ends, seconds, keys, blocks + beside, admits)
        planned.end = float(ends[-1])

    def _spend(self) -> Generator[simpy.Event, Any, None]:
        """Let the planned time pass; an arrival that could be admitted cuts a span at the step in progress."""
        planned, span = self._planned, self._planned.span
        event = self._env.timeout(max(0.0, planned.end - self._env.now))
        while not event.processed:
            try:
                yield event
            except simpy.Interrupt:
                if span is None or not span.admits:
                    continue
                span.ends = span.ends[: int(np.searchsorted(span.ends, self._env.now)) + 1]
                span.admits = False
                planned.end = float(span.ends[-1])
                event = self._env.timeout(max(0.0, planned.end - self._env.now))

    def _commit(self) -> float:
        """Hand out the tokens of what was planned; returns the time after it."""
        planned = self._planned
        if planned.span is not None:
            self._commit_span(planned, planned.span)
            return planned.end
        log, chunks, end = self._log, planned.chunks, planned.end
        self._last_start = planned.start
        running, waiting = len(self._running), len(self._waiting)
        delivered = planned.delivered
        step = self._step
        self._step = step + 1
        if self._caching:
            self._evict_idle(planned.held)
        if planned.draft is not None and planned.draft.switched:
            self._batch.switch(planned.draft.tokens, self._running.values(), self._step, end)
        if chunks:
            self._partial = None
            for live, tokens in chunks:
                if log.scheduled_s[live.index] != log.scheduled_s[live.index]:
                    log.scheduled_s[live.index] = planned.start
                    log.cached_tokens[live.index] = live.cached or 0
                    log.host_hit_tokens += live.host_tokens
                live.computed += tokens
                if live.computed < live.target:
                    self._partial = live
                else:
                    delivered += 1
                    self._first_token(live, end)
        if step in self._ending:
            self._complete(step, end)
        log.steps.step(
            self._index,
            planned.start,
            planned.seconds,
            delivered,
            running,
            waiting,
            planned.held,
            planned.work,
            planned.draft,
            planned.copies_s,
        )
        return end

    def _commit_span(self, planned: Planned, span: Span) -> None:
        first, count = self._step, len(span.ends)
        self._step = first + count
        starts = np.concatenate(((planned.start,), span.ends[:-1]))
        seen = starts
        if self._limits.schedules_ahead:
            seen = np.concatenate(((self._last_start,), starts[:-1]))
        self._last_start = float(starts[-1])
        delivered: Any = self._batch.size
        if self._sampler is not None:
            delivered = self._future.range(self._batch.token_row, first, self._step)
        self._log.steps.span(
            self._index,
            starts,
            span.seconds[:count],
            delivered,
            len(self._running),
            len(self._waiting) + self._feed.pending(seen),
            span.blocks[:count],
            self._batch.size,
            planned.work.query_len,
            tuple(keys[:count] for keys in span.keys),
            planned.draft,
            planned.work.longest_kv,
            planned.work.beyond_kv,
        )
        self._evict_idle(int(span.blocks[count - 1]))
        self._complete(self._step - 1, planned.end)

    def _make_room(self, now: float) -> list[int]:
        """Preempt from the end of the batch until this step's blocks fit; returns the totals of those who stay."""
        while True:
            if self._partial is not None:
                self._preempt_partial()
            else:
                self._preempt_decoding(now)
            totals = self._future.at(self._step)
            if totals[self._block_row] + self._partial_blocks - self._cache.shared_blocks <= self._limits.num_blocks:
                return totals

    def _preempt_partial(self) -> None:
        victim = self._partial
        assert victim is not None
        self._partial = None
        victim.computed = 0
        victim.drafter_tokens = -1
        self._evict_idle(self._limits.num_blocks)
        self._cache.release(victim.units)
        del self._running[victim.index]
        self._waiting.appendleft(victim)
        self._log.preemptions[victim.index] += 1

    def _preempt_decoding(self, now: float) -> None:
        """Throw out the latest decoding request: take its remaining future off the totals."""
        index, victim = self._running.popitem()
        done, delivered = self._batch.withdraw(victim, self._step)
        self._evict_idle(self._limits.num_blocks)
        self._cache.release(victim.units)
        generated = victim.generated + delivered
        target = self._log.input_tokens[index] + generated
        last = now if done else victim.last_token_s
        self._waiting.appendleft(LiveRequest(index, generated, victim.verify_steps + done, last, target, []))
        self._log.preemptions[index] += 1

    def _admit(self, chunks: list[tuple[LiveRequest, int]], budget: int, held: int) -> int:
        """Move requests from the queue into the batch while tokens, places and blocks last; returns the blocks held."""
        limits = self._limits
        waiting, running, cache = self._waiting, self._running, self._cache
        usable = limits.num_blocks - limits.watermark_blocks
        units: list[int] = []
        cached = in_use = 0
        while waiting and budget > 0 and len(running) < limits.max_num_seqs:
            live = waiting[0]
            if self._caching:
                cache.shrink(limits.num_blocks - held + cache.shared_blocks)
                units, cached, in_use = cache.match(live.index, live.target)
            tokens = live.target - cached
            if tokens > budget:
                if not limits.chunked_prefill:
                    break
                tokens = budget
            blocks = limits.blocks(cached + tokens)
            if held + blocks - in_use - cache.shared_blocks > usable:
                break
            waiting.popleft()
            running[live.index] = live
            if self._caching:
                cache.hold(units)
                live.units = units
                live.computed = cached
                if live.cached is None:
                    live.cached = cached
                    live.host_tokens = cache.host_tokens
                cache.add(live.index, units, cached + tokens)
            chunks.append((live, tokens))
            held += blocks
            budget -= tokens
        return held

    def _evict_idle(self, held: int) -> None:
        """Evict cached blocks that no request uses for the ``held`` blocks that requests do use."""
        self._cache.shrink(self._limits.num_blocks - held)

    def _first_token(self, live: LiveRequest, now: float) -> None:
        """The prompt is in the cache: deliver a token, and enter the decoding batch unless it was the last."""
        log = self._log
        if live.last_token_s is None:
            log.first_token_s[live.index] = now
        else:
            log.gaps_s.append(now - live.last_token_s)
        live.last_token_s = now
        live.generated += 1
        if live.generated == log.output_tokens[live.index]:
            self._leave(live, now)
        else:
            self._batch.add(live, self._step)

    @property
    def _partial_blocks(self) -> int:
        """Blocks of the prompt that is half in the cache."""
        return 0 if self._partial is None else self._limits.blocks(self._partial.computed)

    def _complete(self, step: int, now: float) -> None:
        """Requests whose last decode step was ``step`` leave."""
        for live in self._ending.pop(step, ()):
            self._batch.end(live)
            self._leave(live, now)

    def _leave(self, live: LiveRequest, now: float) -> None:
        """A request has all of its answer."""
        del self._running[live.index]
        self._cache.finish(live.index, live.units)
        self._log.finish(live.index, now)
        self._feed.finished(live.index, now)

    def _wait(self, event: simpy.Event) -> Generator[simpy.Event, Any, None]:
        """Wait for ``event``; arrivals meanwhile are noticed at the next plan."""
        while not event.processed:
            try:
                yield event
            except simpy.Interrupt:
                continue
