"""vLLM's priority scheduling."""

from __future__ import annotations

from bisect import insort

from simulator.serving.engine.common import MANY, cython
from simulator.serving.engine.schedulers.unified import UnifiedScheduler
from simulator.serving.engine.sequence import Sequence, StepPlan, _drop


def _rank(sequence: Sequence) -> tuple[int, float, int]:
    """Sorts the first to be served first."""
    return sequence.priority, sequence.arrival_s, sequence.index


@cython.cclass
class PriorityScheduler(UnifiedScheduler):
    """vLLM V1's rule with ``--scheduling-policy priority``. Of two requests the one with the lower priority value goes
    first, of equals the one that arrived first; the last in that order makes room.

    Source: ``PriorityRequestQueue`` of vllm/v1/core/sched/request_queue.py and ``Scheduler.schedule`` (v0.11): a victim
    that the step had planned already gives its tokens back.
    """

    @cython.ccall
    def add(self, sequence: Sequence) -> None:
        """A request joins the queue at its place."""
        insort(self.waiting, sequence, key=_rank)

    @cython.ccall
    def _plan(self) -> StepPlan:
        """Plan as vLLM V1; drop chunks of preempted sequences."""
        plan: StepPlan = UnifiedScheduler._plan(self)
        if self.preempted:
            plan.decodes = [sequence for sequence in plan.decodes if sequence not in self.preempted]
            plan.counted = MANY
            plan.chunks = [chunk for chunk in plan.chunks if chunk[0] not in self.preempted]
        return plan

    @cython.cfunc
    def _allocate(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        while not self._grow(sequence, blocks):
            victim: Sequence = max(self.running, key=_rank)
            _drop(self.running, victim)
            self.running.append(victim)
            self._preempt_last()
            insort(self.waiting, self.waiting.popleft(), key=_rank)
            if victim is sequence:
                return False
        return True
