"""Replicas in simulated time: engines whose steps others may see, wait for and interrupt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from simulator.serving.clock import PLAN, Timeline
from simulator.serving.feed import Feed

if TYPE_CHECKING:
    from simulator.serving.engine import Engine, NoPrefixCache, Scheduler
    from simulator.serving.engine import Sequence as Request


class Handover(Protocol):
    """Where a prefill replica's finished prompts go."""

    samples_first: bool
    """Whether the prefill replica delivers the first token."""

    def prompt_done(self, source: Engine, sequence: Request) -> None:
        """The KV of a prompt is complete and waits in ``source``."""

    def blocks_freed(self, replica: Engine) -> None:
        """A decode replica may have room for another."""


class Replica:
    """An engine and where its requests come from.

    Args:
        engine: its steps.
        feed: where its requests come from.
        make_scheduler: the batching rule with empty caches, asked for after a failure.
        lockstep: ``Lockstep`` of the module that the engine is from.
    """

    def __init__(self, engine: Engine, feed: Feed, make_scheduler: Callable[[], Scheduler], lockstep: Any) -> None:
        self.engine = engine
        self.feed = feed
        self.lockstep = lockstep
        self.rests = False
        """Whether it waits for something to do."""
        self._make_scheduler = make_scheduler

    @property
    def scheduler(self) -> Scheduler:
        """Its queue, its batch and its blocks."""
        scheduler: Scheduler = self.engine.scheduler
        return scheduler

    @property
    def held_blocks(self) -> int:
        """KV blocks that requests hold now."""
        return self.scheduler.used_blocks

    def prefix_cache(self) -> NoPrefixCache:
        """The prefix cache as it is now."""
        cache: NoPrefixCache = self.scheduler.cache
        return cache

    def renew(self) -> None:
        """Start with empty caches; for a replica that has nothing to do."""
        assert not self.scheduler.everything()
        self.engine.scheduler = self._make_scheduler()

    def lose(self, under_way: Iterable[int]) -> list[Request]:
        """Fail: what was in the queues and the caches, and of the requests under way here, is lost."""
        lost = [*self.scheduler.everything(), *map(self.engine.sequence, under_way)]
        self.engine.scheduler = self._make_scheduler()
        return lost

    def begin(self, now: float) -> bool:
        """Decide on a step, ``now`` or as early as the engine can; False when there is nothing to do."""
        engine = self.engine
        while True:
            engine.collect(engine.seen)
            if engine.begin(engine.now):
                return True
            now = max(engine.now, now)
            if engine.seen >= now:
                return False
            # No step runs over which the next one was decided.
            engine.now = engine.seen = now


class StepLoop:
    """The steps of replicas behind one router: each runs by itself to the next moment at which others could see it.

    Args:
        env: simulated time.
        replicas: by their numbers; at rest.
    """

    def __init__(self, env: Timeline, replicas: Sequence[Replica]) -> None:
        self._env = env
        self._replicas = replicas
        self._planned = replicas[0].lockstep([replica.engine for replica in replicas])
        self._due: list[int] = []
        """Replicas that plan at the end of this instant."""
        self._called = False
        self._armed_s = inf
        """When to look at what is planned."""
        for replica in replicas:
            replica.rests = True

    def wake(self, index: int) -> None:
        """Let a replica that waits look again."""
        replica = self._replicas[index]
        if replica.rests:
            replica.rests = False
            engine = replica.engine
            engine.now = engine.seen = max(engine.now, self._env.now)
            self._due.append(index)
            self._call()

    def stop(self, index: int) -> None:
        """A replica has failed: it does nothing until ``resume``."""
        self._planned.drop(index)
        self._due = [due for due in self._due if due != index]
        self._replicas[index].rests = False

    def resume(self, index: int) -> None:
        """A replica is back."""
        self._replicas[index].rests = True
        self.wake(index)

    def _call(self) -> None:
        """Plan in this instant, after everything else."""
        if not self._called:
            self._called = True
            self._env.call(self._plan, priority=PLAN)

    def _plan(self, _: object = None) -> None:
        """Decide on the next step of every replica that is due."""
        env = self._env
        self._called = False
        due, self._due = self._due, []
        for index in due:
            replica = self._replicas[index]
            if replica.begin(env.now):
                self._planned.add(index)
                continue
            replica.rests = True
            next_s = replica.feed.next_s()
            if next_s < inf:
                env.call(self.wake, index, max(0.0, next_s - env.now))  # a request has passed the front end
        self._go()

    def _go(self) -> None:
        """Run the steps that nobody can see, and come back for the first that somebody can."""
        env = self._env
        self._planned.run(env.peek())
        next_s = self._planned.next_s
        if next_s < self._armed_s:
            self._armed_s = next_s
            env.call(self._commit, next_s, max(0.0, next_s - env.now))

    def _commit(self, armed_s: float) -> None:
        """Hand out the tokens of the steps that end in this instant."""
        if armed_s != self._armed_s:
            return
        self._armed_s = inf
        # What was planned may be gone with a replica that failed.
        for index in self._planned.take() if self._planned.next_s <= armed_s else ():
            engine = self._replicas[index].engine
            if engine.planned:
                engine.commit()
            self._due.append(index)
        if self._env.peek() <= self._env.now:  # something else happens in this instant, and planning comes last
            self._call()
        else:
            self._plan()
