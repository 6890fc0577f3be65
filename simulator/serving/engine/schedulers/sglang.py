"""SGLang's scheduler: prompts first, admission by its new-token ratio."""

from __future__ import annotations

from typing import Any

from simulator.serving.engine.common import cython
from simulator.serving.engine.schedulers.prefill_first import PrefillFirstScheduler
from simulator.serving.engine.sequence import Sequence, StepPlan

NEW_TOKEN_RATIO, LEAST_SHARE, DECAY_STEPS, RETRACT_STEPS, GROUPS_SHARE = 0.7, 0.14, 600, 20, 0.3
"""``SGLANG_INIT_NEW_TOKEN_RATIO``, ``_MIN_NEW_TOKEN_RATIO_FACTOR``, ``_NEW_TOKEN_RATIO_DECAY_STEPS`` and
``_RETRACT_DECODE_STEPS`` of SGLang 0.5; conservativeness with attention groups (``server_args.py``)."""


@cython.cclass
class SglangScheduler(PrefillFirstScheduler):
    """SGLang's rule: prompts go first, cut where the token budget of a step ends; a step decodes where none waits.

    Source: ``get_next_batch_to_run`` and ``get_new_batch_prefill`` of python/sglang/srt/managers/scheduler.py (v0.5)
    with its defaults: ``chunked_prefill_size`` counts all prompts of a step, ``enable_mixed_chunk`` is off.
    """

    _first_ratio: cython.double
    _ratio: cython.double
    """Share of the output still to come that admission keeps room for."""

    def __init__(self, limits: Any, cache: Any, swap: Any = None) -> None:
        PrefillFirstScheduler.__init__(self, limits, cache, swap)
        self._first_ratio = self._ratio = NEW_TOKEN_RATIO * (GROUPS_SHARE if limits.groups > 1 else 1.0)

    @cython.ccall
    def _plan(self) -> StepPlan:
        """The prompt that was cut, then new prompts, until the budget is spent; else one decode step."""
        sequence: Sequence
        tokens: cython.longlong
        plan: StepPlan = StepPlan()
        budget: cython.longlong = self._budget
        position: cython.longlong = self.steady.count
        if not self.running:
            self._ratio = self._first_ratio
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
        if not plan.chunks:
            self._decode(plan)
            self._adapt()
        return plan

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def repeat(self, plan: StepPlan) -> cython.bint:
        """Repeat a decode step, and lower the share of outputs to keep room for."""
        if not PrefillFirstScheduler.repeat(self, plan):
            return False
        self._adapt()
        return True

    @cython.cfunc
    def _adapt(self) -> None:
        """Lower ``new_token_ratio`` after a decode step; after a retraction, set it to the share of outputs generated.

        Source: ``update_running_batch`` of scheduler.py and ``retract_decode`` of schedule_batch.py (v0.5.9).
        """
        sequence: Sequence
        total: cython.longlong = 0
        coming: cython.longlong = self.steady.left
        if not self.preempted:
            least: cython.double = self._first_ratio * LEAST_SHARE
            self._ratio = max(least, self._ratio - (self._first_ratio - least) / DECAY_STEPS)
            return
        for sequence in self.running:
            total += sequence.output_tokens
        for sequence in self.running[self.steady.count :]:
            coming += sequence.output_tokens - sequence.generated_tokens
        self._ratio = min(1.0, (total - coming + RETRACT_STEPS * len(self.running)) / (total + 1))

    @cython.cfunc
    def _kept_blocks(self, sequence: Sequence, blocks: cython.longlong) -> cython.longlong:
        """KV blocks to keep free under ``new_token_ratio``; 0 if the batch is empty.

        Source: ``add_one_req`` and ``rem_total_tokens`` of python/sglang/srt/managers/schedule_policy.py (v0.5).
        """
        return self._blocks_to_come(sequence, blocks, self._ratio) if self.running else 0
