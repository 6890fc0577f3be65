"""Pools of replicas behind one router: routing, admission, disaggregated prefill, failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from forerun.errors import StalledError
from simulator.serving.clock import PLAN
from simulator.serving.fleet.autoscaler import Autoscaler
from simulator.serving.fleet.faults import Faults, break_down
from simulator.serving.fleet.fleet_config import AutoscalerConfig, Role, RouterConfig
from simulator.serving.fleet.forked import Helper, shares
from simulator.serving.fleet.pool import Pool, ReplicaBuilder
from simulator.serving.fleet.replica import ServingReplica
from simulator.serving.fleet.router import Router
from simulator.serving.fleet.routing import Policy, routing_policy
from simulator.serving.fleet.scored import Scored
from simulator.serving.fleet.transfer import KvLink, Transfers
from simulator.serving.log import FULL_ROWS, Condense, RunLog, StepLog
from simulator.serving.request_source import ClosedLoopSource, OpenLoopSource, ReplicaEndpoint
from simulator.workload import RequestStream

if TYPE_CHECKING:
    from simulator.serving.engine import Lockstep
    from simulator.serving.engine import Sequence as Request
    from simulator.serving.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Fleet:
    """Pools of replicas, routing of requests, and replica failures.

    Pools either all have the role ``both``, or some compute prompts (``prefill``), the others answers (``decode``).
    """

    pools: tuple[Pool, ...]
    routing: str = "round-robin"
    router: RouterConfig = field(default_factory=RouterConfig)
    decode_routing: str = "least-outstanding"
    links: Mapping[tuple[str, str], KvLink] = field(default_factory=dict)
    """Links from each prefill pool to each decode pool, by their names."""
    faults: Faults | None = None
    autoscaler: AutoscalerConfig | None = None
    """Autoscaler of the replicas of the only pool; None without one. ``initial`` replicas are on at the start."""
    initial: int = 1
    seed: int = 0

    def mixed(self, *roles: Role) -> bool:
        """True if replicas of these roles differ in the requests that they can serve."""
        return len({pool.limits for pool in self.pools if pool.role in roles}) > 1

    @property
    def replicas(self) -> list[Pool]:
        """The pool of each replica, in the order of their numbers."""
        return [pool for pool in self.pools for _ in range(pool.replicas)]

    def refusal(self, input_tokens: int, output_tokens: int) -> str | None:
        """Why a request can never be served, or None when at least one pool of each kind can."""
        for roles in (("both", "prefill"), ("both", "decode")):
            reasons = [pool.refusal(input_tokens, output_tokens) for pool in self.pools if pool.role in roles]
            if None not in reasons:
                return reasons[0]
        return None

    def run(
        self,
        stream: RequestStream,
        progress: Callable[[int, int], None] | None = None,
        full_step_rows: int = FULL_ROWS,
        condense: Condense | None = None,
    ) -> RunLog:
        """Serve every request of ``stream``; requests that can never be served are refused at once.

        Args:
            stream: the requests.
            progress: called now and then with (requests ended, requests in all).
            full_step_rows: step records beyond which decode steps of one batch share a row.
            condense: takes step records whenever there are many, before they are dropped; see ``StepLog``.

        Raises:
            StalledError: requests are left that nothing will ever serve; a fault of the simulator.
        """
        first = self.pools[0]
        positions = first.sampler.num_speculative_tokens if first.sampler is not None else 0
        grouped = any(pool.limits.groups > 1 for pool in self.pools)
        full_rows = full_step_rows // sum(pool.replicas for pool in self.pools)
        kept = condense is not StepLog.forget
        steps = StepLog(len(first.timer.windows), full_rows, first.rule is not None, condense, grouped, kept)
        log = RunLog(stream, steps, positions, progress, self.seed)
        if stream.prefix_hashes is not None and any(
            one.rule.clairvoyant for pool in self.pools for one in pool.evictions
        ):
            reference = replace(self, pools=tuple(pool.as_reference for pool in self.pools))
            log.reference = reference.run(stream, None, 0, StepLog.forget)
        served = log.admit(self.refusal)
        if self._needs_router(stream):
            log.blocks_left = sum(replica.held_blocks for replica in FleetRun(self, log, served).run())
        else:
            log.blocks_left = self._run_in_processes(log, served)
        log.settle()
        return log

    def _needs_router(self, stream: RequestStream) -> bool:
        """True if the requests of a replica depend on simulated events."""
        if len(self.pools) > 1 or self.faults is not None or self.autoscaler is not None:
            return True
        if self.pools[0].replicas > 1 and any(store.shared for store in self.pools[0].stores):
            return True
        if self.router.max_outstanding is not None or stream.times_depend:
            return True
        return self.pools[0].replicas > 1 and (self.routing != "round-robin" or stream.max_concurrency is not None)

    def _run_in_processes(self, log: RunLog, served: Sequence[int]) -> int:
        """Run independent replicas (round-robin routing) in processes. Returns the blocks that requests still hold at
        the end."""
        (pool,) = self.pools
        most, builder = log.stream.max_concurrency, ReplicaBuilder(pool, log)

        def requests_of(index: int) -> Sequence[int]:
            return served[index :: pool.replicas]

        def serve(numbers: Sequence[int]) -> int:
            held = 0
            for index in numbers:
                requests = requests_of(index)
                source = (
                    OpenLoopSource(requests, log, pool.limits)
                    if most is None
                    else ClosedLoopSource(requests, most, log, pool.limits)
                )
                replica = builder.replica(index, source)
                replica.engine.run()
                log.settle()  # rows are shared and handed over alike, whichever replicas ran before in this process
                held += replica.held_blocks
            return held

        first, *others = shares(pool, log, len(served))
        helpers = [Helper(serve, part, np.concatenate([requests_of(index) for index in part]), log) for part in others]
        return serve(first) + sum(helper.take() for helper in helpers)


class FleetRun:
    """One run of replicas behind a router, from the first arrival to the last token.

    Args:
        fleet: the replicas, and how requests reach them.
        log: where results go.
        served: requests with a fixed arrival time, in order of arrival.
        env: simulated time; default: a new timeline.
    """

    def __init__(self, fleet: Fleet, log: RunLog, served: Sequence[int], env: Timeline | None = None) -> None:
        self.log = log
        self.replicas: list[ServingReplica] = []
        if env is None:
            from simulator.serving.timeline import Timeline

            env = Timeline()
        self._env = env
        self._resumed: dict[int, Request] = {}
        mixed = fleet.mixed("both", "prefill")
        policy = routing_policy(fleet.routing, fleet.router, log)
        self.router = Router(env, log, served, policy, fleet.router, mixed)
        self._transfers = self._make_transfers(fleet) if fleet.links else None
        builders = [builder for pool in fleet.pools for builder in [ReplicaBuilder(pool, log)] * pool.replicas]
        self.sources = [self._make_replica(index, builder) for index, builder in enumerate(builders)]
        self.steps: list[Lockstep] = []
        """Lockstep of the compiled replicas, and of the interpreted ones."""
        for lockstep in dict.fromkeys(replica.lockstep for replica in self.replicas):
            members = [replica for replica in self.replicas if replica.lockstep is lockstep]
            steps = lockstep(env, PLAN, [replica.engine for replica in members])
            self.steps.append(steps)
            for place, replica in enumerate(members):
                replica.stop, replica.resume = partial(steps.stop, place), partial(steps.resume, place)
                self.sources[replica.engine.index].wake = partial(steps.wake, place)
        roles = [pool.role for pool in fleet.replicas]
        if self._transfers is not None:
            decode = [source for source, role in zip(self.sources, roles, strict=True) if role == "decode"]
            self._transfers.start(self.sources, decode, self.replicas)
            self._watch(self._transfers.policy, decode)
        self._autoscaler: Autoscaler | None = None
        taking = [source for source, role in zip(self.sources, roles, strict=True) if role != "decode"]
        self._watch(policy, taking)
        self.router.start(taking)
        if fleet.faults is not None:
            for index in range(len(self.sources)):
                self._break_down(fleet.faults, index)
        if fleet.autoscaler is not None:
            self._scale(fleet.autoscaler, fleet.initial)

    def run(self) -> list[ServingReplica]:
        """Go on until every request has ended; returns the replicas.

        Raises:
            StalledError: requests are left that nothing will ever serve.
        """
        try:
            self._env.run(until=self.router.done)
        except RuntimeError as error:
            if self.router.done.triggered:
                raise
            # SimPy has no event left: what is unfinished waits for something that will never happen.
            left = len(self.log.stream) - self.log.completed
            now = self._env.now
            raise StalledError(f"the run stands still at {now:.9g} s with {left} requests unfinished") from error
        return self.replicas

    def _watch(self, policy: Policy, endpoints: Sequence[ReplicaEndpoint]) -> None:
        """Let a policy scrape the replicas that it chooses from."""
        if isinstance(policy, Scored):
            policy.view.start(self._env, endpoints)

    def _make_transfers(self, fleet: Fleet) -> Transfers:
        names = [pool.name for pool in fleet.replicas]

        def link_of(source: int, target: int) -> KvLink:
            return fleet.links[names[source], names[target]]

        decode_policy = routing_policy(fleet.decode_routing, fleet.router, self.log)
        samples_first = next(iter(fleet.links.values())).samples_first
        return Transfers(self._env, self.log, link_of, samples_first, decode_policy, fleet.mixed("decode"))

    def _make_replica(self, index: int, builder: ReplicaBuilder) -> ReplicaEndpoint:
        env, log, router, transfers, pool = self._env, self.log, self.router, self._transfers, builder.pool
        left = transfers.left if transfers is not None and pool.role == "decode" else self._left
        source = ReplicaEndpoint(env, index, log, pool.limits, left, router.ended, pool.refusal)
        source.capacity_tokens += sum(store.num_blocks for store in pool.stores if not store.shared) * source.block_size
        replica = builder.replica(index, source, self._resumed, transfers)
        self.replicas.append(replica)
        source.prefix_cache = replica.prefix_cache
        source.scheduler = lambda: replica.scheduler
        return source

    def _scale(self, config: AutoscalerConfig, initial: int) -> None:
        router = self.router
        self._autoscaler = Autoscaler(
            self._env, config, initial, self.sources, self.replicas, lambda: router.queued, router.changed
        )
        self.log.scaling = self._autoscaler.log
        self._env.process(self._autoscaler.run())
        router.changed()

    def _left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Record that a request no longer occupies a replica."""
        self.router.left(request, endpoint)
        if self._autoscaler is not None:
            self._autoscaler.left(endpoint.index)

    def _break_down(self, faults: Faults, index: int) -> None:
        source, replica, since_s = self.sources[index], self.replicas[index], 0.0

        def fail() -> None:
            nonlocal since_s
            source.down, since_s = True, self._env.now
            if self._transfers is not None:
                self._transfers.failed(index)
            handed_on = {sequence.index for sequence in replica.scheduler.held}
            lost = replica.lose(source.lose())
            replica.stop()
            for sequence in lost:
                self._resumed[sequence.index] = sequence
                if sequence.index not in handed_on:
                    source.left(sequence.index)
            self.router.failed(source)
            self.router.restart([sequence.index for sequence in lost])

        def recover() -> None:
            source.down = False
            self.log.span("down", index, since_s, self._env.now)
            replica.resume()
            self.router.changed()
            if self._transfers is not None:
                self._transfers.call()

        self._env.process(break_down(self._env, faults.of(index), fail, recover))
