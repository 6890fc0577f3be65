"""Failure and recovery times of replicas."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forerun.errors import ForerunError
from simulator.serving.clock import ROUTE
from simulator.serving.fleet.fleet_config import FaultEvent, FaultsConfig

if TYPE_CHECKING:
    import simpy

    from simulator.serving.timeline import Timeline

MOST_FAILURES = 100_000
"""Maximum failures of one replica in a run."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Failures of a run.

    Args:
        config: scheduled failures, and the mean times of random failures.
        seed: seed of the random failures.
    """

    config: FaultsConfig
    seed: int

    def of(self, replica: int) -> Generator[tuple[float, float]]:
        """(time of failure, seconds down) of one replica, in order, without end if failures are random.

        Random up and down times are exponential; a scheduled failure is dropped if the replica is already down.
        """
        events = sorted((e for e in self.config.events if e.replica == replica), key=_at)
        if self.config.mtbf_s is None or self.config.mttr_s is None:
            yield from ((event.at_s, event.down_s) for event in events)
            return
        rng = np.random.default_rng([self.seed, replica, 0xFA017])
        up_s = 0.0
        while True:
            at_s, down_s = up_s + float(rng.exponential(self.config.mtbf_s)), float(rng.exponential(self.config.mttr_s))
            while events and events[0].at_s < up_s:
                events.pop(0)
            if events and events[0].at_s <= at_s:
                event = events.pop(0)
                at_s, down_s = event.at_s, event.down_s
            yield at_s, down_s
            up_s = at_s + down_s


def break_down(
    env: Timeline,
    times: Iterable[tuple[float, float]],
    fail: Callable[[], None],
    recover: Callable[[], None],
) -> Generator[simpy.Event]:
    """The process that fails and recovers one replica, after the steps that end in the same instant.

    Raises:
        ForerunError: it has failed so often that the run may never end.
    """
    for count, (at_s, down_s) in enumerate(times):
        if count == MOST_FAILURES:
            raise ForerunError(
                f"faults: a replica failed {count:,} times in {at_s:.3g} s; raise mtbf_s, or shorten the waits between "
                "requests"
            )
        yield env.timeout(max(0.0, at_s - env.now))
        yield env.phase(ROUTE)
        fail()
        yield env.timeout(down_s)
        recover()


def _at(event: FaultEvent) -> float:
    return event.at_s
