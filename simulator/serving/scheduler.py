"""Which requests an engine step works on: one class per batching rule, one request object at a time.

These are the rules in their plain form; the fast path must reproduce ``UnifiedScheduler``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field

from simulator.serving.limits import EngineLimits
from simulator.serving.prefix_cache import NoPrefixCache
from simulator.serving.sequence import Sequence
from simulator.timing import StepWork, causal_pairs, keys_read


@dataclass(slots=True)
class StepPlan:
    """What one engine step does."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    """Sequences in prefill and their tokens in this step."""
    decodes: list[Sequence] = field(default_factory=list)
    padding: list[Sequence] = field(default_factory=list)
    """Finished sequences that a static batch still computes."""

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)

    def work(self, query_len: int, windows: tuple[int | None, ...]) -> StepWork[int]:
        """The plan in the aggregates that timing needs; call before the step's tokens are committed."""
        sampled = [(s, n) for s, n in self.chunks if s.computed_tokens + n == s.known_tokens]
        batch = [*self.decodes, *self.padding]
        return StepWork(
            prefill_seqs=len(self.chunks),
            prefill_tokens=sum(n for _, n in self.chunks),
            prefill_pairs=tuple(sum(causal_pairs(n, s.computed_tokens, w) for s, n in self.chunks) for w in windows),
            prefill_kv_tokens=tuple(
                sum(keys_read(s.computed_tokens + n, n, w) for s, n in self.chunks) for w in windows
            ),
            sampled_prefills=len(sampled),
            sampled_kv_tokens=tuple(sum(keys_read(s.known_tokens + 1, 1, w) for s, _ in sampled) for w in windows),
            decode_seqs=len(batch),
            query_len=query_len,
            decode_kv_tokens=tuple(
                sum(keys_read(s.computed_tokens + query_len, query_len, w) for s in batch) for w in windows
            ),
        )


class Scheduler(ABC):
    """Waiting queue, batch and block pool of one replica."""

    def __init__(self, limits: EngineLimits, cache: NoPrefixCache) -> None:
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._cache = cache
        self._held_blocks = 0
        """Blocks of all running sequences; a block that several share is counted by each."""
        self.preempted: list[Sequence] = []
        """Sequences thrown out by the latest plan."""
        self.query_len = limits.query_len
        """Tokens of a decoding sequence in the next step; a policy changes it from step to step."""

    def add(self, sequence: Sequence) -> None:
        """A request joins the queue."""
        self.waiting.append(sequence)

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold, shared ones counted once."""
        return self._held_blocks - self._cache.shared_blocks

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.waiting or self.running)

    def plan(self) -> StepPlan:
        """The next step, its blocks allocated; what is cached and unused makes room for them."""
        self.preempted = []
        plan = self._plan()
        self._evict_idle()
        return plan

    @abstractmethod
    def _plan(self) -> StepPlan:
        """What the batching rule puts in the next step. Empty only when there is nothing to do."""

    def in_step(self, plan: StepPlan) -> list[Sequence]:
        """The batch by whose size a policy chooses: what is running, though a step may leave some of it out."""
        return self.running

    def release(self, sequence: Sequence) -> None:
        """A finished sequence leaves the batch and gives its blocks back."""
        self.running.remove(sequence)
        self._free(sequence)

    def _grow(self, sequence: Sequence, blocks: int) -> bool:
        """Give ``sequence`` ``blocks`` blocks in all, if there are enough."""
        needed = max(0, blocks - sequence.blocks)
        if self.used_blocks + needed > self.limits.num_blocks:
            return False
        self._held_blocks += needed
        sequence.blocks += needed
        return True

    def _free(self, sequence: Sequence) -> None:
        self._cache.release(sequence.units)
        sequence.units = []
        self._held_blocks -= sequence.blocks
        sequence.blocks = 0

    def _evict_idle(self) -> None:
        """Evict cached blocks that no sequence uses for those that sequences do use."""
        self._cache.shrink(self.limits.num_blocks - self.used_blocks)

    def _preempt_last(self) -> Sequence:
        """Throw the latest sequence out of the batch; its cache is recomputed when it comes back first in the queue."""
        victim = self.running.pop()
        self._cache.shrink(0)
        self._free(victim)
        victim.computed_tokens = 0
        victim.decoding = False
        self.waiting.appendleft(victim)
        self.preempted.append(victim)
        return victim

    def _allocate_decode(self, sequence: Sequence) -> bool:
        """Blocks for a decode step, preempting from the end of the batch; False when the sequence itself had to go."""
        return self._allocate(sequence, self.limits.decode_blocks(sequence.computed_tokens))

    def _allocate(self, sequence: Sequence, blocks: int) -> bool:
        while not self._grow(sequence, blocks):
            if self._preempt_last() is sequence:
                return False
        return True

    def _admit(self, plan: StepPlan, budget: int, *, whole_prompts: bool) -> None:
        """Move requests from the queue into the batch, in order, while tokens, places and blocks last."""
        limits = self.limits
        while self.waiting and budget > 0 and len(self.running) < limits.max_num_seqs:
            sequence = self.waiting[0]
            self._evict_idle()
            units, cached, in_use = self._cache.match(sequence.index, sequence.known_tokens)
            tokens = sequence.known_tokens - cached
            if whole_prompts and tokens > budget:
                break
            chunk = min(tokens, budget)
            blocks = limits.blocks(cached + chunk)
            if self.used_blocks + blocks - in_use > limits.num_blocks - limits.watermark_blocks:
                break
            self.waiting.popleft()
            self._start(sequence, units, cached, blocks)
            self._cache_prompt(sequence, cached + chunk)
            plan.chunks.append((sequence, chunk))
            budget -= chunk

    def _start(self, sequence: Sequence, units: list[int], cached: int, blocks: int) -> None:
        """A sequence joins the batch with the cached start of its prompt."""
        self._cache.hold(units)
        sequence.units = units
        sequence.computed_tokens = sequence.drafter_tokens = cached
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached
        sequence.blocks = blocks
        self._held_blocks += blocks
        self.running.append(sequence)

    def _cache_prompt(self, sequence: Sequence, computed_tokens: int) -> None:
        """Offer the prompt blocks that this step completes to later requests."""
        self._cache.add(sequence.index, sequence.units, computed_tokens)


class UnifiedScheduler(Scheduler):
    """vLLM V1: one token budget per step, running requests first, then new ones.

    Source: vLLM documentation and ``vllm/v1/core/sched/scheduler.py`` (v0.9 to v0.11): decodes and unfinished prompts
    in order of admission, preemption from the end, no admission in a step that preempted.
    """

    def in_step(self, plan: StepPlan) -> list[Sequence]:
        """The sequences that the step schedules, as vLLM looks its table up by ``len(num_scheduled_tokens)``."""
        return [*plan.decodes, *(sequence for sequence, _ in plan.chunks)]

    def _plan(self) -> StepPlan:
        """Decodes, then the unfinished prompt, then new prompts, until the budget is spent."""
        limits = self.limits
        plan = StepPlan()
        budget = limits.max_num_batched_tokens
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            tokens = self.query_len if sequence.decoding else sequence.known_tokens - sequence.computed_tokens
            tokens = min(tokens, budget)
            if sequence.decoding:
                fits = self._allocate_decode(sequence)
            else:
                fits = self._allocate(sequence, limits.blocks(sequence.computed_tokens + tokens))
            if not fits:
                break
            if sequence.decoding:
                plan.decodes.append(sequence)
            else:
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
            budget -= tokens
            position += 1
        if not self.preempted:
            self._admit(plan, budget, whole_prompts=not limits.chunked_prefill)
        return plan


class PrefillFirstScheduler(Scheduler):
    """vLLM V0's rule: a step either prefills whole prompts or decodes the batch; prompts go first."""

    def _plan(self) -> StepPlan:
        """New prompts if any fit, else one decode step of the whole batch."""
        plan = StepPlan()
        self._admit(plan, self.limits.max_num_batched_tokens, whole_prompts=True)
        if plan.chunks:
            return plan
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            if not self._allocate_decode(sequence):
                break
            plan.decodes.append(sequence)
            position += 1
        return plan


