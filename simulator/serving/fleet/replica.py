"""Replicas in simulated time: engines whose steps others may see, wait for and interrupt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from simulator.serving.request_source import RequestSource

if TYPE_CHECKING:
    from simulator.serving.engine import Engine, NoPrefixCache, Scheduler
    from simulator.serving.engine import Sequence as Request


class KvTransfers(Protocol):
    """Destination of a prefill replica's finished prompts."""

    samples_first: bool
    """True if the prefill replica samples the first token."""

    def prompt_done(self, source: Engine, sequence: Request) -> None:
        """Called when the KV cache of a prompt is complete in ``source``."""

    full: bool
    """True if finished prompts wait for room in a decode replica."""

    def call(self) -> None:
        """Called when a decode replica may have free KV blocks again."""


class ServingReplica:
    """An engine and the source of its requests.

    Args:
        engine: engine that plans the steps.
        source: source of the replica's requests.
        make_scheduler: the batching rule with empty caches, made after a failure; True: on another server.
        lockstep: ``Lockstep`` of the module that the engine is from.
    """

    def __init__(
        self, engine: Engine, source: RequestSource, make_scheduler: Callable[[bool], Scheduler], lockstep: Any
    ) -> None:
        self.engine = engine
        self.source = source
        self.lockstep = lockstep
        self.stop: Callable[[], None]
        self.resume: Callable[[], None]
        """Take the replica out of its lockstep, and back."""
        self._make_scheduler = make_scheduler

    @property
    def scheduler(self) -> Scheduler:
        """Scheduler of the replica: queue, batch and blocks."""
        scheduler: Scheduler = self.engine.scheduler
        return scheduler

    @property
    def held_blocks(self) -> int:
        """Number of KV blocks allocated to requests after the last step."""
        self.scheduler.settle()
        return self.scheduler.used_blocks

    def prefix_cache(self) -> NoPrefixCache:
        """The current prefix cache."""
        cache: NoPrefixCache = self.scheduler.cache
        return cache

    def renew(self) -> None:
        """Start on another server with empty caches; for a replica that has nothing to do."""
        assert not self.scheduler.everything()
        self.engine.scheduler = self._make_scheduler(True)

    def lose(self, under_way: Iterable[int]) -> list[Request]:
        """Fail: empty queues and caches, but for disks; returns the lost requests, including the ones ``under_way``."""
        lost = [*self.scheduler.everything(), *map(self.engine.sequence, under_way)]
        self.engine.scheduler = self._make_scheduler(False)
        return lost
