"""Which requests an engine step works on: one class per batching rule, one request object at a time.

These are the rules in their plain form; the fast path must reproduce ``UnifiedScheduler``.
"""

from __future__ import annotations

from bisect import insort

from simulator.serving.limits import EngineLimits
from simulator.serving.prefix_cache import NoPrefixCache
from simulator.serving.scheduler import Scheduler, StepPlan
from simulator.serving.sequence import Sequence
from simulator.serving.swap import SwapSpace

NEW_TOKEN_RATIO = 0.7
"""Share of the output still to come that SGLang keeps room for (``SGLANG_INIT_NEW_TOKEN_RATIO``)."""


class UnifiedScheduler(Scheduler):
    """vLLM V1: one token budget per step, running requests first, then new ones.

    Source: vLLM documentation and ``vllm/v1/core/sched/scheduler.py`` (v0.9 to v0.11): decodes and unfinished prompts
    in order of admission, preemption from the end, no admission in a step that preempted.
    """

    def in_step(self, plan: StepPlan) -> list[Sequence]:
        """The sequences that the step schedules, as vLLM looks its table up by ``len(num_scheduled_tokens)``."""
        return [*plan.decodes, *(sequence for sequence, _ in plan.chunks)]

    def _plan(self) -> StepPlan:
        """Decodes, then the unfinished prompt, then new prompts, until the budget is spent.

        What a pipeline has in flight waits, but for the next chunk of a prompt.
        """
        limits = self.limits
        plan = StepPlan()
        budget = limits.max_num_batched_tokens
        for sequence in list(self.running):
            if budget <= 0:
                break
            if sequence in self.preempted:
                continue
            tokens = self.query_len if sequence.decoding else sequence.known_tokens - sequence.computed_tokens
            if sequence.in_flight and (sequence.decoding or not tokens):
                continue
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
        if not self.preempted:
            self._admit(plan, budget, whole_prompts=not limits.chunked_prefill)
        return plan


class PriorityScheduler(UnifiedScheduler):
    """vLLM V1's rule with ``--scheduling-policy priority``: of two requests the one with the lower priority value goes
    first, of equals the one that arrived first; what makes room is the last in that order.

    Source: ``PriorityRequestQueue`` of vllm/v1/core/sched/request_queue.py and ``Scheduler.schedule`` (v0.11): a victim
    that the step had planned already gives its tokens back.
    """

    def add(self, sequence: Sequence) -> None:
        """A request joins the queue at its place."""
        insort(self.waiting, sequence, key=_rank)

    def _plan(self) -> StepPlan:
        """As always; what is thrown out on the way is not computed."""
        plan = super()._plan()
        if self.preempted:
            plan.decodes = [sequence for sequence in plan.decodes if sequence not in self.preempted]
            plan.chunks = [chunk for chunk in plan.chunks if chunk[0] not in self.preempted]
        return plan

    def _allocate(self, sequence: Sequence, blocks: int) -> bool:
        while not self._grow(sequence, blocks):
            victim = max(self.running, key=_rank)
            self.running.remove(victim)
            self.running.append(victim)
            self._preempt_last()
            insort(self.waiting, self.waiting.popleft(), key=_rank)
            if victim is sequence:
                return False
        return True


def _rank(sequence: Sequence) -> tuple[int, float, int]:
    """Sorts the first to be served first."""
    return sequence.priority, sequence.arrival_s, sequence.index


class PrefillFirstScheduler(Scheduler):
    """vLLM V0's rule: a step either prefills whole prompts or decodes the batch; prompts go first."""

    def _plan(self) -> StepPlan:
        """New prompts if any fit, else one decode step of the whole batch."""
        plan = StepPlan()
        self._admit(plan, self.limits.max_num_batched_tokens, whole_prompts=True)
        return plan if plan.chunks else self._decode(plan)

    def _decode(self, plan: StepPlan) -> StepPlan:
        """One decode step of the whole batch."""
        position = 0
        while position < len(self.running):
            sequence = self.running[position]
            if not self._allocate_decode(sequence):
                break
            plan.decodes.append(sequence)
            position += 1
        return plan


class SglangScheduler(PrefillFirstScheduler):
    """SGLang's rule: prompts go first, cut where the token budget of a step ends; a step decodes where none waits.

    Source: ``get_next_batch_to_run`` and ``get_new_batch_prefill`` of python/sglang/srt/managers/scheduler.py (v0.5)
    with its defaults: ``chunked_prefill_size`` counts all prompts of a step, ``enable_mixed_chunk`` is off.
    """

    def _plan(self) -> StepPlan:
        """The prompt that was cut, then new prompts, until the budget is spent; else one decode step."""
        limits = self.limits
        plan = StepPlan()
        budget = limits.max_num_batched_tokens
        position = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            position += 1
            if sequence.decoding:
                continue
            tokens = min(sequence.known_tokens - sequence.computed_tokens, budget)
            if not self._allocate(sequence, limits.blocks(sequence.computed_tokens + tokens)):
                break
            self._cache_prompt(sequence, sequence.computed_tokens + tokens)
            plan.chunks.append((sequence, tokens))
            budget -= tokens
        if not self.preempted:
            self._admit(plan, budget, whole_prompts=not limits.chunked_prefill)
        return plan if plan.chunks else self._decode(plan)

    def _kept_blocks(self, sequence: Sequence, blocks: int) -> int:
        """Its whole prompt and output, and a share of what the batch will still generate; nothing where it is alone.

        Source: ``add_one_req`` and ``rem_total_tokens`` of python/sglang/srt/managers/schedule_policy.py (v0.5).
        """
        if not self.running:
            return 0
        limits = self.limits
        own = limits.blocks(sequence.known_tokens + sequence.remaining_tokens) - blocks
        prompts = sum(limits.blocks(s.known_tokens) - s.blocks for s in self.running if not s.decoding)
        coming = sum(s.remaining_tokens for s in self.running)
        return own + prompts + limits.blocks(round(NEW_TOKEN_RATIO * coming))


class StaticScheduler(Scheduler):
    """A batch is filled once and runs until its last request is done; finished requests keep their place as padding."""

    def __init__(self, limits: EngineLimits, cache: NoPrefixCache, swap: SwapSpace | None = None) -> None:
        super().__init__(limits, cache, swap)
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
        """A finished request keeps its blocks until the whole batch is done, and repeats the step of its last token."""
        self.running.remove(sequence)
        # Accepted drafts may have gone past the end of the answer, for which nothing was reserved.
        sequence.computed_tokens = min(sequence.computed_tokens, _before_last(sequence))
        self._padding.append(sequence)
        if not self.running:
            for finished in self._padding:
                self._end(finished)
            self._padding = []

    def _fill(self) -> None:
        limits = self.limits
        while self.waiting and len(self.running) < limits.max_num_seqs:
            sequence = self.waiting[0]
            blocks = max(limits.blocks(sequence.known_tokens), limits.decode_blocks(_before_last(sequence)))
            self._evict_idle()
            units, cached, in_use = self.cache.match(sequence.index, sequence.known_tokens)
            if self.used_blocks + blocks - in_use > limits.num_blocks - limits.watermark_blocks:
                break
            self.waiting.popleft()
            self._start(sequence, units, cached, blocks)


def _before_last(sequence: Sequence) -> int:
    """Tokens in the cache when a step begins that generates the last token and no other."""
    return sequence.input_tokens + sequence.output_tokens - 2
