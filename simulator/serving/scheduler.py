"""The queue, the batch and the block pool of one replica: what all batching rules share."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from simulator.serving.limits import EngineLimits
from simulator.serving.prefix_cache import NoPrefixCache
from simulator.serving.sequence import Sequence
from simulator.serving.swap import SwapSpace
from simulator.timing import StepWork, causal_pairs, keys_read


@dataclass(slots=True)
class StepPlan:
    """What one engine step does."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    """Sequences in prefill and their tokens in this step."""
    decodes: list[Sequence] = field(default_factory=list)
    padding: list[Sequence] = field(default_factory=list)
    """Finished sequences that a static batch still computes."""
    blocks_out: int = 0
    """KV blocks copied to host memory before the step."""
    blocks_in: int = 0
    """KV blocks copied back from host memory before the step."""

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)

    def work(self, query_len: int, windows: tuple[int | None, ...], longest: int = 0) -> StepWork[int]:
        """The plan in the aggregates that timing needs; call before the step's tokens are committed.

        Args:
            query_len: tokens of a decoding sequence.
            windows: attention windows of the timing model.
            longest: how many of the longest decoding sequences timing asks for.
        """
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
            **_longest(batch, query_len, longest),
        )


def _longest(batch: list[Sequence], query_len: int, asked: int) -> dict[str, Any]:
    """The longest context and what it has beyond the mean of the ``asked`` longest, where they are asked for."""
    if not asked or not batch:
        return {}
    contexts = heapq.nlargest(asked, (s.computed_tokens + query_len for s in batch))
    return {"longest_kv": contexts[0], "beyond_kv": (len(contexts) * contexts[0] - sum(contexts)) / len(contexts)}


class Scheduler(ABC):
    """Waiting queue, batch and block pool of one replica.

    Args:
        limits: tokens, sequences, blocks.
        cache: the prefix cache, or its stand-in.
        swap: host memory for preempted sequences; None recomputes them.
    """

    def __init__(self, limits: EngineLimits, cache: NoPrefixCache, swap: SwapSpace | None = None) -> None:
        self.limits = limits
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.cache = cache
        self._held_blocks = 0
        """Blocks of all running sequences; a block that several share is counted by each."""
        self.preempted: list[Sequence] = []
        """Sequences thrown out by the latest plan."""
        self.query_len = limits.query_len
        """Tokens of a decoding sequence in the next step; a policy changes it from step to step."""
        self.swap = swap
        self.swapped: deque[Sequence] = deque()
        """Sequences in host memory, the first to come back first."""
        self.swapped_blocks = 0
        """Blocks in host memory."""
        self.incoming: list[Sequence] = []
        """Sequences whose KV is on its way here, their blocks reserved."""
        self.ready: deque[Sequence] = deque()
        """Sequences whose KV has arrived from another replica, in that order."""
        self.seen_s = 0.0
        """Time up to which the next step knows what has arrived."""
        self.held: list[Sequence] = []
        """Sequences whose prompt is done and whose KV waits to be fetched by another replica."""

    def add(self, sequence: Sequence) -> None:
        """A request joins the queue."""
        self.waiting.append(sequence)

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold, shared ones counted once."""
        return self._held_blocks - self.cache.shared_blocks

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.waiting or self.running or self.ready or self.swapped)

    def everything(self) -> list[Sequence]:
        """All sequences that this replica would lose if it failed."""
        return [*self.waiting, *self.running, *self.swapped, *self.incoming, *self.ready, *self.held]

    def take_loaded(self) -> int:
        """Blocks that the latest plan brings from the host's prefix cache."""
        return self.cache.take_loaded()

    def cached_tokens(self, request: int, tokens: int) -> int:
        """Tokens at the start of a request that the prefix cache holds now."""
        return self.cache.match(request, tokens)[1]

    def hold(self, sequence: Sequence) -> None:
        """A sequence leaves the batch and keeps its blocks until another replica has fetched them."""
        self.running.remove(sequence)
        self.held.append(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """The KV of a held sequence has been fetched."""
        self.held.remove(sequence)
        self._free(sequence)

    def reserve(self, sequence: Sequence) -> int | None:
        """Blocks for a sequence whose KV another replica sends, behind those that wait here already.

        Returns:
            Tokens that the prefix cache spares the transfer, or None when there is no room now.
        """
        if self.waiting or self.swapped:
            return None
        self._evict_idle()
        units, cached, in_use = self.cache.match(sequence.index, sequence.known_tokens)
        blocks = self.limits.blocks(sequence.known_tokens)
        if self.used_blocks + blocks - in_use > self.limits.num_blocks - self.limits.watermark_blocks:
            return None
        self.cache.hold(units)
        sequence.units = units
        sequence.blocks = blocks
        self._held_blocks += blocks
        self._evict_idle()
        self.incoming.append(sequence)
        return cached

    def cancel(self, sequence: Sequence) -> None:
        """The KV of an incoming sequence will not come."""
        self.incoming.remove(sequence)
        self._free(sequence)

    def arrive(self, sequence: Sequence, now: float) -> None:
        """The KV of an incoming sequence is here, but for its last token, which the next step computes."""
        self.incoming.remove(sequence)
        sequence.ready_s = now
        sequence.computed_tokens = sequence.drafter_tokens = sequence.known_tokens - 1
        self._cache_prompt(sequence, sequence.computed_tokens)
        self.ready.append(sequence)

    def plan(self) -> StepPlan:
        """The next step, its blocks allocated; what is cached and unused makes room for them."""
        self.preempted = []
        swapped = self.swapped_blocks
        plan = self._plan()
        plan.blocks_out = self.swapped_blocks + plan.blocks_in - swapped
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
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """What a sequence has computed may be kept for later ones; its blocks are free."""
        self.cache.finish(sequence.index, sequence.units)
        sequence.units = []
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
        self.cache.release(sequence.units)
        sequence.units = []
        self._held_blocks -= sequence.blocks
        sequence.blocks = 0

    def _evict_idle(self) -> None:
        """Evict cached blocks that no sequence uses for those that sequences do use."""
        self.cache.shrink(self.limits.num_blocks - self.used_blocks)

    def _preempt_last(self) -> Sequence:
        """Throw the latest sequence out of the batch.

        Its cache is copied to host memory where there is room for it, and recomputed otherwise when the sequence comes
        back, first in the queue.
        """
        victim = self.running.pop()
        self.cache.shrink(0)
        self._free(victim)
        self.preempted.append(victim)
        blocks = self.limits.blocks(victim.computed_tokens)
        if self.swap is not None and blocks and self.swapped_blocks + blocks <= self.swap.num_blocks:
            victim.swapped_blocks = blocks
            self.swapped_blocks += blocks
            self.swapped.appendleft(victim)
            return victim
        victim.computed_tokens = 0
        victim.decoding = False
        self.waiting.appendleft(victim)
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
        if self.ready or self.swapped:
            budget = self._resume(plan, budget)
            if self.swapped:
                return
        while self.waiting and budget > 0 and len(self.running) < limits.max_num_seqs:
            sequence = self.waiting[0]
            self._evict_idle()
            units, cached, in_use = self.cache.match(sequence.index, sequence.known_tokens)
            tokens = sequence.known_tokens - cached
            if whole_prompts and tokens > budget:
                break
            chunk = min(tokens, budget)
            blocks = limits.blocks(cached + chunk)
            room = limits.num_blocks - limits.watermark_blocks - self._kept_blocks(sequence, blocks)
            if self.used_blocks + blocks - in_use > room:
                break
            self.waiting.popleft()
            self._start(sequence, units, cached, blocks)
            self._cache_prompt(sequence, cached + chunk)
            plan.chunks.append((sequence, chunk))
            budget -= chunk

    def _kept_blocks(self, sequence: Sequence, blocks: int) -> int:
        """Blocks that admission leaves free for what the batch, and the sequence beyond ``blocks``, still need."""
        return 0

    def _resume(self, plan: StepPlan, budget: int) -> int:
        """Take in sequences with their KV: from other replicas, then from host memory; returns the tokens left.

        Nothing new is admitted while host memory holds any (vLLM V0's rule).
        """
        limits = self.limits
        while self.ready and budget > 0 and len(self.running) < limits.max_num_seqs:
            if self.ready[0].ready_s > self.seen_s:
                break
            sequence = self.ready.popleft()
            self.running.append(sequence)
            plan.chunks.append((sequence, 1))
            budget -= 1
        while self.swapped and budget > 0 and len(self.running) < limits.max_num_seqs:
            sequence = self.swapped[0]
            self._evict_idle()
            wanted = self.query_len if sequence.decoding else sequence.known_tokens - sequence.computed_tokens
            tokens = min(wanted, budget)
            blocks = limits.blocks(sequence.computed_tokens + tokens)
            if sequence.decoding:
                blocks = limits.decode_blocks(sequence.computed_tokens)
            if self.used_blocks + blocks > limits.num_blocks - limits.watermark_blocks:
                break
            self.swapped.popleft()
            self.running.append(sequence)
            sequence.blocks = blocks
            self._held_blocks += blocks
            plan.blocks_in += sequence.swapped_blocks
            self.swapped_blocks -= sequence.swapped_blocks
            sequence.swapped_blocks = 0
            if sequence.decoding:
                plan.decodes.append(sequence)
            else:
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
            budget -= tokens
        return budget

    def _start(self, sequence: Sequence, units: list[int], cached: int, blocks: int) -> None:
        """A sequence joins the batch with the cached start of its prompt."""
        self.cache.hold(units)
        sequence.units = units
        sequence.computed_tokens = sequence.drafter_tokens = cached
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached
            sequence.host_tokens = self.cache.host_tokens
        sequence.blocks = blocks
        self._held_blocks += blocks
        self.running.append(sequence)

    def _cache_prompt(self, sequence: Sequence, computed_tokens: int) -> None:
        """Offer the prompt blocks that this step completes to later requests."""
        self.cache.add(sequence.index, sequence.units, computed_tokens)