class StaticScheduler(Scheduler):
    """A batch is filled once and runs until its last request is done; finished requests keep their place as padding."""

    def __init__(self, limits: EngineLimits, cache: NoPrefixCache) -> None:
        super().__init__(limits, cache)
        self._padding: list[Sequence] = []

    def _plan(self) -> StepPlan:
        """Prefill the batch chunk by chunk, then decode all of it."""
        limits = self.limits
        plan = StepPlan()
        if not self.running:
            self._fill()
        budget = limits.max_num_batched_tokens
        for sequence in self.running:
            if not sequence.decoding and budget > 0:
                tokens = min(sequence.known_tokens - sequence.computed_tokens, budget)
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
                budget -= tokens
        if not plan.chunks:
            plan.decodes = list(self.running)
            plan.padding = list(self._padding)
        return plan

    def release(self, sequence: Sequence) -> None:
        """A finished request keeps its blocks until the whole batch is done."""
        self.running.remove(sequence)
        self._padding.append(sequence)
        if not self.running:
            for finished in self._padding:
                self._free(finished)
            self._padding = []

    def _fill(self) -> None:
        limits = self.limits
        while self.waiting and len(self.running) < limits.max_num_seqs:
            sequence = self.waiting[0]
            last = sequence.input_tokens + sequence.output_tokens - 2
            blocks = max(limits.blocks(sequence.known_tokens), limits.decode_blocks(last))
            self._evict_idle()
            units, cached, in_use = self._cache.match(sequence.index, sequence.known_tokens)
            if self.used_blocks + blocks - in_use > limits.num_blocks - limits.watermark_blocks:
                break
            self.waiting.popleft()
            self._start(sequence, units, cached, blocks)


SCHEDULERS: dict[str, type[Scheduler]] = {
    "vllm-v1": UnifiedScheduler,
    "prefill-first": PrefillFirstScheduler,
    "static": StaticScheduler,
}
