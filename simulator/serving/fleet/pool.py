"""Equal replicas: their limits and prices, and how to build one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from forerun.arrays import FloatArray
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
    from simulator.serving.engine import Budget, Engine, NoPrefixCache, Prices, Scheduler, Sequence
    from simulator.speculation.attention_level.drawn import DrawnHits, DrawnTimer
    from traces import PrefixHashes


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal replicas and their role."""

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
    """Chips of one replica."""
    offload: HostSpace | None = None
    """Host memory of a replica for evicted prefix-cache blocks; None: evicted blocks are discarded."""
    step_factors: tuple[float, float] = (1.0, 1.0)
    """Factors on the seconds of steps with and without prompt chunks, to study errors of prices."""
    step_more_s: float = 0.0
    """Seconds that every step takes more than that, or less where negative: measured host time."""
    hits: DrawnHits | None = None
    """Draws of attention-level speculation, for each replica; None: steps take the mean, or there is none."""
    budget: VerifyBudget | None = None
    """Number of draft tokens that a step verifies of each sequence; None: all."""

    @property
    def rules(self) -> SchedulerFacts:
        """Facts about the batching rule."""
        return SCHEDULERS[self.scheduler]

    @property
    def measured(self) -> bool:
        """True if its steps take other seconds than they are priced at."""
        return self.step_factors != (1.0, 1.0) or self.step_more_s != 0.0

    def taken_s(self, priced_s: FloatArray, prompts: bool) -> FloatArray:
        """Seconds of steps with or without prompt chunks, from those that they are priced at."""
        taken_s = priced_s * self.step_factors[0 if prompts else 1]
        return np.asarray(np.maximum(taken_s + self.step_more_s, taken_s / 2)) if self.step_more_s else taken_s

    @property
    def staged(self) -> bool:
        """True if its replicas have pipeline stages."""
        return isinstance(self.timer, StagedTimer)

    def refusal(self, input_tokens: int, output_tokens: int) -> str | None:
        """Reason why a request can never be served here, or None when it can."""
        if self.role != "prefill":
            return self.limits.refusal(input_tokens, output_tokens)
        # A request that starts again after a failure has its delivered tokens behind its prompt.
        return self.limits.refusal(input_tokens + output_tokens - 1, 1)

    @property
    def interpreted(self) -> bool:
        """True if its replicas run the engine's source: as configured, or for a custom scheduler that builds on it."""
        make = self.rules.make
        is_custom = isinstance(make, type) and issubclass(make, engine_module(interpreted=True).Scheduler)
        return is_custom or self.stepping == "exact-steps"

    def shares_blocks(self, hashes: PrefixHashes | None) -> TypeGuard[PrefixHashes]:
        """True if its requests can share KV blocks: prefix caching is on, and the requests have prefix hashes."""
        return hashes is not None and self.prefix_caching


class ReplicaBuilder:
    """Builds the replicas of a pool in one run; they share prices, random draws, the draft budget and the output.

    Args:
        pool: the replicas.
        log: log for the results.
    """

    def __init__(self, pool: Pool, log: RunLog) -> None:
        self.pool, self.log = pool, log
        engine = self.engine = engine_module(pool.interpreted)
        self._exact = pool.stepping == "exact-steps"
        if engine.SOURCE not in log.outputs:
            log.outputs[engine.SOURCE] = engine.Output(log, self._exact)
        self._draws = None if pool.sampler is None else engine.Draws(pool.sampler)
        self._budget = self._make_budget()
        self._prices = self._make_prices(pool.timer) if pool.hits is None else None

    def replica(
        self,
        index: int,
        source: RequestSource,
        resumed: dict[int, Sequence] | None = None,
        kv_transfers: KvTransfers | None = None,
    ) -> ServingReplica:
        """Build a replica.

        Args:
            index: number of the replica.
            source: source of the replica's requests.
            resumed: requests that start again after a failure, as they were in the replica that failed.
            kv_transfers: KV transfers from prefill to decode replicas, if disaggregated.
        """
        pool, engine, timer = self.pool, self.engine, self.pool.timer
        prices = self._prices
        if pool.hits is not None:
            assert isinstance(timer, ModelTimer)
            prices = self._make_prices(pool.hits.timer(timer, index))
        stages = {"stages": timer.stages} if isinstance(timer, StagedTimer) else {}
        core: Engine = (engine.PipelinedEngine if stages else engine.Engine)(
            **stages,
            index=index,
            source=source,
            scheduler=self._make_scheduler(index),
            prices=prices,
            output=self.log.outputs[engine.SOURCE],
            draws=self._draws,
            budget=self._budget,
            drafting=None if pool.rule is None else engine.Drafting(pool.rule, pool.limits, timer.windows),
            resumed=resumed,
            kv_transfers=kv_transfers,
            prefill_only=pool.role == "prefill",
            offload=pool.offload,
            step_factors=pool.step_factors,
            step_more_s=pool.step_more_s,
        )
        return ServingReplica(core, source, partial(self._make_scheduler, index), engine.Lockstep)

    def _make_prices(self, timer: EngineTimer | DrawnTimer) -> Prices:
        """Step prices; the oracle asks the timing model itself, so that the tables are held against it too."""
        plain = self._exact or timer is not self.pool.timer
        prices: Prices = self.engine.Prices(timer) if plain else prices_of(self.pool.timer, self.engine)
        return prices

    def _make_budget(self) -> Budget | None:
        """The rule for draft tokens to verify; None without one."""
        pool, rule = self.pool, self.pool.budget
        if rule is None or pool.sampler is None:
            return None
        classes = len(np.atleast_2d(pool.sampler.rates))
        if rule.confidence == "calibrated" and classes != len(rule.worth):
            raise ValueError(f"the rule knows {len(rule.worth)} classes of drafts, {classes} are drawn")
        most = min(pool.limits.max_num_seqs, len(self.log.stream)) * pool.limits.query_len
        budget: Budget = self.engine.Budget(rule, self._draws, most)
        return budget

    def _make_scheduler(self, index: int) -> Scheduler:
        """Make a replica's scheduler with empty caches; a ``GroupedScheduler`` for several attention groups."""
        pool, engine, limits = self.pool, self.engine, self.pool.limits
        make = "PipelinedScheduler" if pool.staged else pool.rules.make
        rule = getattr(engine, make) if isinstance(make, str) else make
        swap = None if pool.swap is None else replace(pool.swap, num_blocks=pool.swap.num_blocks // limits.groups)
        made: list[Scheduler] = [rule(limits, cache, swap) for cache in self._caches(index)]
        grouped: Scheduler = made[0] if limits.groups == 1 else engine.GroupedScheduler(limits, made, pool.swap)
        return grouped

    def _caches(self, replica: int) -> Iterator[NoPrefixCache]:
        """The prefix cache of each attention group; a prefix-aware router uses the first."""
        pool, engine, log = self.pool, self.engine, self.log
        hashes, groups = log.stream.prefix_hashes, pool.limits.groups
        if not pool.shares_blocks(hashes):
            yield from (engine.NoPrefixCache() for _ in range(groups))
            return
        outputs = log.output_tokens if log.stream.answers_hashed else None
        if log.holders is not None:
            log.holders.drop_all(replica)
        for group in range(groups):
            host = None
            if pool.offload is not None:
                host = engine.HostCache(pool.offload.num_blocks // groups)
                log.host_caches.append(host)
            holders = None if group else log.holders
            size, page = pool.limits.block_size, pool.limits.page_tokens
            yield engine.PrefixCache(hashes, size, log.input_tokens, outputs, host, holders, replica, page)
