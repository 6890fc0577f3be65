"""Static batching: a batch runs until its last sequence has ended."""

from __future__ import annotations

from typing import Any

from simulator.serving.engine.common import cython
from simulator.serving.engine.schedulers.scheduler import Scheduler, _before_last
from simulator.serving.engine.sequence import Sequence, StepPlan, _drop


@cython.cclass
class StaticScheduler(Scheduler):
    """A batch is filled once and runs until its last request is done; finished requests keep their place as padding."""

    _padding: list[Sequence]

    def __init__(self, limits: Any, cache: Any, swap: Any = None) -> None:
        Scheduler.__init__(self, limits, cache, swap)
        self._padding = []

    @cython.ccall
    def _plan(self) -> StepPlan:
        """Prefill the batch chunk by chunk, then decode all of it."""
        sequence: Sequence
        tokens: cython.longlong
        plan: StepPlan = StepPlan()
        budget: cython.longlong = self._budget
        if not self.running:
            self._fill()
        for sequence in self.running:
            if not sequence.decoding and budget > 0:
                tokens = min(sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens, budget)
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
                budget -= tokens
        if not plan.chunks:
            plan.decodes = list(self.running)
            plan.padding = list(self._padding)
        return plan

    @cython.ccall
    def release(self, sequence: Sequence) -> None:
        """A finished request keeps its blocks until the whole batch is done, and repeats the step of its last token."""
        _drop(self.running, sequence)
        self._padding.append(self._repeating(sequence))
        if not self.running:
            for finished in self._padding:
                self._end(finished)
            self._padding = []

    @cython.cfunc
    def _fill(self) -> None:
        sequence: Sequence
        while self.waiting and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            blocks = max(self._blocks(sequence.known_tokens), self._blocks(_before_last(sequence) + self._reserved))
            self._evict_idle()
            hash_blocks, cached, in_use = self.cache.match(sequence.index, sequence.known_tokens)
            if self._used() + blocks - in_use > self._num_blocks - self._watermark - self._withheld():
                break
            self.waiting.popleft()
            self._start(sequence, hash_blocks, cached, blocks)
