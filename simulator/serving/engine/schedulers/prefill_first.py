"""Prompts before sequences that decode, as vLLM V0."""

from __future__ import annotations

from simulator.serving.engine.common import MANY, cython
from simulator.serving.engine.schedulers.scheduler import Scheduler
from simulator.serving.engine.sequence import Sequence, StepPlan


@cython.cclass
class PrefillFirstScheduler(Scheduler):
    """vLLM V0's rule: a step either prefills whole prompts or decodes the batch; prompts go first."""

    @cython.ccall
    def _plan(self) -> StepPlan:
        """New prompts if any fit, else one decode step of the whole batch."""
        plan: StepPlan = StepPlan()
        self._admit(plan, self._budget, True)
        return plan if plan.chunks else self._decode(plan)

    @cython.cfunc
    def _decode(self, plan: StepPlan) -> StepPlan:
        """One decode step of the whole batch."""
        sequence: Sequence
        position: cython.longlong = self._lead(plan, MANY)
        while position < len(self.running):
            sequence = self.running[position]
            if not self._allocate_decode(sequence):
                break
            plan.decodes.append(sequence)
            position += 1
        return plan
