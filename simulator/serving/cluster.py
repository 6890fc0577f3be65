"""Replicas behind a router, run to the end of the workload in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import simpy

from simulator.errors import ForerunError
from simulator.serving.clock import ROUTE, Phase
from simulator.serving.drafting import DraftingRule
from simulator.serving.exact import ExactReplica
from simulator.serving.fast import FastReplica
from simulator.serving.feed import ClosedFeed, Feed, OpenFeed, RoutedFeed
from simulator.serving.limits import EngineLimits
from simulator.serving.log import FULL_ROWS, RunLog, StepLog
from simulator.serving.pipeline import PipelinedReplica, PipelinedScheduler
from simulator.serving.prefix_cache import NoPrefixCache, PrefixCache
from simulator.serving.scheduler import SCHEDULERS
from simulator.speculation import AcceptanceSampler
from simulator.timing import EngineTimer, StagedTimer
from simulator.workload import RequestStream


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal replicas, how each schedules, and how requests are spread over them."""

    replicas: int
    routing: str
    """``round-robin`` or ``least-outstanding``."""
    scheduler: str
    stepping: str
    limits: EngineLimits
    timer: EngineTimer
    sampler: AcceptanceSampler | None = None
    prefix_caching: bool = False
    rule: DraftingRule | None = None
    """The policy that chooses the draft tokens of each step; None where their number never changes."""

    @property
    def fast(self) -> bool:
        """Whether the fast path can run this configuration."""
        limits = self.limits
        return (
            self.stepping == "fast"
            and self.scheduler == "vllm-v1"
            and not isinstance(self.timer, StagedTimer)
            and limits.max_num_seqs * limits.query_len <= limits.max_num_batched_tokens
            and (self.rule is None or self.rule.by_batch_alone)
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
        positions = self.sampler.num_speculative_tokens if self.sampler is not None else 0
        log = RunLog(
            stream, StepLog(len(self.timer.windows), full_step_rows, self.rule is not None), positions, progress
        )
        served = []
        for request, (prompt, output) in enumerate(zip(log.input_tokens, log.output_tokens, strict=True)):
            reason = self.limits.refusal(prompt, output)
            if reason is None:
                served.append(request)
            else:
                log.refuse(request, reason)
        env = simpy.Environment()
        closed_loop = stream.max_concurrency is not None
        if self.replicas == 1 or (self.routing == "round-robin" and not closed_loop):
            for index in range(self.replicas):
                own = served[index :: self.replicas]
                feed: Feed = OpenFeed(own, log, self.limits)
                if stream.max_concurrency is not None:
                    feed = ClosedFeed(own, stream.max_concurrency, log, self.limits)
                env.process(self.replica(env, index, feed, log))
        else:
            _Router(self, env, served, log)
        env.run()
        log.settle()
        return log

    def replica(self, env: simpy.Environment, index: int, feed: Feed, log: RunLog) -> Generator[simpy.Event]:
        """The process of one replica."""
        cache = self._prefix_cache(log)
        if isinstance(self.timer, StagedTimer):
            staged = PipelinedScheduler(self.limits, cache)
            return PipelinedReplica(env, index, feed, staged, self.timer, self.limits, self.sampler, log).serve()
        if self.fast:
            return FastReplica(env, index, feed, self.timer, self.limits, self.sampler, cache, log, self.rule).serve()
        scheduler = SCHEDULERS[self.scheduler](self.limits, cache)
        return ExactReplica(env, index, feed, scheduler, self.timer, self.limits, self.sampler, log, self.rule).serve()

    def _prefix_cache(self, log: RunLog) -> NoPrefixCache:
        hashes = log.stream.prefix_hashes
        if hashes is None or not self.prefix_caching:
            return NoPrefixCache()
        if hashes.block_tokens % self.limits.block_size:
            raise ForerunError(
                f"engine.block_size: blocks of {self.limits.block_size} tokens cannot cache prefix hashes of "
                f"{hashes.block_tokens} tokens; choose a divisor of it, or enable_prefix_caching: false"
            )
        return PrefixCache(hashes, self.limits.block_size, log.input_tokens)


class _Router:
    """Hands each request to a replica when it arrives, after all completions of that instant."""

    def __init__(self, cluster: Cluster, env: simpy.Environment, requests: list[int], log: RunLog) -> None:
        self._env = env
        self._requests = requests
        self._log = log
        self._routing = cluster.routing
        self._closed_loop = log.stream.max_concurrency is not None
        self._next = 0
        self._due = 0
        """Requests to send in this instant."""
        self._feeds = [RoutedFeed(env, log, cluster.limits, self._on_finished) for _ in range(cluster.replicas)]
        for index, feed in enumerate(self._feeds):
            feed.replica = env.process(cluster.replica(env, index, feed, log))
        if log.stream.max_concurrency is None:
            env.process(self._arrivals())
        else:
            self._request_sends(min(log.stream.max_concurrency, len(requests)))

    def _arrivals(self) -> Generator[simpy.Event]:
        """Announce each arrival of an open loop at its time."""
        for request in self._requests:
            arrival = self._log.arrival_s[request]
            if arrival > self._env.now:
                yield self._env.timeout(arrival - self._env.now)
            self._request_sends(1)

    def _on_finished(self) -> None:
        if self._closed_loop:
            self._request_sends(1)

    def _request_sends(self, count: int) -> None:
        if not self._due:
            Phase(self._env, ROUTE).callbacks.append(self._send)
        self._due += count

    def _send(self, event: simpy.Event) -> None:
        """Hand out what is due now."""
        due, self._due = self._due, 0
        for request in self._requests[self._next : self._next + due]:
            if self._closed_loop:
                self._log.arrival_s[request] = self._env.now
            self._choose().put(request)
            self._next += 1
        if self._next == len(self._requests):
            for feed in self._feeds:
                feed.close()

    def _choose(self) -> RoutedFeed:
        if self._routing == "round-robin":
            return self._feeds[self._next % len(self._feeds)]
        return min(self._feeds, key=lambda feed: feed.outstanding)
