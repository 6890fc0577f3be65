"""The router: sends each request to a replica at its arrival, or queues it until a replica can take it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from forerun.errors import ForerunError
from simulator.serving.clock import ROUTE
from simulator.serving.fleet.fleet_config import RouterConfig
from simulator.serving.fleet.routing import Policy
from simulator.serving.log import RunLog
from simulator.serving.request_source import ReplicaEndpoint
from simulator.serving.rules import ADMISSION, made

if TYPE_CHECKING:
    from simulator.serving.timeline import Timeline

MOST_RESTARTS = 1_000
"""Maximum restarts of one request; beyond it, failures count as too frequent for it to ever end."""


class Admission(Protocol):
    """Admission rule of the router."""

    def takers(self, endpoints: Sequence[ReplicaEndpoint]) -> Sequence[ReplicaEndpoint]:
        """Replicas that may be given another request now."""

    def refusal(self, queued: int, up: bool) -> str | None:
        """Why a new request that no replica can take is turned away; None: it waits at the router.

        Args:
            queued: requests that wait already.
            up: whether any replica is up.
        """


class QueueWhenFull:
    """A replica holds at most ``max_outstanding`` requests; up to ``max_queue`` others wait."""

    def __init__(self, config: RouterConfig) -> None:
        self._most = config.max_outstanding
        self._max_queue = config.max_queue

    def takers(self, endpoints: Sequence[ReplicaEndpoint]) -> Sequence[ReplicaEndpoint]:
        """Replicas with fewer than ``max_outstanding`` requests."""
        return (
            endpoints
            if self._most is None
            else [endpoint for endpoint in endpoints if endpoint.outstanding < self._most]
        )

    def refusal(self, queued: int, up: bool) -> str | None:
        """The queue is full."""
        if self._max_queue is None or queued < self._max_queue:
            return None
        return f"router.max_queue {self._max_queue} requests waited already"


class RefuseWhenFull(QueueWhenFull):
    """A replica holds at most ``max_outstanding`` requests; nothing waits, unless all replicas are down."""

    def refusal(self, queued: int, up: bool) -> str | None:
        """Reason for refusing a request if every replica is full."""
        return f"every replica held router.max_outstanding {self._most} requests" if up else None


class Router:
    """Hands out requests after all completions of an instant.

    Args:
        env: simulated time.
        log: log for arrivals and refusals.
        requests: requests that can be served, in order of arrival.
        policy: the routing policy.
        config: admission limits.
        mixed: whether replicas differ in the requests that they can serve.
    """

    def __init__(
        self,
        env: Timeline,
        log: RunLog,
        requests: Sequence[int],
        policy: Policy,
        config: RouterConfig,
        mixed: bool = False,
    ) -> None:
        self.done = env.event()
        """Happens when every request has ended."""
        self._env = env
        self._log = log
        self._requests = requests
        self._policy = policy
        self._admission: Admission = made(ADMISSION[config.when_full], config)
        self._mixed = mixed
        self._endpoints: list[ReplicaEndpoint] = []
        self._open: list[ReplicaEndpoint] = []
        """Replicas that are up."""
        self._max_concurrency = log.stream.max_concurrency
        self._next = 0
        """Requests of a closed loop that were sent."""
        self._due: list[int] = []
        """New requests to send in this instant."""
        self._followers, self._waits_for = _followers(log, requests)
        """Requests that depend on each request, if any; and for each request the number of unfinished dependencies."""
        follow = self._waits_for
        self._alone = [one for one in requests if one not in follow] if follow else requests
        """Requests that arrive by themselves; of the current stage, if stages wait for each other."""
        self._later = _waiting_stages(log, requests)
        """Requests of the stages that have not begun, the next stage first."""
        self._unfinished = 0
        """Requests of the current stage that have not ended; counted if stages wait for each other."""
        self._called = False
        """True if the router acts in this instant."""
        self._queue: deque[int] = deque()
        """Requests that wait at the router; restarted requests first."""

    def start(self, endpoints: Sequence[ReplicaEndpoint]) -> None:
        """Begin to hand out requests to these replicas."""
        self._endpoints = list(endpoints)
        self._open = [endpoint for endpoint in endpoints if endpoint.takes]
        if not self._requests:
            self.done.succeed()
        elif self._later:
            self._begin_stage()
        elif self._max_concurrency is None:
            self._await(0)
        else:
            self._next = min(self._max_concurrency, len(self._requests))
            self._due += self._requests[: self._next]
            self.call()

    @property
    def queued(self) -> int:
        """Requests that wait here."""
        return len(self._queue)

    def call(self) -> None:
        """Let the router act in this instant, after all completions."""
        if not self._called:
            self._called = True
            self._env.call(self._send, priority=ROUTE)

    def left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Record that a request no longer occupies a replica."""
        self._policy.left(request, endpoint)
        if self._queue:
            self.call()

    def ended(self, request: int) -> None:
        """Record that a request has ended, finished or refused."""
        if self._log.completed == len(self._log.stream):
            if not self.done.triggered:
                self.done.succeed()
        elif self._max_concurrency is not None and self._next < len(self._requests):
            self.announce(self._requests[self._next])
            self._next += 1
        self._unfinished -= 1
        if not self._unfinished and self._later:
            assert self._log.stream.stages is not None
            self._env.call(self._begin_stage, delay=self._log.stream.stages.drain_s or 0.0)
        for follower in self._followers.get(request, ()):
            self._waits_for[follower] -= 1
            if not self._waits_for[follower]:
                stream = self._log.stream
                assert stream.think_s is not None
                wait_s = stream.think_s[follower]
                if stream.guessed is not None and stream.guessed[follower]:
                    wait_s -= stream.overlap_s(follower, self._env.now - self._log.arrival_s[request])
                self._env.call(self.announce, follower, float(wait_s))

    def restart(self, requests: Iterable[int]) -> None:
        """Queue the requests of a failed replica again, before all others.

        Raises:
            ForerunError: a request was restarted so often that it may never end.
        """
        again = sorted(requests)
        for request in again:
            self._log.restarts[request] += 1
            if self._log.restarts[request] > MOST_RESTARTS:
                raise ForerunError(
                    f"faults: request {request} was started {MOST_RESTARTS} times without ending; replicas fail too "
                    f"often to compute its prompt; raise mtbf_s"
                )
        self._queue.extendleft(reversed(again))
        self.call()

    def failed(self, endpoint: ReplicaEndpoint) -> None:
        """Record that a replica has failed and lost its caches."""
        self._policy.failed(endpoint)
        self.changed()

    def changed(self) -> None:
        """Notify the router that the set of replicas which take requests has changed."""
        self._open = [endpoint for endpoint in self._endpoints if endpoint.takes]
        self.call()

    def _await(self, place: int) -> None:
        """Schedule the arrivals of requests with fixed times from ``place`` on: due ones now, others at their times."""
        for later in range(place, len(self._alone)):
            wait_s = self._log.arrival_s[self._alone[later]] - self._env.now
            if wait_s > 0.0:
                self._env.call(self._arrive, later, wait_s)
                return
            self.announce(self._alone[later])

    def _begin_stage(self, _: object = None) -> None:
        """Let the requests of the next stage arrive, from now on."""
        stages, arrival_s = self._log.stream.stages, self._log.arrival_s
        assert stages is not None
        self._alone = self._later.popleft()
        self._unfinished = len(self._alone)
        later_s = self._env.now - stages.begin_s[stages.of[self._alone[0]]]
        for request in self._alone:
            arrival_s[request] += later_s
        self._await(0)

    def _arrive(self, place: int) -> None:
        """Handle the arrival of a request with a fixed time."""
        self.announce(self._alone[place])
        self._await(place + 1)

    def announce(self, request: int) -> None:
        """Announce a request that arrives now."""
        self._due.append(request)
        self.call()

    def _send(self, _: object) -> None:
        """Send waiting requests and requests due now to replicas."""
        self._called = False
        queue = self._queue
        while queue:
            if not self._dispatch(queue[0]):
                break
            queue.popleft()
        due, self._due = self._due, []
        dynamic = self._max_concurrency is not None or self._log.stream.times_depend
        for request in due:
            if dynamic:
                self._log.arrival_s[request] = self._env.now
            if queue or not self._dispatch(request):
                self._keep(request)

    def _dispatch(self, request: int) -> bool:
        """Give a request to a replica; False when none can take it now."""
        endpoints = self._admission.takers(self._open)
        if self._mixed:
            endpoints = [endpoint for endpoint in endpoints if endpoint.can_hold(request)]
        if not endpoints:
            return False
        self._policy.choose(request, endpoints).put(request)
        return True

    def _keep(self, request: int) -> None:
        """Queue a new request that no replica can take, or refuse it."""
        reason = self._admission.refusal(len(self._queue), bool(self._open))
        if reason is None:
            self._queue.append(request)
        else:
            self._log.refuse(request, reason)
            self.ended(request)


def _waiting_stages(log: RunLog, requests: Sequence[int]) -> deque[list[int]]:
    """Requests of each stage that has any, if stages wait for each other."""
    parts: dict[int, list[int]] = {}
    if (stages := log.stream.stages) is not None and stages.drain_s is not None:
        for request in requests:
            parts.setdefault(int(stages.of[request]), []).append(request)
    return deque(parts.values())


def _followers(log: RunLog, requests: Sequence[int]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Requests that wait for each of ``requests``, and the number that each waits for. Requests that cannot be served
    are not waited for."""
    followers: dict[int, list[int]] = {}
    counts: dict[int, int] = {}
    if log.stream.follows is None:
        return followers, counts
    served = set(requests)
    for before, request in log.stream.follows.tolist():
        if before in served and request in served:
            followers.setdefault(before, []).append(request)
            counts[request] = counts.get(request, 0) + 1
    return followers, counts
