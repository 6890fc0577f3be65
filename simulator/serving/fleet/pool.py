"""Equal replicas: what each can hold and do, and how one is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from simulator.serving.compiled import engine_module
from simulator.serving.drafting import DraftingRule
from simulator.serving.fleet.fleet_config import Role
from simulator.serving.fleet.replica import KvTransfers, ServingReplica
from simulator.serving.host_cache import HostSpace
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog
from simulator.serving.prices import prices_of
from simulator.serving.request_source import RequestSource
from simulator.serving.rules import SCHEDULERS, SchedulerFacts
from simulator.speculation import AcceptanceSampler
from simulator.speculation.confidence import VerifyBudget
from simulator.timing import EngineTimer, ModelTimer, StagedTimer

if TYPE_CHECKING:
    from simulator.serving.engine import Engine, NoPrefixCache, Scheduler, Sequence
    from simulator.speculation.attention_level.drawn import DrawnHits, DrawnTimer
    from traces import PrefixHashes


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
    swap: HostSpace | None = None
    rule: DraftingRule | None = None
    name: str = "all"
    role: Role = "both"
    chips: int = 1
    """Of one replica."""
    offload: HostSpace | None = None
    """Host memory of a replica for what its prefix cache evicts; None: it is lost."""
    step_factors: tuple[float, float] = (1.0, 1.0)
    """On the seconds of steps with prompt chunks, and of the others: what if prices were off by so much."""
    hits: DrawnHits | None = None
    """How each replica draws what passes attention-level speculation; None: steps take the mean, or there is none."""
    budget: VerifyBudget | None = None
    """How many draft tokens of each sequence a step verifies; None: all."""

    @property
    def rules(self) -> SchedulerFacts:
        """What is to be known of the batching rule."""
        return SCHEDULERS[self.scheduler]

    @property
    def staged(self) -> bool:
        """Whether its replicas have pipeline stages."""
        return isinstance(self.timer, StagedTimer)

    def refusal(self, input_tokens: int, output_tokens: int) -> str | None:
        """Why a request can never be served here, or None when it can."""
        if self.role != "prefill":
            return self.limits.refusal(input_tokens, output_tokens)
        # A request that starts again after a failure has its delivered tokens behind its prompt.
        return self.limits.refusal(input_tokens + output_tokens - 1, 1)

    def replica(
        self,
        index: int,
        source: RequestSource,
        log: RunLog,
        resumed: dict[int, Sequence] | None = None,
        kv_transfers: KvTransfers | None = None,
    ) -> ServingReplica:
        """One of the replicas.

        Args:
            index: its number.
            source: where its requests come from.
            log: where results go.
            resumed: requests that start again after a failure, as they were in the replica that failed.
            kv_transfers: from prefill to decode replicas, if the two are disaggregated.
        """
        oracle = self.stepping == "exact-steps"
        engine = engine_module(self.interpreted)
        timer, staged = self.timer, self.staged
        scaled = self.step_factors != (1.0, 1.0)
        make = "PipelinedScheduler" if staged else self.rules.make

        def make_scheduler() -> Scheduler:
            rule = getattr(engine, make) if isinstance(make, str) else make
            groups = self.limits.groups
            swap = None if self.swap is None else replace(self.swap, num_blocks=self.swap.num_blocks // groups)
            made: list[Scheduler] = [rule(self.limits, cache, swap) for cache in self._caches(engine, log, index)]
            grouped: Scheduler = made[0] if groups == 1 else engine.GroupedScheduler(self.limits, made, self.swap)
            return grouped

        def shared(what: str, owner: object, make: Callable[[], Any]) -> Any:
            value = log.shared.get((what, engine.SOURCE, id(owner)))
            if value is None:
                value = log.shared[what, engine.SOURCE, id(owner)] = make()
            return value

        replica_timer: EngineTimer | DrawnTimer = timer
        if self.hits is not None:
            assert isinstance(timer, ModelTimer)
            replica_timer = self.hits.timer(timer, index)

        def make_prices() -> Any:
            # The oracle asks the timing model itself, so that the tables are held against it too.
            prices = engine.Prices(replica_timer) if oracle or replica_timer is not timer else prices_of(timer, engine)
            return engine.ScaledPrices(prices, *self.step_factors) if scaled else prices

        def make_budget() -> Any:
            if self.budget is None or self.sampler is None:
                return None
            classes = len(np.atleast_2d(self.sampler.rates))
            if self.budget.confidence == "calibrated" and classes != len(self.budget.worth):
                raise ValueError(f"the rule knows {len(self.budget.worth)} classes of drafts, {classes} are drawn")
            most_tokens = self.limits.max_num_seqs * self.limits.query_len
            return engine.Budget(self.budget, draws, most_tokens)

        stages = {"stages": timer.stages} if isinstance(timer, StagedTimer) else {}
        draws = shared("draws", self.sampler, lambda: self.sampler and engine.Draws(self.sampler))
        core: Engine = (engine.PipelinedEngine if staged else engine.Engine)(
            **stages,
            index=index,
            source=source,
            scheduler=make_scheduler(),
            prices=shared("prices", replica_timer, make_prices),
            output=shared("output", log, lambda: engine.Output(log, oracle)),
            draws=draws,
            budget=shared("budget", self.budget, make_budget),
            drafting=None if self.rule is None else engine.Drafting(self.rule, self.limits, timer.windows),
            resumed=resumed,
            kv_transfers=kv_transfers,
            prefill_only=self.role == "prefill",
            offload=self.offload,
        )
        return ServingReplica(core, source, make_scheduler, engine.Lockstep)

    @property
    def interpreted(self) -> bool:
        """Whether its replicas run the engine's source: as configured, or for a custom scheduler that builds on
        it."""
        make = self.rules.make
        is_custom = isinstance(make, type) and issubclass(make, engine_module(interpreted=True).Scheduler)
        return is_custom or self.stepping == "exact-steps"

    def shares_blocks(self, hashes: PrefixHashes | None) -> TypeGuard[PrefixHashes]:
        """Whether its requests can share KV blocks: prefix caching is on, and the requests have prefix hashes."""
        return hashes is not None and self.prefix_caching

    def _caches(self, engine: Any, log: RunLog, replica: int) -> Iterator[NoPrefixCache]:
        """The prefix cache of each attention group; a prefix-aware router uses the first."""
        hashes, groups = log.stream.prefix_hashes, self.limits.groups
        if not self.shares_blocks(hashes):
            yield from (engine.NoPrefixCache() for _ in range(groups))
            return
        outputs = log.output_tokens if log.stream.answers_hashed else None
        if log.holders is not None:
            log.holders.drop_all(replica)
        for group in range(groups):
            host = None
            if self.offload is not None:
                host = engine.HostCache(self.offload.num_blocks // groups)
                log.host_caches.append(host)
            holders = None if group else log.holders
            size, page = self.limits.block_size, self.limits.page_tokens
            yield engine.PrefixCache(hashes, size, log.input_tokens, outputs, host, holders, replica, page)
