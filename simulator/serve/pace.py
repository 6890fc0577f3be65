"""Simulated time at the pace of a wall clock: one timer releases tokens when their step ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf

from simulator.serve.live import Delivery, LiveFleet

TIMER_S = 2.2e-3
"""Seconds by which timers are set earlier: event loops have millisecond timers, and asyncio rounds up twice."""
NAP_S = 0.1e-3
"""Longest single sleep in seconds; requests are accepted between sleeps."""
MOST_LEAD_S = 5e-3
"""Maximum lead time, in seconds, between the preparation of a step's tokens and their due time."""
SLACK_S = 0.3e-3
"""Target time between preparing tokens and sending them, on average, in seconds."""
SMOOTHING = 0.2
MOST_LEARNT_S = 0.5e-3
"""Maximum correction of the lead time per step, in seconds: a stall of the machine should not affect later steps."""


class Pace:
    """Drives a fleet by the event loop's clock.

    The simulation is one step ahead: when a step begins, its end is known; its tokens are released at that end.
    """

    def __init__(self, fleet: LiveFleet, speed: float, deliver: Callable[[Sequence[Delivery]], None]) -> None:
        self._fleet = fleet
        self._speed = speed
        self._deliver = deliver
        self._timer: asyncio.Handle | None = None
        self._aimed_s = inf
        self._lead_s = self._chunk_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._origin_s = 0.0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._origin_s = self._loop.time()
        self._aim()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def due(self, at_s: float) -> float:
        """Convert simulated time to the event loop's clock."""
        return self._origin_s + at_s / self._speed

    @property
    def now(self) -> float:
        return (self.loop.time() - self._origin_s) * self._speed

    def submit(self, input_tokens: int, output_tokens: int, hashes: Sequence[int], at_s: float) -> int | None:
        """Submit a request that arrived at ``at_s``; returns its slot, or None if no slot is free."""
        self._let_out(at_s)
        slot = self._fleet.submit(input_tokens, output_tokens, hashes, at_s)
        self._aim()
        return slot

    def settle(self) -> None:
        """Let the router process requests that have just arrived."""
        self._let_out(self._fleet.now)
        self._aim()

    def _aim(self) -> None:
        """Set the timer for the next event."""
        next_s = self._fleet.next_s
        if next_s == self._aimed_s and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._aimed_s = next_s
        if next_s < inf:
            self._timer = self.loop.call_at(self.due(next_s) - self._lead_s - TIMER_S, self._turn)

    def _turn(self) -> None:
        """Timer callback, shortly before the next event is due."""
        self._timer = None
        aimed_s = self._aimed_s
        left_s = self.due(aimed_s) - self._lead_s - self.loop.time()
        if left_s > 0:
            time.sleep(min(left_s, NAP_S))
            self._timer = self.loop.call_soon(self._turn)
            return
        self._let_out(max(aimed_s, self.now))
        self._aim()

    def send(self, chunks: Sequence[tuple[Callable[[bytes], None], bytes]], at_s: float) -> list[float]:
        """Send chunks, half of them before the due time and half after; returns the send times by the loop's clock."""
        clock = self.loop.time
        slack_s = self.due(at_s) - len(chunks) * self._chunk_s / 2 - clock()
        if slack_s > 0:
            time.sleep(slack_s)
        learnt_s = min(max(SLACK_S - slack_s, -MOST_LEARNT_S), MOST_LEARNT_S)
        self._lead_s = min(max(self._lead_s + SMOOTHING * learnt_s, 0.0), MOST_LEAD_S)
        sent_s = [clock()]
        for send, chunk in chunks:
            send(chunk)
            sent_s.append(clock())
        if chunks:
            self._chunk_s += SMOOTHING * ((sent_s[-1] - sent_s[0]) / len(chunks) - self._chunk_s)
        return sent_s[1:]

    def _let_out(self, to_s: float) -> None:
        deliveries = self._fleet.advance(to_s)
        if deliveries or self._fleet.changes:
            self._deliver(deliveries)
