"""The base of every scheduler: admission, KV blocks, preemption, the end of a sequence."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import Any

from simulator.serving.engine.caching.prefix_cache import NoPrefixCache, PrefixCache
from simulator.serving.engine.common import INFINITE, MANY, cython
from simulator.serving.engine.sequence import Sequence, StepPlan, _drop
from simulator.serving.engine.steady import Steady


@cython.cfunc
def _before_last(sequence: Sequence) -> cython.longlong:
    """Tokens in the cache when a step begins that generates the last token and no other."""
    return sequence.input_tokens + sequence.output_tokens - 2


def _ready_s(sequence: Sequence) -> float:
    return sequence.ready_s


@cython.cclass
class Scheduler:
    """Waiting queue, batch and block pool of one replica: what all batching rules share.

    Args:
        limits: tokens, sequences, blocks.
        cache: the prefix cache, or its stand-in.
        swap: host memory for preempted sequences; None recomputes them.
    """

    limits = cython.declare(object, visibility="public")
    waiting = cython.declare(object, visibility="public")
    running = cython.declare(list, visibility="public")
    preempted = cython.declare(list, visibility="public")
    """Sequences thrown out by the latest plan."""
    query_len = cython.declare(cython.longlong, visibility="public")
    """Tokens of a decoding sequence in the next step; a policy changes it from step to step."""
    swap = cython.declare(object, visibility="public")
    swapped = cython.declare(object, visibility="public")
    """Sequences swapped to host memory, in order of return."""
    swapped_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks in host memory."""
    incoming = cython.declare(list, visibility="public")
    """Sequences whose KV is on its way here, their blocks reserved."""
    ready = cython.declare(object, visibility="public")
    """Sequences whose KV has arrived from another replica, in that order."""
    loading = cython.declare(list, visibility="public")
    """Sequences whose prefix comes from a store outside the batch, their blocks reserved, in order of arrival."""
    seen_s = cython.declare(cython.double, visibility="public")
    """Time up to which the next step has seen arrivals."""
    held = cython.declare(list, visibility="public")
    """Sequences with a finished prompt whose KV another replica has yet to fetch."""
    cache = cython.declare(NoPrefixCache, visibility="public")
    closed = cython.declare(cython.bint, visibility="public")
    """True if new requests must wait even if there is room."""
    counting = cython.declare(cython.bint, visibility="public")
    """True if sequences at the head of the batch are counted in ``steady`` instead of listed in plans. They decode in
    every step."""
    steady: Steady
    _held_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks of all running sequences; a block that several share is counted by each."""
    _caching: cython.bint
    _block_size: cython.longlong
    _page_tokens: cython.longlong
    """Tokens for which blocks are allotted together."""
    _num_blocks: cython.longlong
    _watermark: cython.longlong
    _max_num_seqs: cython.longlong
    _budget: cython.longlong
    _slots: cython.longlong
    """Extra tokens of the budget that each sequence of a step takes for the drafter's first pass."""
    _chunked: cython.bint
    _whole_prompts: cython.bint
    """True if admission needs free blocks for a whole prompt, not for its first chunk."""
    _batch_wait: cython.longlong
    """Maximum steps that waiting prompts are held so that more prompts join them."""
    _waited: cython.longlong
    _reserved: cython.longlong
    """Tokens beyond the cached ones for which a decoding sequence has blocks: a full proposal and the next token."""

    def __init__(self, limits: Any, cache: Any, swap: Any = None) -> None:
        self.limits = limits
        self.waiting = deque()
        self.running = []
        self.preempted = []
        self.query_len = limits.query_len
        self.swap = swap
        self.swapped = deque()
        self.swapped_blocks = 0
        self.incoming = []
        self.ready = deque()
        self.loading = []
        self.seen_s = 0.0
        self.held = []
        self.cache = cache
        self.closed = False
        self._caching = isinstance(cache, PrefixCache)
        self._held_blocks = 0
        self._block_size = limits.block_size
        self._page_tokens = limits.page_tokens or limits.block_size
        self._num_blocks = limits.num_blocks
        self._watermark = limits.watermark_blocks
        self._max_num_seqs = limits.max_num_seqs
        self._budget = limits.max_num_batched_tokens
        self._slots = limits.draft_slots
        self._chunked = limits.chunked_prefill
        self._whole_prompts = limits.reserve_full_isl
        self._reserved = limits.query_len + limits.lookahead_tokens
        self._batch_wait = limits.batch_wait_steps
        self._waited = 0
        self.counting = False
        self.steady = Steady(self._reserved, self._page_tokens, self._page_tokens // self._block_size)

    @cython.ccall
    def add(self, sequence: Sequence) -> None:
        """A request joins the queue."""
        self.waiting.append(sequence)

    @cython.cfunc
    def count(self, windows: cython.longlong[::1]) -> None:
        """Count sequences in the next plan, and the keys that these sequences read within ``windows``."""
        self.counting = True
        self.steady.windows = windows

    def settle(self) -> None:
        """Free the blocks of finished sequences still in the batch, once nothing runs."""

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold, shared ones counted once."""
        return self._used()

    @property
    def has_work(self) -> bool:
        """True if any request is waiting or running."""
        return bool(self._works())

    @cython.cfunc
    def _works(self) -> cython.bint:
        """True if there is anything to plan."""
        return bool(self.waiting or self.running or self.ready or self.swapped or self.loaded_s() <= self.seen_s)

    @cython.cfunc
    def _queued(self) -> cython.longlong:
        """Requests that wait for a place."""
        return len(self.waiting) + len(self.swapped) + len(self.loading)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def loaded_s(self) -> cython.double:
        """Time at which the next prefix has come from a store; infinite if none is on its way."""
        if not self.loading:
            return INFINITE
        return cython.cast(Sequence, self.loading[0]).ready_s

    def everything(self) -> list[Sequence]:
        """All sequences that this replica would lose if it failed."""
        self.steady.leave()
        return [*self.waiting, *self.running, *self.swapped, *self.incoming, *self.ready, *self.loading, *self.held]

    @cython.ccall
    def save(self) -> None:
        """Begin to copy what the latest step computed to the stores that keep it."""
        self.cache.save()

    def cached_tokens(self, request: int, tokens: int) -> int:
        """Tokens at the start of a request that the prefix cache holds now."""
        tokens_cached: int = self.cache.match(request, tokens)[1]
        return tokens_cached

    def hold(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch; it keeps its blocks until another replica has fetched its KV."""
        _drop(self.running, sequence)
        self.held.append(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """The KV of a held sequence has been fetched."""
        _drop(self.held, sequence)
        self.cache.ends(sequence.index)
        self._free(sequence)

    def reserve(self, sequence: Sequence) -> int | None:
        """Reserve blocks for a sequence whose KV another replica sends, after the sequences that already wait here.

        Returns:
            Tokens that need no transfer because the prefix cache has them; None if there is no room now.
        """
        if self.waiting or self.swapped:
            return None
        self._evict_idle()
        hash_blocks, cached, in_use = self.cache.match_chip(sequence.index, sequence.known_tokens)
        if not self._reserve(sequence, hash_blocks, self._num_blocks - self._watermark + in_use - self._withheld()):
            return None
        self.incoming.append(sequence)
        return int(cached)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _reserve(self, sequence: Sequence, hash_blocks: cython.longlong, available: cython.longlong) -> cython.bint:
        """Reserve blocks for all known tokens of a sequence, the first of them shared; False if there is no room."""
        blocks: cython.longlong = self._blocks(sequence.input_tokens + sequence.generated_tokens)
        if self._used() + blocks > available:
            return False
        self.cache.hold(sequence.index, hash_blocks)
        sequence.hash_blocks = hash_blocks
        sequence.blocks = blocks
        self._held_blocks += blocks
        self._evict_idle()
        return True

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _load(
        self, sequence: Sequence, hash_blocks: cython.longlong, cached: cython.longlong, in_use: cython.longlong
    ) -> cython.bint:
        """Begin to load the prefix of the first waiting sequence outside the batch; False if there is no room.

        Source: ``WAITING_FOR_REMOTE_KVS`` of vllm/v1/core/sched/scheduler.py (v0.11). Blocks of the whole prompt are
        reserved, so that sequences which wait for their prefixes cannot block one another.
        """
        blocks: cython.longlong = self._blocks(sequence.input_tokens + sequence.generated_tokens)
        available: cython.longlong = self._num_blocks - self._watermark - self._kept_blocks(sequence, blocks)
        available -= self._withheld()
        if self._used() + blocks - in_use > available:
            return False
        self.waiting.popleft()
        sequence.ready_s = self.cache.fetch(sequence.index, hash_blocks)
        self._find(sequence, cached)
        self._reserve(sequence, self.cache.match_chip(sequence.index, cached + 1)[0], MANY)
        insort(self.loading, sequence, key=_ready_s)
        return True

    def cancel(self, sequence: Sequence) -> None:
        """Drop an incoming sequence whose KV will not arrive."""
        _drop(self.incoming, sequence)
        self._free(sequence)

    def arrive(self, sequence: Sequence, now: float) -> None:
        """Accept the KV of an incoming sequence, except its last token, which the next step computes."""
        _drop(self.incoming, sequence)
        sequence.ready_s = now
        sequence.computed_tokens = sequence.drafter_tokens = sequence.known_tokens - 1
        self._cache_prompt(sequence, sequence.computed_tokens)
        self.ready.append(sequence)

    @cython.ccall
    def plan(self) -> StepPlan:
        """Plan the next step and allocate its blocks, evicting unused cached blocks."""
        plan: StepPlan
        swapped: cython.longlong = self.swapped_blocks
        if self.preempted:
            self.preempted = []
        if self._batch_wait:
            self.closed = self._waits_for_more()
        plan = self._plan()
        plan.blocks_out = self.swapped_blocks + plan.blocks_in - swapped
        self._evict_idle()
        return plan

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def repeat(self, plan: StepPlan) -> cython.bint:
        """Repeat the latest plan, if the batching rule could not decide otherwise: each counted sequence gets a
        token."""
        count: cython.longlong = self.steady.count
        running: cython.longlong = len(self.running)
        if not count or plan.steady != count or running != count or plan.chunks or plan.decodes or plan.padding:
            return False
        if self.ready or self.swapped or self.preempted or self.loaded_s() <= self.seen_s:
            return False
        if self.waiting and (running < self._max_num_seqs or self._batch_wait):
            return False
        growth: cython.longlong = self.steady.growth()
        if growth and self._used() + growth > self._num_blocks:
            return False
        self._held_blocks += growth
        self.steady.grow()
        if growth:
            self._evict_idle()
        if self.steady.ends():
            plan.least = 1
        plan.cached = self.steady.cached
        return True

    @cython.cfunc
    def _waits_for_more(self) -> cython.bint:
        """True if the prompts at the head of the queue are held back so that more prompts are computed together.

        Source: ``_waiting_requests`` of tensorrt_llm/_torch/pyexecutor/py_executor.py (v1.1).
        """
        sequence: Sequence
        tokens: cython.longlong = len(self.running) * self.query_len
        for sequence in self.waiting:
            if tokens >= self.limits.batch_wait_tokens:
                break
            tokens += sequence.input_tokens + sequence.generated_tokens
        alone: cython.bint = not self.running or not self.waiting
        if alone or tokens >= self.limits.batch_wait_tokens or self._waited >= self._batch_wait:
            self._waited = 0
            return False
        self._waited += 1
        return True

    @cython.ccall
    def _plan(self) -> StepPlan:
        """Plan the next step by the batching rule; the plan is empty only if there is nothing to do."""
        raise NotImplementedError

    @cython.ccall
    def in_step(self, plan: StepPlan) -> list[Sequence]:
        """Batch whose size the draft policy sees: all running sequences, even if the step leaves some out."""
        return self.running

    @cython.ccall
    def release(self, sequence: Sequence) -> None:
        """A finished sequence leaves the batch and gives its blocks back."""
        _drop(self.running, sequence)
        self._end(sequence)

    @cython.cfunc
    def _repeating(self, sequence: Sequence) -> Sequence:
        """Use a finished sequence as padding: it repeats its last step within its blocks.

        Accepted drafts may have gone past the end of the answer, for which nothing was reserved.
        """
        held: cython.longlong = sequence.blocks * self._block_size - self._reserved
        sequence.computed_tokens = min(_before_last(sequence), held)
        return sequence

    @cython.cfunc
    def _end(self, sequence: Sequence) -> None:
        """Offer a sequence's computed blocks to the prefix cache and free them."""
        if self._caching:
            self.cache.finish(sequence.index, sequence.hash_blocks)
            sequence.hash_blocks = 0
        self._free(sequence)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _used(self) -> cython.longlong:
        if not self._caching:
            return self._held_blocks
        return self._held_blocks - self.cache.shared_blocks

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _blocks(self, tokens: cython.longlong) -> cython.longlong:
        """KV blocks that ``tokens`` tokens take, in whole pages."""
        return -(-tokens // self._page_tokens) * (self._page_tokens // self._block_size)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _grow(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        """Give ``sequence`` ``blocks`` blocks in all, if there are enough."""
        needed: cython.longlong = max(0, blocks - sequence.blocks)
        if self._used() + needed > self._num_blocks:
            return False
        self._held_blocks += needed
        sequence.blocks += needed
        return True

    @cython.cfunc
    def _free(self, sequence: Sequence) -> None:
        if self._caching:
            self.cache.release(sequence.index, sequence.hash_blocks)
            sequence.hash_blocks = 0
        self._held_blocks -= sequence.blocks
        sequence.blocks = 0

    @cython.cfunc
    def _evict_idle(self) -> None:
        """Evict unused cached blocks until the used blocks fit."""
        if self._caching:
            self.cache.shrink(self._num_blocks - self._used())

    @cython.cfunc
    def _preempt_last(self) -> Sequence:
        """Preempt the last sequence of the batch.

        Its cache is copied to host memory if there is room, else recomputed later. The sequence is first in the queue.
        """
        if self.steady.count == len(self.running):
            self.steady.leave()
        victim: Sequence = self.running.pop()
        blocks: cython.longlong
        if self._caching:
            self.cache.shrink(0)
        self._free(victim)
        self.preempted.append(victim)
        blocks = self._blocks(victim.computed_tokens)
        if self.swap is not None and blocks and self.swapped_blocks + blocks <= self.swap.num_blocks:
            victim.swapped_blocks = blocks
            self.swapped_blocks += blocks
            self.swapped.appendleft(victim)
            return victim
        victim.computed_tokens = 0
        victim.decoding = False
        self.waiting.appendleft(victim)
        return victim

    @cython.cfunc
    def _allocate_decode(self, sequence: Sequence) -> cython.bint:
        """Blocks for a decode step, preempting from the end of the batch; False when the sequence itself had to go."""
        return self._allocate(sequence, self._blocks(sequence.computed_tokens + self._reserved))

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _lead(self, plan: StepPlan, budget: cython.longlong) -> cython.longlong:
        """Add the sequences at the head of the batch that can decode without preemption; returns their number."""
        sequence: Sequence
        steady: Steady = self.steady
        most: cython.longlong = -(-(budget - self._slots) // (self.query_len + self._slots))
        most = max(0, min(len(self.running), most))
        cached: cython.longlong = 0
        left: cython.longlong
        growth: cython.longlong = steady.growth()
        if steady.count > most or self._used() + growth > self._num_blocks:
            steady.leave()
        else:
            self._held_blocks += growth
        steady.grow()
        joining: cython.bint = self.counting
        place: cython.longlong = steady.count
        while place < most:
            sequence = cython.cast(Sequence, self.running[place])
            if not sequence.decoding or sequence.in_flight:
                break
            if sequence.computed_tokens + self._reserved > sequence.blocks * self._block_size and not self._grow(
                sequence, self._blocks(sequence.computed_tokens + self._reserved)
            ):
                break
            place += 1
            joining = joining and steady.join(sequence)
            if joining:
                continue
            cached += sequence.computed_tokens
            left = sequence.output_tokens - sequence.generated_tokens
            if left < plan.least:
                plan.least = left
        if steady.ends():
            plan.least = 1
        plan.steady, plan.steady_keys = steady.count, steady.keys
        plan.decodes = self.running[plan.steady : place]
        plan.counted, plan.cached = place - plan.steady, steady.cached + cached
        return place

    @cython.cfunc
    def _allocate(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        while not self._grow(sequence, blocks):
            if self._preempt_last() is sequence:
                return False
        return True

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _admit(self, plan: StepPlan, budget: cython.longlong, whole_prompts: cython.bint) -> cython.longlong:
        """Move requests from the queue into the batch, in order, while tokens, places and blocks last; returns the
        tokens left."""
        sequence: Sequence
        known: cython.longlong
        cached: cython.longlong = 0
        in_use: cython.longlong = 0
        chunk: cython.longlong
        blocks: cython.longlong
        needed: cython.longlong
        hash_blocks: cython.longlong = 0
        if self.ready or self.swapped or self.loading:
            budget = self._resume(plan, budget, whole_prompts)
            if self.swapped:
                # Nothing new is admitted while host memory holds any (vLLM V0's rule).
                return budget
        while budget > self._slots and self.waiting and len(self.running) < self._max_num_seqs and not self.closed:
            sequence = self.waiting[0]
            known = sequence.input_tokens + sequence.generated_tokens
            if self._caching:
                self._evict_idle()
                hash_blocks, cached, in_use = self.cache.match(sequence.index, known)
                if self.cache.slow:
                    if not self._load(sequence, hash_blocks, cached, in_use):
                        break
                    continue
            if whole_prompts and known - cached > budget - self._slots:
                break
            chunk = min(known - cached, budget - self._slots)
            blocks = self._blocks(cached + chunk)
            available = self._num_blocks - self._watermark - self._kept_blocks(sequence, blocks) - self._withheld()
            needed = self._blocks(known) if self._whole_prompts else blocks
            if self._used() + needed - in_use > available:
                break
            self.waiting.popleft()
            self._start(sequence, hash_blocks, cached, blocks)
            self._cache_prompt(sequence, cached + chunk)
            plan.chunks.append((sequence, chunk))
            budget -= chunk + self._slots
        return budget

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _withheld(self) -> cython.longlong:
        """Blocks of the prefix cache that its eviction policy keeps from the latest request that was looked up.

        Where no request holds a block, nothing is kept: requests would wait for nobody.
        """
        return self.cache.withheld if self._held_blocks else 0

    @cython.cfunc
    def _kept_blocks(self, sequence: Sequence, blocks: cython.longlong) -> cython.longlong:
        """Blocks that admission keeps free for the further needs of the batch, and of the sequence beyond
        ``blocks``."""
        return 0

    @cython.cfunc
    def _blocks_to_come(self, sequence: Sequence, blocks: cython.longlong, share: cython.double) -> cython.longlong:
        """Blocks for the remaining tokens of the sequence, of prompts under way, and a share of the batch's remaining
        tokens."""
        other: Sequence
        prompts: cython.longlong = 0
        coming: cython.longlong = self.steady.left
        for other in self.running[self.steady.count :]:
            coming += other.output_tokens - other.generated_tokens
            if not other.decoding:
                prompts += self._blocks(other.input_tokens + other.generated_tokens) - other.blocks
        remaining: cython.longlong = self._blocks(sequence.input_tokens + sequence.output_tokens) - blocks
        expected: cython.longlong = round(share * coming)
        return remaining + prompts + self._blocks(expected)

    @cython.cfunc
    def _resume(self, plan: StepPlan, budget: cython.longlong, whole_prompts: cython.bint) -> cython.longlong:
        """Take in sequences with their KV: from other replicas, stores, then swap space; returns the tokens left."""
        sequence: Sequence
        tokens: cython.longlong
        blocks: cython.longlong
        while self.ready and budget > self._slots and len(self.running) < self._max_num_seqs:
            sequence = self.ready[0]
            if sequence.ready_s > self.seen_s:
                break
            self.ready.popleft()
            self.running.append(sequence)
            sequence.decoding = self._decodes_at_once(sequence)
            if sequence.decoding:
                plan.decodes.append(sequence)
                budget -= self.query_len + self._slots
            else:
                plan.chunks.append((sequence, 1))
                budget -= 1 + self._slots
        while self.loaded_s() <= self.seen_s and budget > self._slots and len(self.running) < self._max_num_seqs:
            sequence = self.loading[0]
            tokens = sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens
            if whole_prompts and tokens > budget - self._slots:
                break
            tokens = min(tokens, budget - self._slots)
            del self.loading[0]
            self.running.append(sequence)
            self._cache_prompt(sequence, sequence.computed_tokens + tokens)
            plan.chunks.append((sequence, tokens))
            budget -= tokens + self._slots
        while self.swapped and budget > self._slots and len(self.running) < self._max_num_seqs:
            sequence = self.swapped[0]
            self._evict_idle()
            tokens = sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens
            tokens = self.query_len if sequence.decoding else min(tokens, budget - self._slots)
            blocks = self._blocks(sequence.computed_tokens + (self._reserved if sequence.decoding else tokens))
            if self._used() + blocks > self._num_blocks - self._watermark:
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
            budget -= tokens + self._slots
        return budget

    @cython.cfunc
    def _decodes_at_once(self, sequence: Sequence) -> cython.bint:
        """True if a sequence that arrived with its KV computes its last token in a decode step.

        A verify step needs drafts, which follow from a first token, and blocks for them; else the token is a chunk.

        Source: python/sglang/srt/disaggregation/decode.py (v0.5), "skip the prefill forward"; to vLLM V1 any step of
            one token per sequence is a uniform decode.
        """
        if self.query_len > 1 and not sequence.generated_tokens:
            return False
        return self._grow(sequence, self._blocks(sequence.computed_tokens + self._reserved))

    @cython.cfunc
    def _start(
        self, sequence: Sequence, hash_blocks: cython.longlong, cached: cython.longlong, blocks: cython.longlong
    ) -> None:
        """Add a sequence to the batch with the cached start of its prompt."""
        if self._caching:
            self.cache.hold(sequence.index, hash_blocks)
            sequence.hash_blocks = hash_blocks
        self._find(sequence, cached)
        sequence.blocks = blocks
        self._held_blocks += blocks
        self.running.append(sequence)

    @cython.cfunc
    def _find(self, sequence: Sequence, cached: cython.longlong) -> None:
        """Record the cached start of a prompt that the latest match found."""
        sequence.computed_tokens = sequence.drafter_tokens = cached
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = cached
            sequence.tier_tokens = self.cache.tier_tokens

    @cython.cfunc
    def _cache_prompt(self, sequence: Sequence, computed_tokens: cython.longlong) -> None:
        """Offer the prompt blocks that this step completes to later requests."""
        if self._caching:
            sequence.hash_blocks = self.cache.add(sequence.index, sequence.hash_blocks, computed_tokens)
