"""Autoscaling of replicas: the rules of Kubernetes' autoscaler (also driven by KEDA) and of llm-d's.

A replica is off, starting, on or draining. A draining replica takes no new requests, finishes its requests, and is then
off; its chips are rented from the decision to start until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Protocol

from forerun.errors import ForerunError
from simulator.serving.clock import ROUTE
from simulator.serving.fleet.fleet_config import AutoscalerConfig
from simulator.serving.fleet.replica import ServingReplica
from simulator.serving.log import ScalingLog
from simulator.serving.request_source import ReplicaEndpoint

if TYPE_CHECKING:
    import simpy

    from simulator.serving.timeline import Timeline

MOST_LOOKS = 3_000_000
"""Maximum number of autoscaler evaluations of one run: 17 months at the HPA's interval of 15 s."""
PERIOD_S = 15.0
"""Time over which the HPA limits by how much it changes the replicas (``periodSeconds`` of its default policies)."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """State of the replicas that are on, as an autoscaler sees it."""

    outstanding: int
    """Requests that are running or waiting anywhere, at the router too."""
    running: int
    waiting: int
    kv_use: tuple[float, ...]
    """Share of the KV blocks in use, of each replica."""
    queues: tuple[int, ...]
    """Waiting requests of each replica."""


class Rule(Protocol):
    """Rule for the number of replicas."""

    def wanted(self, now: float, current: int, load: FleetLoad) -> int:
        """Desired replicas before clamping to ``min_replicas`` and ``max_replicas``.

        Args:
            now: seconds.
            current: replicas that are on or starting.
            load: state of the running replicas.
        """


class Hpa:
    """Kubernetes' HorizontalPodAutoscaler on a metric per replica, as KEDA sets it up: ``ceil(total / target)``.

    Nothing changes within ``tolerance`` of the target. Scaling up uses the lowest recommendation of the last
    ``scale_up_window_s``, scaling down the highest of the last ``scale_down_window_s``. Scaling up adds at most
    4 replicas, or as many as there were 15 s before, whichever is more.

    Source: Kubernetes documentation, "Horizontal Pod Autoscaling" (algorithm details, default behavior); v1.30.
    """

    def __init__(self, config: AutoscalerConfig) -> None:
        self._config = config
        self._values: deque[tuple[float, float]] = deque()
        self._wishes: deque[tuple[float, int]] = deque()
        self._counts: deque[tuple[float, int]] = deque()
        """Replicas that there were, for the limit of the way up."""

    def wanted(self, now: float, current: int, load: FleetLoad) -> int:
        """See the class."""
        config = self._config
        assert config.target is not None
        if config.metric == "kv_cache":
            total = current * sum(load.kv_use) / max(1, len(load.kv_use))
        else:
            total = float(getattr(load, config.metric))
        self._values.append((now, total))
        while self._values[0][0] < now - config.window_s:
            self._values.popleft()
        total = sum(value for _, value in self._values) / len(self._values)
        off = abs(total / (config.target * current) - 1.0) if current else 1.0
        wish = current if off <= config.tolerance else ceil(min(total / config.target, config.max_replicas))
        self._wishes.append((now, wish))
        self._counts.append((now, current))
        while self._wishes[0][0] < now - max(config.scale_up_window_s, config.scale_down_window_s):
            self._wishes.popleft()
        while self._counts[0][0] < now - PERIOD_S:
            self._counts.popleft()
        least = min(wish for at_s, wish in self._wishes if at_s >= now - config.scale_up_window_s)
        most = max(wish for at_s, wish in self._wishes if at_s >= now - config.scale_down_window_s)
        before = min(count for _, count in self._counts)
        return min(min(max(current, least), most), max(before + 4, 2 * before, current))


class Saturation:
    """llm-d's saturation analyzer: adds a replica if spare capacity runs out, removes one if the others suffice.

    A replica is saturated at ``kv_threshold`` of its KV blocks or ``queue_threshold`` waiting requests. Spare capacity
    is the average distance of the other replicas below these thresholds. Under ``kv_spare`` or ``queue_spare``, a
    replica is started unless one already is. A replica is stopped if the others keep that spare capacity with its load.

    Source: llm-d workload-variant-autoscaler, docs/saturation-scaling-config.md and docs/saturation-analyzer.md.
    """

    def __init__(self, config: AutoscalerConfig) -> None:
        self._config = config

    def wanted(self, now: float, current: int, load: FleetLoad) -> int:
        """See the class."""
        count = len(load.kv_use)
        if not count or current > count:  # none is on, or one is on its way: wait for it
            return max(1, current)
        if not self._spares(load, 0):
            return current + 1
        return current - 1 if self._spares(load, 1) else current

    def _spares(self, load: FleetLoad, fewer: int) -> bool:
        """True if spare capacity suffices with ``fewer`` unsaturated replicas less."""
        config = self._config
        seen = zip(load.kv_use, load.queues, strict=True)
        able = [(use, queue) for use, queue in seen if use < config.kv_threshold and queue < config.queue_threshold]
        if len(able) <= fewer:
            return False
        use, queue = (sum(column) / (len(able) - fewer) for column in zip(*able, strict=True))
        return bool(
            config.kv_threshold - use >= config.kv_spare and config.queue_threshold - queue >= config.queue_spare
        )


RULES: dict[str, Callable[[AutoscalerConfig], Rule]] = {"hpa": Hpa, "llm-d": Saturation}


class Autoscaler:
    """Opens and closes the replicas of a run.

    Args:
        env: simulated time.
        config: rule, metric, bounds, times.
        initial: replicas that are on from the start.
        sources, replicas: request sources and replicas, up to the maximum number of replicas.
        queued: number of requests that wait at the router.
        changed: called whenever the set of replicas that take requests changes.
    """

    def __init__(
        self,
        env: Timeline,
        config: AutoscalerConfig,
        initial: int,
        sources: Sequence[ReplicaEndpoint],
        replicas: Sequence[ServingReplica],
        queued: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        self.log = ScalingLog()
        self._env = env
        self._config = config
        self._sources, self._replicas = sources, replicas
        self._queued, self._changed = queued, changed
        self._rule = RULES[config.rule](config)
        self._starts = [0] * len(sources)
        """Number of starts of each replica."""
        self._state = ["on" if index < initial else "off" for index in range(len(sources))]
        for source, state in zip(sources, self._state, strict=True):
            source.closed = state != "on"
        self._note()

    def run(self) -> Generator[simpy.Event, None, None]:
        """Look every ``interval_s``, after the steps that end in the same instant.

        Raises:
            ForerunError: the run is too long for such an interval.
        """
        for _ in range(MOST_LOOKS):
            yield self._env.timeout(self._config.interval_s)
            yield self._env.phase(ROUTE)
            self._act()
        raise ForerunError(
            f"autoscaler.interval_s: a run longer than {float(self._env.now):,.0f} s has over {MOST_LOOKS:,} looks; "
            "raise it, or serve fewer requests"
        )

    def left(self, index: int) -> None:
        """Record that a replica has finished a request; a draining replica without requests is switched off."""
        if self._state[index] == "draining" and not self._sources[index].outstanding:
            self._state[index] = "off"
            self._note()

    def _count(self, *states: str) -> int:
        return sum(state in states for state in self._state)

    def _note(self) -> None:
        self.log.note(float(self._env.now), self._count("starting"), self._count("on"), self._count("draining"))

    def _load(self) -> FleetLoad:
        """Present state of the replicas."""
        on = [index for index, state in enumerate(self._state) if state == "on"]
        schedulers = [self._replicas[index].scheduler for index in on]
        batches = [len(scheduler.running) for scheduler in schedulers]
        queues = [self._sources[index].outstanding - batch for index, batch in zip(on, batches, strict=True)]
        use = [scheduler.used_blocks / scheduler.limits.num_blocks for scheduler in schedulers]
        waiting = sum(queues) + self._queued()
        return FleetLoad(sum(batches) + waiting, sum(batches), waiting, tuple(use), tuple(queues))

    def _act(self) -> None:
        config, now = self._config, float(self._env.now)
        current = self._count("on", "starting")
        wanted = self._rule.wanted(now, current, self._load())
        wanted = min(max(wanted, config.min_replicas), config.max_replicas)
        for _ in range(current, wanted):
            self._start()
        for _ in range(wanted, current):
            self._stop()

    def _start(self) -> None:
        """Start a replica that is off; if no replica is off (all others are draining), nothing is started."""
        if "off" not in self._state:
            return
        index = self._state.index("off")
        self._state[index] = "starting"
        self.log.scale_ups += 1
        self._note()
        self._starts[index] += 1
        self._env.call(self._ready, (index, self._starts[index]), self._config.start_up_s)

    def _ready(self, start: tuple[int, int]) -> None:
        """Switch a started replica on, with empty caches, unless it was stopped meanwhile."""
        index, number = start
        if self._state[index] != "starting" or self._starts[index] != number:
            return
        self._state[index] = "on"
        self._replicas[index].renew()
        self._sources[index].closed = False
        self._note()
        self._changed()

    def _stop(self) -> None:
        """Stop the youngest replica: one that is starting, else one that is on, once its requests have ended."""
        for state, after in (("starting", "off"), ("on", "draining")):
            if state in self._state:
                index = len(self._state) - 1 - self._state[::-1].index(state)
                self._state[index] = after
                self._sources[index].closed = True
                break
        self.log.scale_downs += 1
        self._note()
        self.left(index)
        self._changed()
