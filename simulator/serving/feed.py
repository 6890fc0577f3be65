"""How requests reach a replica: known in advance, sent when others finish, or handed over by a router."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

import numpy as np
import simpy
from numpy.typing import NDArray

from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Feed(Protocol):
    """Source of one replica's requests."""

    shared: bool
    """Whether a router acts on the replica while it runs; if not, the replica is alone in its simulated time."""

    def take(self, now: float) -> Sequence[int]:
        """Requests that have arrived by ``now`` and were not taken before, in order of arrival."""

    def next_s(self) -> float:
        """Earliest time at which another request may arrive unannounced by an interrupt; inf if none is known."""

    def finished(self, request: int, now: float) -> None:
        """One of the replica's requests has ended."""

    def pending(self, times_s: FloatArray) -> IntArray:
        """Requests that have arrived by each of the (rising) times and were not taken yet."""

    def wait(self, env: simpy.Environment) -> simpy.Event | None:
        """Event at which to look again when there is nothing to do, or None when no request will ever come."""


class OpenFeed:
    """Arrivals at times that nothing in the replica can change.

    Args:
        requests: indices in order of arrival.
        log: where the arrival times stand.
    """

    shared = False

    def __init__(self, requests: Sequence[int], log: RunLog) -> None:
        self._requests = requests
        self._times_s = np.frombuffer(log.arrival_s)[np.asarray(requests, dtype=np.int64)]
        self._arrival_s = [*self._times_s.tolist(), inf]
        self._next = 0

    def take(self, now: float) -> Sequence[int]:
        """Requests that have arrived by ``now``."""
        first = self._next
        if self._arrival_s[first] > now:
            return ()
        self._next = bisect_right(self._arrival_s, now, first)
        return self._requests[first : self._next]

    def next_s(self) -> float:
        """Time of the next arrival."""
        time: float = self._arrival_s[self._next]
        return time

    def finished(self, request: int, now: float) -> None:
        """Arrivals do not depend on completions."""

    def pending(self, times_s: FloatArray) -> IntArray:
        """Untaken arrivals by each time."""
        return np.searchsorted(self._times_s, times_s, side="right") - self._next

    def wait(self, env: simpy.Environment) -> simpy.Event | None:
        """The next arrival."""
        return None if self.next_s() == inf else env.timeout(max(0.0, self.next_s() - env.now))


class ClosedFeed:
    """A closed loop: ``max_concurrency`` requests outstanding, the next sent when one ends."""

    shared = False

    def __init__(self, requests: Sequence[int], max_concurrency: int, log: RunLog) -> None:
        self._requests = requests
        self._arrival_s = log.arrival_s
        self._sent = 0
        self._arrived: list[int] = []
        for _ in range(min(max_concurrency, len(requests))):
            self._send(0.0)

    def take(self, now: float) -> Sequence[int]:
        """Requests sent so far."""
        taken, self._arrived = self._arrived, []
        return taken

    def next_s(self) -> float:
        """Requests are sent only when one of this replica's ends."""
        return inf

    def finished(self, request: int, now: float) -> None:
        """Send the next request."""
        if self._sent < len(self._requests):
            self._send(now)

    def pending(self, times_s: FloatArray) -> IntArray:
        """Nothing arrives but when a request ends, and then it is taken at once."""
        return np.zeros(len(times_s), dtype=np.int64)

    def wait(self, env: simpy.Environment) -> simpy.Event | None:
        """An idle replica has answered everything."""
        return None

    def _send(self, now: float) -> None:
        request = self._requests[self._sent]
        self._arrival_s[request] = now
        self._arrived.append(request)
        self._sent += 1


class RoutedFeed:
    """Requests handed over by a router while the simulation runs; what the router knows of a replica.

    Args:
        env: simulated time.
        index: number of the replica.
        limits: of the replica.
        on_left: told of every request that no longer occupies the replica.
        on_ended: told when a request has ended.
    """

    shared = True

    def __init__(
        self,
        env: simpy.Environment,
        index: int,
        limits: EngineLimits,
        on_left: Callable[[int, RoutedFeed], None],
        on_ended: Callable[[int], None],
    ) -> None:
        self.index = index
        self.limits = limits
        self.block_size = limits.block_size
        self.capacity_tokens = limits.num_blocks * limits.block_size
        """Tokens that the replica's KV cache holds."""
        self.outstanding = 0
        """Requests handed over and not yet ended."""
        self.cached_tokens: Callable[[int], int] = _nothing_cached
        """Prompt tokens of a request that the replica's prefix cache holds now."""
        self.process: simpy.Process | None = None
        """The process to interrupt when a request arrives while it advances through a span."""
        self.down = False
        """Whether the replica has failed and is not back yet."""
        self._env = env
        self._on_left = on_left
        self._on_ended = on_ended
        self._arrived: list[int] = []
        self._arrived_s: list[float] = []
        self._wake: simpy.Event | None = None
        """What the idle replica waits for."""

    def put(self, request: int) -> None:
        """Hand over a request now."""
        self._arrived.append(request)
        self._arrived_s.append(self._env.now)
        self.outstanding += 1
        if self._wake is not None:
            self.wake()
        elif self.process is not None and self.process.is_alive:
            self.process.interrupt()

    def wake(self) -> None:
        """Let an idle replica look again."""
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    def take(self, now: float) -> Sequence[int]:
        """Requests handed over so far."""
        self._wake = None
        taken, self._arrived, self._arrived_s = self._arrived, [], []
        return taken

    def next_s(self) -> float:
        """Arrivals announce themselves by interrupting the replica."""
        return inf

    def left(self, request: int) -> None:
        """A request no longer occupies the replica."""
        self.outstanding -= 1
        self._on_left(request, self)

    def finished(self, request: int, now: float) -> None:
        """Tell the router."""
        self.left(request)
        self._on_ended(request)

    def pending(self, times_s: FloatArray) -> IntArray:
        """Requests handed over and not taken, by each time."""
        return np.searchsorted(np.asarray(self._arrived_s), times_s, side="right")

    def wait(self, env: simpy.Environment) -> simpy.Event | None:
        """The next hand-over."""
        self._wake = env.event()
        return self._wake


def _nothing_cached(request: int) -> int:
    """Where no prefix is cached."""
    return 0
