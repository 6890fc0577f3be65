"""Rows of the step log, arrivals, and gaps between deliveries."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.serving.engine.common import cython
from simulator.serving.records import MOST_GAPS

BUFFERED_ROWS = cython.declare(cython.longlong, 1024)


@cython.final
@cython.cclass
class RowBuffer:
    """Rows of a step log on their way there; one per simulation, shared by its replicas.

    Args:
        log: a ``StepLog``.
        windows: attention windows of the timing models.
    """

    log: Any
    table: cython.double[:, ::1]
    used = cython.declare(cython.longlong, visibility="public")
    rounds = cython.declare(cython.longlong, visibility="public")
    """Times that the rows were handed over; a row is in the table while this stays."""
    full_rows: cython.longlong
    """Rows of a replica after which its steps of an unchanged batch share one."""
    group_at: cython.longlong
    """First column of what the slowest attention group does."""
    grouped: cython.bint
    kept: cython.bint
    """False if nobody reads the rows, so that none are written."""

    def __init__(self, log: Any) -> None:
        self.group_at, self.grouped, self.kept = log.group_at, log.grouped, log.kept
        self.log = log
        self.table = np.zeros((BUFFERED_ROWS, log.width))
        self.used = 0
        self.rounds = 0
        self.full_rows = log.full_rows

    @cython.ccall
    def flush(self) -> None:
        """Hand the rows over."""
        self.rounds += 1
        if self.used:
            self.log.extend(np.asarray(self.table)[: self.used])
            self.used = 0

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def new(self) -> cython.longlong:
        """The number of a fresh row of zeros."""
        if self.used == BUFFERED_ROWS:
            self.flush()
        self.table[self.used, :] = 0.0
        self.used += 1
        return self.used - 1


@cython.final
@cython.cclass
class Arrivals:
    """Requests that are all known in advance, and when each is seen.

    Args:
        known: as a ``RequestSource`` has them.
        free_s: one number: when the API server becomes idle.
        latency_s: from that server's work on a request until the engine sees it.
    """

    requests: cython.longlong[::1]
    times_s: cython.double[::1]
    taken: cython.longlong[::1]
    work_s: cython.double[::1]
    free_s: cython.double[::1]
    joined: cython.longlong
    """Number of requests that the API server has begun with: their times are those at which they are seen."""
    _latency_s: cython.double

    def __init__(self, known: Any, free_s: Any, latency_s: cython.double) -> None:
        self.requests, self.times_s, self.taken, self.work_s = known
        self.free_s, self._latency_s = free_s, latency_s
        self.joined = 0 if len(self.work_s) else len(self.requests)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def due(self, now: cython.double) -> cython.bint:
        """True if the next has arrived by ``now``."""
        if self.joined < len(self.requests):
            self.join(now)
            if self.taken[0] == self.joined:
                return False
        return self.times_s[self.taken[0]] <= now

    @cython.cfunc
    def join(self, now: cython.double) -> None:
        """Let the API server begin with the requests that it comes to by ``now``; tokens that come later go first."""
        place: cython.longlong = self.joined
        begin_s: cython.double
        while place < len(self.requests):
            begin_s = max(self.free_s[0], self.times_s[place])
            if begin_s > now:
                break
            self.free_s[0] = begin_s + self.work_s[place]
            self.times_s[place] = self.free_s[0] + self._latency_s
            place += 1
        self.joined = place

    @cython.cfunc
    def next_s(self) -> cython.double:
        """Time at which the next is seen, if no tokens are streamed before."""
        if self.taken[0] == self.joined:
            self.join(max(self.free_s[0], self.times_s[self.joined]))
        return self.times_s[self.taken[0]]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def take(self) -> cython.longlong:
        """The next."""
        self.taken[0] += 1
        return self.requests[self.taken[0] - 1]


@cython.final
@cython.cclass
class Gaps:
    """Gaps between token deliveries and how many requests saw each; one per simulation, shared by its replicas.

    Args:
        log: a ``RunLog``, which takes them when the buffer is full.
    """

    log: Any
    seconds: cython.double[::1]
    counts: cython.longlong[::1]
    used: cython.longlong

    def __init__(self, log: Any) -> None:
        self.log = log
        self.used = 0
        # What is not written to yet takes no memory.
        self.seconds, self.counts = np.empty(MOST_GAPS), np.empty(MOST_GAPS, dtype=np.int64)

    @cython.cfunc
    def add(self, seconds: cython.double, count: cython.longlong) -> None:
        """Count ``count`` requests whose next token came after this gap."""
        if self.used == len(self.seconds):
            self.log.pool_gaps(*self.table())
            self.used = 0
        self.seconds[self.used] = seconds
        self.counts[self.used] = count
        self.used += 1

    def forget(self) -> None:
        """Drop all of them."""
        self.used = 0

    def table(self) -> tuple[Any, Any]:
        """Return the gaps and their counts."""
        return np.asarray(self.seconds)[: self.used], np.asarray(self.counts)[: self.used]


@cython.final
@cython.cclass
class Output:
    """Output of the replicas of a simulation: columns of the run log by request, rows of steps, and gaps.

    Args:
        log: a ``RunLog``.
        exact: whether steps are counted as computed by the timing model itself.
    """

    log: Any
    exact: cython.bint
    rows = cython.declare(RowBuffer, visibility="public")
    gaps = cython.declare(Gaps, visibility="public")
    input_tokens: cython.longlong[::1]
    output_tokens: cython.longlong[::1]
    arrival_s: cython.double[::1]
    replica: cython.longlong[::1]
    prompt_replica: cython.longlong[::1]
    cached_tokens: cython.longlong[::1]
    scheduled_s: cython.double[::1]
    first_token_s: cython.double[::1]
    finished_s: cython.double[::1]
    completed: cython.longlong[::1]
    """Requests that have ended, in all of the run."""
    drafts: cython.longlong[::1]
    accepted_tokens: cython.longlong[::1]
    draft_tokens: cython.longlong[::1]
    accepted_counts: cython.longlong[::1]

    def __init__(self, log: Any, exact: bool) -> None:
        self.log = log
        self.exact = exact
        self.rows, self.gaps = RowBuffer(log.steps), Gaps(log)
        self.input_tokens, self.output_tokens, self.arrival_s = log.input_tokens, log.output_tokens, log.arrival_s
        self.replica, self.prompt_replica, self.cached_tokens = log.replica, log.prompt_replica, log.cached_tokens
        self.scheduled_s, self.first_token_s, self.finished_s = log.scheduled_s, log.first_token_s, log.finished_s
        self.completed = log.ended
        self.drafts, self.accepted_tokens, self.draft_tokens = log.drafts, log.accepted_tokens, log.draft_tokens
        self.accepted_counts = log.accepted_counts
