"""Equal replicas: what each can hold and do, and how one is built."""

from __future__ import annotations

from dataclasses import dataclass

import simpy

from simulator.errors import ForerunError
from simulator.serving.drafting import DraftingRule
from simulator.serving.exact import ExactReplica, Handover
from simulator.serving.fast import FastReplica
from simulator.serving.feed import Feed
from simulator.serving.fleet_config import Role
from simulator.serving.host_cache import HostCache, OffloadSpace
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog
from simulator.serving.pipeline import PipelinedReplica, PipelinedScheduler
from simulator.serving.prefix_cache import NoPrefixCache, PrefixCache
from simulator.serving.rules import SCHEDULERS, SchedulerFacts, made
from simulator.serving.scheduler import Scheduler
from simulator.serving.sequence import Sequence
from simulator.serving.swap import SwapSpace
from simulator.speculation import AcceptanceSampler
from simulator.timing import EngineTimer, StagedTimer


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal replicas and the part of the work that they do."""

    replicas: int
    scheduler: str
    stepping: str
    limits: EngineLimits
    timer: EngineTimer
    sampler: AcceptanceSampler | None = None
    prefix_caching: bool = False
    swap: SwapSpace | None = None
    rule: DraftingRule | None = None
    name: str = "all"
    role: Role = "both"
    chips: int = 1
    """Of one replica."""
    offload: OffloadSpace | None = None
    """Host memory of a replica for what its prefix cache evicts; None: it is lost."""

    @property
    def rules(self) -> SchedulerFacts:
        """What is to be known of the batching rule."""
        return SCHEDULERS[self.scheduler]

    @property
    def fast(self) -> bool:
        """Whether the fast path can run these replicas."""
        limits = self.limits
        return (
            self.stepping == "fast"
            and self.rules.fast
            and self.swap is None
            and self.role == "both"
            and not isinstance(self.timer, StagedTimer)
            and (self.rule is None or self.rule.by_batch_alone)
            and limits.max_num_seqs * limits.query_len <= limits.max_num_batched_tokens
        )

    def refusal(self, input_tokens: int, output_tokens: int) -> str | None:
        """Why a request can never be served here, or None when it can."""
        if self.role != "prefill":
            return self.limits.refusal(input_tokens, output_tokens)
        # A request that starts again after a failure has its delivered tokens behind its prompt.
        return self.limits.refusal(input_tokens + output_tokens - 1, 1)

    def replica(
        self,
        env: simpy.Environment,
        index: int,
        feed: Feed,
        log: RunLog,
        fast: bool,
        resumed: dict[int, Sequence] | None = None,
        handover: Handover | None = None,
    ) -> FastReplica | ExactReplica:
        """One of the replicas.

        Args:
            env: simulated time.
            index: its number.
            feed: where its requests come from.
            log: of the run.
            fast: whether it advances from event to event; else step by step, with pipeline stages batch by batch.
            resumed: requests that start again after a failure, with what they have delivered.
            handover: the way from prefill to decode replicas, where they are apart.

        Raises:
            ForerunError: replicas with pipeline stages have no part in hand-over, failures or swapping.
        """
        if fast:
            cache, rule = self._cache(log, index), self.rule
            return FastReplica(env, index, feed, self.timer, self.limits, self.sampler, cache, log, rule, self.offload)
        if isinstance(self.timer, StagedTimer):
            if handover is not None or self.swap is not None or self.rule is not None or self.role != "both":
                raise ForerunError(
                    f"pool {self.name}: replicas with pipeline stages do all of the work themselves, draft a fixed "
                    f"number of tokens and recompute what they preempt"
                )
            scheduler = PipelinedScheduler(self.limits, self._cache(log, index))
            return PipelinedReplica(env, index, feed, scheduler, self.timer, self.limits, self.sampler, log)

        def make_scheduler() -> Scheduler:
            found: Scheduler = made(self.rules.make, self.limits, self._cache(log, index), self.swap)
            return found

        return ExactReplica(
            env,
            index,
            feed,
            make_scheduler,
            self.timer,
            self.limits,
            self.sampler,
            log,
            self.rule,
            resumed,
            self.role == "prefill",
            handover,
            self.offload,
        )

    def _cache(self, log: RunLog, replica: int) -> NoPrefixCache:
        hashes = log.stream.prefix_hashes
        if hashes is None or not self.prefix_caching:
            return NoPrefixCache()
        if hashes.block_tokens % self.limits.block_size:
            raise ForerunError(
                f"engine.block_size: blocks of {self.limits.block_size} tokens cannot cache prefix hashes of "
                f"{hashes.block_tokens} tokens; choose a divisor of it, or enable_prefix_caching: false"
            )
        outputs = log.output_tokens if log.stream.answers_hashed else None
        host = None
        if log.holders is not None:
            log.holders.drop_all(1 << replica)
        if self.offload is not None:
            host = HostCache(self.offload.num_blocks)
            log.host_caches.append(host)
        return PrefixCache(hashes, self.limits.block_size, log.input_tokens, outputs, host, log.holders, replica)
