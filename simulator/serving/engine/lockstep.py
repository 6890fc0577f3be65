"""Replicas of a fleet, stepped in order of time."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from simulator.serving.engine.common import INFINITE, cython
from simulator.serving.engine.loop import Engine


@cython.final
@cython.cclass
class Lockstep:
    """Engines behind one router in simulated time. Each runs by itself to the next moment at which others could see it.
    Planned steps are processed in the order of their ends; on a tie, the one that was planned first.

    Args:
        env: simulated time, a ``Timeline``.
        phase: phase of an instant in which replicas plan: the last.
        engines: of all replicas; at rest, with sources that a router fills.
    """

    watch = cython.declare(object, visibility="public")
    """Called to commit the step of an engine where each step is observed; None: none is."""
    _env: Any
    _phase: Any
    _engines: list[Any]
    _rests: cython.longlong[::1]
    """1 for each engine that waits for something to do, else 0."""
    _due: list[Any]
    """Engines that plan at the end of this instant."""
    _called: cython.bint
    _armed_s: cython.double
    """Time of the scheduled call that processes planned steps."""
    _ends: cython.double[::1]
    _numbers: cython.longlong[::1]
    _tells: cython.longlong[::1]
    """Per engine: end of its planned step, number of that step in planning order, 1 if other engines may react."""
    _heap: cython.longlong[::1]
    _size: cython.longlong
    _count: cython.longlong

    def __init__(self, env: Any, phase: int, engines: list[Any]) -> None:
        count = len(engines)
        self.watch = None
        self._env, self._phase, self._engines = env, phase, engines
        self._rests = array("q", [1]) * count
        self._due = []
        self._called = False
        self._armed_s = INFINITE
        self._ends = array("d", [0.0]) * count
        self._numbers, self._tells, self._heap = (array("q", [0]) * count for _ in range(3))
        self._size = self._count = 0

    @cython.ccall
    def wake(self, index: cython.longlong, at_s: cython.double = 0.0) -> None:
        """Let an idle replica plan again, now or at a later time."""
        engine: Engine
        if not self._rests[index]:
            return
        now: cython.double = self._env.now
        if at_s > now:
            self._env.call(self.wake, index, at_s - now)
            return
        self._rests[index] = 0
        engine = self._engines[index]
        engine.now = engine.seen = max(engine.now, now)
        self._due.append(index)
        self._call()

    def stop(self, index: int) -> None:
        """Stop a failed replica until ``resume``."""
        kept = [place for place in np.asarray(self._heap)[: self._size].tolist() if place != index]
        self._size = 0
        for place in kept:
            self._push(place)
        self._due = [due for due in self._due if due != index]
        self._rests[index] = 0

    def resume(self, index: int) -> None:
        """A replica is back."""
        self._rests[index] = 1
        self.wake(index)

    @cython.cfunc
    def _call(self) -> None:
        """Plan in this instant, after everything else."""
        if not self._called:
            self._called = True
            self._env.call(self.plan, None, 0.0, self._phase)

    @cython.ccall
    def plan(self, _: Any = None) -> None:
        """Decide on the next step of every replica that is due."""
        engine: Engine
        index: cython.longlong
        now: cython.double = self._env.now
        self._called = False
        due, self._due = self._due, []
        for index in due:
            engine = self._engines[index]
            if self._begins(engine, now):
                self._add(index)
                continue
            self._rests[index] = 1
            next_s: cython.double = min(engine.coming_s[0], engine.scheduler.loaded_s())
            if next_s < INFINITE:  # a request has yet to pass the API server, or a prefix to come from a store
                self._env.call(self.wake, index, max(0.0, next_s - now))
        self._go()

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _begins(self, engine: Engine, now: cython.double) -> cython.bint:
        """Plan a step at ``now`` or as early as the engine can; False if there is nothing to do."""
        while True:
            engine.collect(engine.seen)
            if engine.begin(engine.now):
                return True
            now = max(engine.now, now)
            if engine.seen >= now:
                return False
            # No step runs over which the next one was decided.
            engine.now = engine.seen = now

    @cython.cfunc
    def _go(self) -> None:
        """Run the steps that need no reaction, and schedule a call for the first one that does."""
        self._run(self._env.peek())
        if self._size and self._ends[self._heap[0]] < self._armed_s:
            self._armed_s = self._ends[self._heap[0]]
            self._env.call(self.commit, self._armed_s, max(0.0, self._armed_s - self._env.now))

    @cython.ccall
    def commit(self, armed_s: cython.double) -> None:
        """Hand out the tokens of the steps that end in this instant."""
        engine: Engine
        index: cython.longlong
        if armed_s != self._armed_s:
            return
        self._armed_s = INFINITE
        # What was planned may be gone with a replica that failed.
        if self._size and self._ends[self._heap[0]] <= armed_s:
            for index in self._take():
                engine = self._engines[index]
                if engine.planned and self.watch is None:
                    engine.commit()
                elif engine.planned:
                    self.watch(engine)
                self._due.append(index)
        if self._env.peek() <= self._env.now:  # something else happens in this instant, and planning comes last
            self._call()
        else:
            self.plan()

    @cython.cfunc
    def _add(self, index: cython.longlong) -> None:
        """An engine has planned a step."""
        engine: Engine = self._engines[index]
        # An engine without a step has run out of work; others must hear of that too.
        self._ends[index] = engine.end if engine.planned else engine.now
        self._tells[index] = engine.tells() if engine.planned else 1
        self._numbers[index] = self._count
        self._count += 1
        self._push(index)

    @cython.cfunc
    def _push(self, index: cython.longlong) -> None:
        place: cython.longlong = self._size
        above: cython.longlong
        self._size += 1
        while place:
            above = (place - 1) // 2
            if not self._first(index, self._heap[above]):
                break
            self._heap[place] = self._heap[above]
            place = above
        self._heap[place] = index

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _pop(self) -> cython.longlong:
        """Take out the first."""
        place: cython.longlong = 0
        below: cython.longlong
        earliest: cython.longlong = self._heap[0]
        self._size -= 1
        moved: cython.longlong = self._heap[self._size]
        while True:
            below = 2 * place + 1
            if below >= self._size:
                break
            if below + 1 < self._size and self._first(self._heap[below + 1], self._heap[below]):
                below += 1
            if not self._first(self._heap[below], moved):
                break
            self._heap[place] = self._heap[below]
            place = below
        self._heap[place] = moved
        return earliest

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _first(self, one: cython.longlong, other: cython.longlong) -> cython.bint:
        """True if one step comes before another."""
        if self._ends[one] != self._ends[other]:
            return self._ends[one] < self._ends[other]
        return self._numbers[one] < self._numbers[other]

    @cython.cfunc
    def _take(self) -> list[int]:
        """Take out the steps that end next, all at the same time."""
        replicas: list[int] = [self._pop()]
        while self._size and self._ends[self._heap[0]] == self._ends[replicas[0]]:
            replicas.append(self._pop())
        return replicas

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _alone(self) -> cython.bint:
        """True if no other step ends with the next."""
        next_s: cython.double = self._ends[self._heap[0]]
        return not (
            (self._size > 1 and self._ends[self._heap[1]] == next_s)
            or (self._size > 2 and self._ends[self._heap[2]] == next_s)
        )

    @cython.cfunc
    def _run(self, horizon: cython.double) -> None:
        """Run the steps that end before ``horizon``, up to the first step that other engines may react to."""
        engine: Engine
        index: cython.longlong
        tells: cython.bint
        while self._size and self._ends[self._heap[0]] < horizon:
            index = self._heap[0]
            if self._alone():
                if self._tells[index]:
                    return
                engine = self._engines[self._pop()]
                engine.commit()
                engine.collect(engine.seen)
                engine.begin(engine.now)
                self._add(index)
                continue
            replicas: list[int] = self._take()
            tells = False
            for index in replicas:
                tells |= self._tells[index]
            if tells:
                for index in replicas:
                    self._push(index)
                return
            for index in replicas:
                engine = self._engines[index]
                engine.commit()
            for index in replicas:
                engine = self._engines[index]
                engine.collect(engine.seen)
                engine.begin(engine.now)
                self._add(index)
