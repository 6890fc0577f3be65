"""SGLang's scheduler: prompts first, admission by its new-token ratio."""

from __future__ import annotations

from simulator.serving.engine.common import cython
from simulator.serving.engine.schedulers.prefill_first import PrefillFirstScheduler
from simulator.serving.engine.sequence import Sequence, StepPlan

NEW_TOKEN_RATIO = 0.7
"""Share of the output still to come that SGLang keeps room for (``SGLANG_INIT_NEW_TOKEN_RATIO``)."""


@cython.cclass
class SglangScheduler(PrefillFirstScheduler):
    """SGLang's rule: prompts go first, cut where the token budget of a step ends; a step decodes where none waits.

    Source: ``get_next_batch_to_run`` and ``get_new_batch_prefill`` of python/sglang/srt/managers/scheduler.py (v0.5)
    with its defaults: ``chunked_prefill_size`` counts all prompts of a step, ``enable_mixed_chunk`` is off.
    """

    @cython.ccall
    def _plan(self) -> StepPlan:
        """The prompt that was cut, then new prompts, until the budget is spent; else one decode step."""
        sequence: Sequence
        tokens: cython.longlong
        plan: StepPlan = StepPlan()
        budget: cython.longlong = self._budget
        position: cython.longlong = self.steady.count
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            position += 1
            if sequence.decoding:
                continue
            tokens = min(sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens, budget)
            if not self._allocate(sequence, self._blocks(sequence.computed_tokens + tokens)):
                break
            self._cache_prompt(sequence, sequence.computed_tokens + tokens)
            plan.chunks.append((sequence, tokens))
            budget -= tokens
        if not self.preempted:
            self._admit(plan, budget, not self._chunked)
        return plan if plan.chunks else self._decode(plan)

    @cython.cfunc
    def _kept_blocks(self, sequence: Sequence, blocks: cython.longlong) -> cython.longlong:
        """KV tokens to keep free under ``new_token_ratio``; 0 if the batch is empty.

        Source: ``add_one_req`` and ``rem_total_tokens`` of python/sglang/srt/managers/schedule_policy.py (v0.5).
        """
        return self._blocks_to_come(sequence, blocks, NEW_TOKEN_RATIO) if self.running else 0
