"""Sources of a replica's requests: known in advance, sent when others finish, or routed during the run."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from simulator.serving.clock import on_grid
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog

if TYPE_CHECKING:
    from simulator.serving.timeline import Timeline


Known = tuple["memoryview[Any]", "memoryview[Any]", "array[int]", "memoryview[Any]"]
"""Request numbers, times at which the engine sees them, a one-element counter of requests taken, and seconds of work.

The work is that of an API server that also streams: times are then those of arrival, until it begins with a request.
"""


class RequestSource(Protocol):
    """Source of one replica's requests."""

    known: Known | None
    """All requests, the time at which each is seen (then infinity), and the count taken; None if not known in
    advance, or if requests depend on the end of others."""
    coming_s: array[float]
    """One element: earliest time in seconds at which the engine may see another request; used where ``known`` is
    None."""
    sent_s: array[float]
    """One element: time in seconds at which the next request in the API server's queue was sent; inf if none."""
    free_s: array[float]
    """One element: time in seconds at which the API server becomes idle."""

    def take(self, now: float) -> Sequence[int]:
        """Requests that the engine has seen by ``now`` and did not take before, in order of arrival."""

    def next_s(self) -> float:
        """Earliest time at which another request may arrive unannounced by an interrupt; inf if none is known."""

    def join(self, now: float) -> None:
        """Let the API server begin with the requests that it comes to by ``now``; tokens that come later go first."""

    def finished(self, request: int, now: float) -> None:
        """Record that one of the replica's requests has ended: its client has the last token at ``now``."""


class DueRequests:
    """Requests sent to an engine that it has not seen yet. Its API server processes them one by one, in order.

    Args:
        limits: limits of the replica, with the delays of its API server.
        log: log with the prompts' lengths.
    """

    known: Known | None = None

    def __init__(self, limits: EngineLimits, log: RunLog) -> None:
        self.limits = limits
        self._input_tokens = log.input_tokens
        self._latency_s: float = on_grid(limits.api_server_s)
        self.free_s, self.sent_s = array("d", [0.0]), array("d", [inf])
        self._sent: deque[tuple[float, int]] = deque()
        """Time of sending and request, of those that the API server has not come to."""
        self._requests: deque[int] = deque()
        self._times_s: deque[float] = deque()
        self.coming_s = array("d", [inf])

    def add(self, request: int, now: float) -> float:
        """Send a request at ``now``; returns the earliest time at which the engine may see it."""
        self._sent.append((now, request))
        self.join(now)
        return self.free_s[0] if self._sent else self._times_s[-1]

    def pass_by(self, request: int, now: float) -> float:
        """Process a request that arrives at ``now`` without queueing it; returns when the engine sees it."""
        work_s: float = on_grid(self.limits.api_server_work(self._input_tokens[request]))
        begin_s = max(self.free_s[0], now)
        self.free_s[0] = begin_s + work_s
        return self.free_s[0] + self._latency_s

    def join(self, now: float) -> None:
        """Let the API server begin with the requests that it comes to by ``now``; tokens that come later go first."""
        streams = self.limits.streaming_s > 0.0
        while self._sent and self._sent[0][0] <= now and not (streams and self.free_s[0] > now):
            sent_s, request = self._sent.popleft()
            self._times_s.append(self.pass_by(request, sent_s))
            self._requests.append(request)
        self.sent_s[0] = self._sent[0][0] if self._sent else inf
        self.coming_s[0] = self._times_s[0] if self._times_s else max(self.free_s[0], self.sent_s[0])

    def take(self, now: float) -> Sequence[int]:
        """Return and remove the requests that the engine has seen by ``now``."""
        if self._sent:
            self.join(now)
        taken = []
        while self._times_s and self._times_s[0] <= now:
            self._times_s.popleft()
            taken.append(self._requests.popleft())
        self.coming_s[0] = self._times_s[0] if self._times_s else max(self.free_s[0], self.sent_s[0])
        return taken

    def next_s(self) -> float:
        """Time at which the engine sees the next request sent, if no tokens come first; later ones are announced."""
        if not self._times_s:
            self.join(max(self.free_s[0], self.sent_s[0]))
        return self._times_s[0] if self._times_s else inf

    def lose(self) -> Sequence[int]:
        """Return and remove all requests; the API server becomes idle."""
        self.free_s[0] = 0.0
        return self.take(inf)


