"""Data-parallel attention: one scheduler for each group of a replica."""

from __future__ import annotations

from typing import Any

from simulator.serving.engine.common import INFINITE, cython
from simulator.serving.engine.schedulers.scheduler import Scheduler
from simulator.serving.engine.sequence import Sequence, StepPlan


@cython.cclass
class GroupedScheduler(Scheduler):
    """Attention data parallelism: groups that step together. Each has a queue, a batch, a token budget and blocks of
    its own. A request goes to one of them when it arrives, and stays; a group that has nothing to do takes part in the
    step with a dummy batch, because the experts of a layer wait for all.

    Source: ``DPEngineCoreProc`` and ``DPLBAsyncMPClient.get_core_engine_for_request`` of vLLM (v0.10);
    ``prepare_mlp_sync_batch`` and ``DataParallelController.round_robin_scheduler`` of SGLang (v0.5).

    Args:
        limits: of each group.
        groups: a scheduler for each.
        swap: host memory of all groups together, for the seconds of copies.
    """

    groups = cython.declare(list, visibility="public")
    _round_robin: cython.bint
    _next: cython.longlong
    _wait_limit: cython.longlong
    """Steps that prompts wait for prompts of the other groups."""

    def __init__(self, limits: Any, groups: list[Any], swap: Any = None) -> None:
        Scheduler.__init__(self, limits, groups[0].cache, swap)
        self.groups = groups
        self._round_robin = limits.round_robin
        self._next = 0
        self._wait_limit = limits.dp_wait_limit_steps

    @cython.ccall
    def add(self, sequence: Sequence) -> None:
        """A request joins the queue of a group."""
        group: Scheduler
        sequence.group = self._next if self._round_robin else self._fewest()[0]
        self._next = (self._next + 1) % len(self.groups)
        group = self.groups[sequence.group]
        group.add(sequence)

    @cython.cfunc
    def _fewest(self) -> list[int]:
        """Numbers of the groups, those with the fewest requests first: waiting ones count four times, as in vLLM."""
        group: Scheduler
        loads = []
        for group in self.groups:
            coming: cython.longlong = group._queued() + len(group.ready) + len(group.incoming)
            loads.append(4 * coming + len(group.running))
        return sorted(range(len(loads)), key=loads.__getitem__)

    def everything(self) -> list[Sequence]:
        """All sequences that this replica would lose if it failed."""
        return [sequence for group in self.groups for sequence in group.everything()]

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def loaded_s(self) -> cython.double:
        """Time at which the next prefix of a group has come from a store."""
        group: Scheduler
        first: cython.double = INFINITE
        for group in self.groups:
            first = min(first, group.loaded_s())
        return first

    @cython.ccall
    def save(self) -> None:
        """Begin to copy what each group computed to the stores that keep it."""
        group: Scheduler
        for group in self.groups:
            group.cache.save()

    def hold(self, sequence: Sequence) -> None:
        """A sequence leaves the batch and keeps its blocks until another replica has fetched them."""
        self.groups[sequence.group].hold(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """The KV of a held sequence has been fetched."""
        self.groups[sequence.group].let_go(sequence)

    def reserve(self, sequence: Sequence) -> int | None:
        """Blocks for a sequence whose KV another replica sends, in the first group that has room."""
        for number in self._fewest():
            cached: int | None = self.groups[number].reserve(sequence)
            if cached is not None:
                sequence.group = number
                return cached
        return None

    def cancel(self, sequence: Sequence) -> None:
        """Drop an incoming sequence whose KV will not arrive."""
        self.groups[sequence.group].cancel(sequence)

    def arrive(self, sequence: Sequence, now: float) -> None:
        """The KV of an incoming sequence is here."""
        self.groups[sequence.group].arrive(sequence, now)

    @cython.ccall
    def plan(self) -> StepPlan:
        """The next step: that of every group."""
        group: Scheduler
        part: StepPlan
        plan: StepPlan = StepPlan()
        plan.parts, plan.padding = [], []
        self.preempted = []
        self.running = []
        closed: cython.bint = self._wait_limit > 0 and self._waits()
        for group in self.groups:
            group.closed = closed
            group.seen_s, group.query_len = self.seen_s, self.query_len
            if self.counting:
                group.count(self.steady.windows)
            part = group.plan()
            part.count()
            part.cut = 0  # a group's last draft is verified whole: one query length stands for all groups
            plan.parts.append(part)
            plan.steady += part.steady
            plan.cached += part.cached
            plan.least = min(plan.least, part.least)
            plan.chunks += part.chunks
            plan.decodes += part.decodes
            plan.padding += part.padding
            plan.blocks_out += part.blocks_out
            plan.blocks_in += part.blocks_in
            self.preempted += group.preempted
            self.running += group.running
        plan.counted = len(plan.decodes)
        return plan

    @cython.cfunc
    def _waits(self) -> cython.bint:
        """True if prompts wait until every group has one, so that no group idles while another computes its prompts.
        Not where a group has nothing to decode meanwhile, and not for ever.

        Source: ``_balance_adp_requests`` of tensorrt_llm/_torch/pyexecutor/py_executor.py (v1.0).
        """
        group: Scheduler
        some: cython.bint = False
        every: cython.bint = True
        busy: cython.bint = True
        for group in self.groups:
            asks: cython.bint = len(group.waiting) > 0
            some |= asks
            every &= asks
            busy &= len(group.running) > 0
        if every or not some or not busy or self._waited >= self._wait_limit:
            self._waited = 0
            return False
        self._waited += 1
        return True

    @cython.ccall
    def in_step(self, plan: StepPlan) -> list[Sequence]:
        """The batch by whose size a policy chooses, of all groups."""
        group: Scheduler
        sequences: list[Sequence] = []
        for number, group in enumerate(self.groups):
            sequences += group.in_step(plan.parts[number])
        return sequences

    @cython.ccall
    def release(self, sequence: Sequence) -> None:
        """A finished sequence leaves its group."""
        group: Scheduler = self.groups[sequence.group]
        group.release(sequence)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _used(self) -> cython.longlong:
        group: Scheduler
        used: cython.longlong = 0
        for group in self.groups:
            used += group._used()
        return used

    @cython.cfunc
    def _works(self) -> cython.bint:
        group: Scheduler
        works: cython.bint = False
        for group in self.groups:
            group.seen_s = self.seen_s
            works |= group._works()
        return works

    @cython.cfunc
    def _queued(self) -> cython.longlong:
        group: Scheduler
        queued: cython.longlong = 0
        for group in self.groups:
            queued += group._queued()
        return queued
