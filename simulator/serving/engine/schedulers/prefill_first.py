"""Prompts before sequences that decode, as vLLM V0."""

from __future__ import annotations

from typing import Any

from simulator.serving.engine.common import MANY, cython
from simulator.serving.engine.schedulers.scheduler import Scheduler
from simulator.serving.engine.sequence import Sequence, StepPlan, _drop


@cython.cclass
class PrefillFirstScheduler(Scheduler):
    """vLLM V0's rule: a step either prefills whole prompts or decodes the batch; prompts go first.

    With ``limits.scheduler_steps`` above 1 a batch decodes so many steps before prompts get a turn; sequences that end
    meanwhile stay as padding (multi-step scheduling).
    """

    _left: cython.longlong
    """Decode steps left before the scheduler checks the queue again."""
    _ended: list[Sequence]

    def __init__(self, limits: Any, cache: Any, swap: Any = None) -> None:
        Scheduler.__init__(self, limits, cache, swap)
        self._left = 0
        self._ended = []

    @cython.ccall
    def _plan(self) -> StepPlan:
        """New prompts if any fit, else one decode step of the whole batch."""
        plan: StepPlan = StepPlan()
        if self._left:
            self._left -= 1
            self._decode(plan)
            plan.padding = list(self._ended)
            if plan.steady or plan.decodes or plan.padding:
                return plan
        self._free_ended()
        self._admit(plan, self._budget, True)
        if not plan.chunks:
            self._decode(plan)
            if plan.steady or plan.decodes:
                self._left = self.limits.scheduler_steps - 1
        return plan

    @cython.ccall
    def release(self, sequence: Sequence) -> None:
        """Compute a finished sequence's last step again until the batch is looked at; then free its blocks."""
        _drop(self.running, sequence)
        if self._left:
            self._ended.append(self._repeating(sequence))
        else:
            self._end(sequence)

    @cython.cfunc
    def _free_ended(self) -> None:
        """Free the blocks of finished sequences when the batch is scheduled again."""
        sequence: Sequence
        self._left = 0
        for sequence in self._ended:
            self._end(sequence)
        self._ended = []

    def settle(self) -> None:
        """Remove ended sequences from the batch."""
        self._free_ended()

    @cython.cfunc
    def _works(self) -> cython.bint:
        """True if there is anything to plan: requests, or sequences that have ended and are still in the batch."""
        return bool(Scheduler._works(self) or self._ended)

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