class OpenLoopSource:
    """Open loop: requests arrive at fixed times, whatever the state of the replica.

    Args:
        requests: indices in order of arrival.
        log: where the arrival times stand.
        limits: limits of the replica, with the delays of its API server.
    """

    def __init__(self, requests: Sequence[int], log: RunLog, limits: EngineLimits) -> None:
        if isinstance(requests, range):  # numpy would ask it for one number after the other
            rows = np.arange(requests.start, requests.stop, requests.step, dtype=np.int64)
        else:
            rows = np.asarray(requests, dtype=np.int64)
        seen_s = np.append(np.asarray(log.arrival_s)[rows], inf)
        work = np.empty(0)
        if not limits.instant_api_server:
            work = on_grid(limits.api_server_work(log.stream.input_tokens[rows]))
        if not limits.streaming_s and len(work):  # in place: the arrays of ten million requests are large
            done, times_s = np.cumsum(work), seen_s[:-1]
            times_s -= np.subtract(done, work, out=work)
            np.maximum.accumulate(times_s, out=times_s)
            times_s += done
            times_s += on_grid(limits.api_server_s)
            work = np.empty(0)
        self._arrival_s: memoryview[Any] = seen_s.data
        self._taken = array("q", [0])
        self._own = rows.data
        self.known: Known | None = (self._own, self._arrival_s, self._taken, work.data)
        self.coming_s, self.sent_s, self.free_s = array("d", [inf]), array("d", [inf]), array("d", [0.0])

    def take(self, now: float) -> Sequence[int]:
        """Requests that have arrived by ``now``."""
        first = self._taken[0]
        self._taken[0] = bisect_right(self._arrival_s, now, first)
        return self._own[first : self._taken[0]]

    def next_s(self) -> float:
        """Time of the next arrival."""
        next_s: float = self._arrival_s[self._taken[0]]
        return next_s

    def join(self, now: float) -> None:
        """The engine itself does this with known requests."""

    def finished(self, request: int, now: float) -> None:
        """Arrivals do not depend on completions."""


class ClosedLoopSource(DueRequests):
    """A closed loop: ``max_concurrency`` requests outstanding, the next sent when one ends."""

    def __init__(self, requests: Sequence[int], max_concurrency: int, log: RunLog, limits: EngineLimits) -> None:
        super().__init__(limits, log)
        self._all = requests
        self._arrival_s = log.arrival_s
        self._next = 0
        for _ in range(min(max_concurrency, len(requests))):
            self.finished(-1, 0.0)

    def finished(self, request: int, now: float) -> None:
        """Send the next request."""
        if self._next < len(self._all):
            sent = self._all[self._next]
            self._arrival_s[sent] = now
            self._sent.append((now, sent))
            self._next += 1
            self.sent_s[0] = min(self.sent_s[0], now)
            self.coming_s[0] = min(self.coming_s[0], now)


class ReplicaEndpoint(DueRequests):
    """Requests that a router sends to one replica during a run, and the router's view of that replica.

    Args:
        env: simulated time.
        index: number of the replica.
        log: where the prompts' lengths stand.
        limits: of the replica.
        on_left: called with every request that no longer occupies the replica.
        on_ended: called when a request has ended.
        refusal: returns why the replica can never serve a request of (prompt, output) tokens; default: by ``limits``.
    """

    def __init__(
        self,
        env: Timeline,
        index: int,
        log: RunLog,
        limits: EngineLimits,
        on_left: Callable[[int, ReplicaEndpoint], None],
        on_ended: Callable[[int], None],
        refusal: Callable[[int, int], str | None] | None = None,
    ) -> None:
        super().__init__(limits, log)
        self.index = index
        self._refusal = limits.refusal if refusal is None else refusal
        self.block_size = limits.block_size
        self.capacity_tokens = limits.groups * limits.num_blocks * limits.block_size
        """Tokens that the replica's KV cache and its tiers hold."""
        self.outstanding = 0
        """Requests sent to the replica that have not ended."""
        self.prefix_cache: Callable[[], Any] = lambda: None
        """Returns the replica's current prefix cache, or None."""
        self.scheduler: Callable[[], Any] = lambda: None
        """Returns the replica's current scheduler."""
        self.wake: Callable[[float], None] = lambda at_s: None
        """Wakes an idle replica at the given time, in seconds."""
        self.down = False
        """True if the replica has failed and not recovered yet."""
        self.closed = False
        """True if an autoscaler withholds new requests from the replica."""
        self._env = env
        self._log = log
        self._on_left = on_left
        self._on_ended = on_ended

    @property
    def takes(self) -> bool:
        """True if the replica accepts new requests."""
        return not (self.down or self.closed)

    def can_hold(self, request: int) -> bool:
        """True if the replica can ever serve its part of a request."""
        return self._refusal(self._log.input_tokens[request], self._log.output_tokens[request]) is None

    def put(self, request: int) -> None:
        """Submit a request now."""
        self.outstanding += 1
        self.wake(self.add(request, self._env.now))

    def announce(self, request: int) -> float:
        """Pass a request with KV from another replica through the API server; returns when the engine sees it."""
        return self.pass_by(request, self._env.now)

    def left(self, request: int) -> None:
        """Report that a request no longer occupies the replica."""
        self.outstanding -= 1
        self._on_left(request, self)

    def finished(self, request: int, now: float) -> None:
        """Report the end of a request to the router when its client has the last token."""
        if now > self._env.now:
            self._env.call(self._ended, request, now - self._env.now)
        else:
            self._ended(request)

    def _ended(self, request: int) -> None:
        self.left(request)
        self._on_ended(request)
