"""vLLM's scheduler under pipeline parallelism."""

from __future__ import annotations

from simulator.serving.engine.common import cython
from simulator.serving.engine.schedulers.unified import UnifiedScheduler
from simulator.serving.engine.sequence import Sequence, StepPlan, _drop


@cython.cclass
class PipelinedScheduler(UnifiedScheduler):
    """vLLM V1's rule while earlier batches are still in the pipeline.

    A decoding sequence waits for its token; the next chunk of a prompt may follow the one before through the
    pipeline. A sequence in flight is not preempted. Blocks, budget and order are those of ``UnifiedScheduler``; the
    budget and ``max_num_seqs`` hold for each batch and for all running sequences, as in vLLM.

    Source: ``Scheduler.schedule`` and ``EngineCore.step_with_batch_queue`` of vLLM V1 (v0.9 to v0.11).
    """

    @cython.ccall
    def _plan(self) -> StepPlan:
        """Plan of a batch in addition to the batches in flight; may be empty."""
        sequence: Sequence
        plan: StepPlan = UnifiedScheduler._plan(self)
        for sequence in self.in_step(plan):
            sequence.in_flight += 1
        return plan

    @cython.cfunc
    def _allocate(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        """Allocate blocks for a sequence, preempting sequences not in flight from the batch's end back to it."""
        victim: Sequence
        place: cython.longlong
        while not self._grow(sequence, blocks):
            place = len(self.running) - 1
            victim = self.running[place]
            while victim is not sequence and victim.in_flight:
                place -= 1
                victim = self.running[place]
            if victim.in_flight:
                return False
            _drop(self.running, victim)
            self.running.append(victim)
            self._preempt_last()
            if victim is sequence:
                return False
        return True
