"""vLLM V1's scheduler: prompts in chunks beside sequences that decode."""

from __future__ import annotations

from simulator.serving.engine.common import cython
from simulator.serving.engine.schedulers.scheduler import Scheduler
from simulator.serving.engine.sequence import Sequence, StepPlan


@cython.cclass
class UnifiedScheduler(Scheduler):
    """vLLM V1: one token budget per step, running requests first, then new ones.

    Source: vLLM documentation and ``vllm/v1/core/sched/scheduler.py`` (v0.9 to v0.11): decodes and unfinished prompts
    in order of admission, preemption from the end, no admission in a step that preempted. Drafts are tokens like any
    other: those of the last sequence end with the budget.
    """

    @cython.ccall
    def in_step(self, plan: StepPlan) -> list[Sequence]:
        """The sequences that the step schedules, as vLLM looks its table up by ``len(num_scheduled_tokens)``."""
        return [*plan.decodes, *[sequence for sequence, _ in plan.chunks]]

    @cython.ccall
    def _plan(self) -> StepPlan:
        """Decodes, then the unfinished prompt, then new prompts, until the budget is spent.

        What a pipeline has in flight waits, except the next chunk of a prompt.
        """
        sequence: Sequence
        tokens: cython.longlong
        plan: StepPlan = StepPlan()
        budget: cython.longlong = self._budget
        place: cython.longlong = self._lead(plan, budget)
        budget -= place * (self.query_len + self._slots)
        while place < len(self.running) and budget > self._slots:
            sequence = self.running[place]
            place += 1
            tokens = self.query_len
            if not sequence.decoding:
                tokens = sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens
            if sequence.in_flight and (sequence.decoding or not tokens):
                continue
            if sequence.decoding:
                if not self._allocate_decode(sequence):
                    break
                plan.decodes.append(sequence)
            else:
                tokens = min(tokens, budget - self._slots)
                if not self._allocate(sequence, self._blocks(sequence.computed_tokens + tokens)):
                    break
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
            budget -= tokens + self._slots
            if self.preempted:
                # What was thrown out may have stood before it.
                place = self.running.index(sequence) + 1
        if not self.preempted:
            budget = self._admit(plan, budget, not self._chunked)
        plan.cut = max(0, -budget)
        return plan


@cython.cclass
class NoEvictScheduler(UnifiedScheduler):
    """TensorRT-LLM's rule: vLLM V1's, but a request joins once the KV cache holds it to its last token.

    Source: ``GUARANTEED_NO_EVICT``, the default capacity scheduler policy of TensorRT-LLM 1.0; tokens to come are
    counted together, and a block for each sequence, whose last one is partly filled.
    """

    @cython.cfunc
    def _kept_blocks(self, sequence: Sequence, blocks: cython.longlong) -> cython.longlong:
        """Blocks that the batch and the sequence will still take; 0 if the batch is empty."""
        return self._blocks_to_come(sequence, blocks, 1.0) + len(self.running) if self.running else 0
