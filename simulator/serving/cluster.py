"""Equal replicas behind a router, run to the end of the workload in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from simulator.serving.drafting import DraftingRule
from simulator.serving.feed import ClosedFeed, Feed, OpenFeed
from simulator.serving.fleet import Fleet, new_log
from simulator.serving.fleet_config import RouterConfig
from simulator.serving.limits import EngineLimits
from simulator.serving.log import FULL_ROWS, RunLog
from simulator.serving.pool import Pool
from simulator.serving.swap import SwapSpace
from simulator.speculation import AcceptanceSampler
from simulator.timing import EngineTimer
from simulator.workload import RequestStream


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal replicas, how each schedules, and how requests are spread over them."""

    replicas: int
    routing: str
    """``round-robin``, ``least-outstanding``, ``prefix-aware`` or ``kv-aware``."""
    scheduler: str
    stepping: str
    limits: EngineLimits
    timer: EngineTimer
    sampler: AcceptanceSampler | None = None
    prefix_caching: bool = False
    rule: DraftingRule | None = None
    """The policy that chooses the draft tokens of each step; None where their number never changes."""
    swap: SwapSpace | None = None
    router: RouterConfig = field(default_factory=RouterConfig)

    @property
    def fast(self) -> bool:
        """Whether the fast path can run this configuration."""
        return self.pool().fast

    def pool(self, name: str = "all") -> Pool:
        """The replicas apart from what spreads requests over them."""
        return Pool(
            self.replicas,
            self.scheduler,
            self.stepping,
            self.limits,
            self.timer,
            self.sampler,
            self.prefix_caching,
            self.swap,
            self.rule,
            name,
        )

    def run(
        self,
        stream: RequestStream,
        progress: Callable[[int, int], None] | None = None,
        full_step_rows: int = FULL_ROWS,
    ) -> RunLog:
        """Serve every request of ``stream``; requests that can never be served are refused at once.

        Args:
            stream: the requests.
            progress: called now and then with (requests ended, requests in all).
            full_step_rows: step records beyond which decode steps of one batch share a row.
        """
        if self._needs_router(stream):
            return Fleet((self.pool(),), self.routing, self.router).run(stream, progress, full_step_rows)
        pool = self.pool()
        log = new_log(pool, stream, progress, full_step_rows)
        served = log.admit(pool.refusal)
        env = simpy.Environment()
        replicas = []
        for index in range(self.replicas):
            own = served[index :: self.replicas]
            feed: Feed = OpenFeed(own, log, self.limits)
            if stream.max_concurrency is not None:
                feed = ClosedFeed(own, stream.max_concurrency, log, self.limits)
            make_replica = pool.fast_replica if pool.fast else pool.exact_replica
            replicas.append(make_replica(env, index, feed, log))
            env.process(replicas[-1].serve())
        env.run()
        log.blocks_left = sum(replica.held_blocks for replica in replicas)
        log.settle()
        return log

    def _needs_router(self, stream: RequestStream) -> bool:
        """Whether what one replica gets depends on what happens in time."""
        if self.router.max_outstanding is not None or stream.follows is not None:
            return True
        return self.replicas > 1 and (self.routing != "round-robin" or stream.max_concurrency is not None)
