"""Equal replicas: their limits and prices, and how to build one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

import simulator.timing as timing
from forerun.arrays import FloatArray
from simulator.serving.compiled import engine_module
from simulator.serving.fleet.fleet_config import Role
from simulator.serving.kv_stores import LRU, EvictionFacts
from simulator.serving.limits import EngineLimits
from simulator.serving.prices import prices_of
from simulator.serving.rules import SCHEDULERS, SchedulerFacts

if TYPE_CHECKING:
    from simulator.serving.drafting import DraftingRule
    from simulator.serving.engine import (
        Budget,
        Copies,
        Engine,
        Eviction,
        Lane,
        NoPrefixCache,
        Prices,
        Scheduler,
        Sequence,
        Store,
        Tier,
    )
    from simulator.serving.fleet.replica import KvTransfers, ServingReplica
    from simulator.serving.kv_stores import EvictionSetting, StoreSpace
    from simulator.serving.log import RunLog
    from simulator.serving.request_source import RequestSource
    from simulator.speculation import AcceptanceSampler
    from simulator.speculation.attention_level.drawn import DrawnHits, DrawnTimer
    from simulator.speculation.confidence import VerifyBudget
    from simulator.timing import EngineTimer
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
    swap: StoreSpace | None = None
    rule: DraftingRule | None = None
    name: str = "all"
    role: Role = "both"
    chips: int = 1
    """Chips of one replica."""
    stores: tuple[StoreSpace, ...] = ()
    """Stores behind the prefix cache of each replica, in order; without any, evicted blocks are lost."""
    eviction: EvictionSetting = LRU
    """Eviction policy of the prefix caches."""
    recompute_s: tuple[float, float] = (0.0, 0.0)
    """Seconds per token to compute a prompt again, and how many more for each token before it."""
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
    def copies(self) -> bool:
        """True if its replicas copy KV to other memories of their server, or evict it by time."""
        return self.swap is not None or bool(self.stores) or self.eviction != LRU

    @property
    def evictions(self) -> list[EvictionSetting]:
        """Eviction policies of the prefix caches and of the stores behind them."""
        return [self.eviction, *(store.eviction for store in self.stores)]

    @property
    def as_reference(self) -> Pool:
        """The same pool with LRU in all places."""
        stores = tuple(replace(store, eviction=LRU) for store in self.stores)
        return replace(self, eviction=LRU, stores=stores)

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
        return isinstance(self.timer, timing.StagedTimer)

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
        self._clocks: dict[int, array[float]] = {}
        self._lanes: dict[tuple[int, str], Lane] = {}
        self._disks: dict[tuple[int, int, str], Store] = {}

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
        from simulator.serving.fleet.replica import ServingReplica

        pool, engine, timer = self.pool, self.engine, self.pool.timer
        prices = self._prices
        if pool.hits is not None:
            assert isinstance(timer, timing.ModelTimer)
            prices = self._make_prices(pool.hits.timer(timer, index))
        stages = {"stages": timer.stages} if isinstance(timer, timing.StagedTimer) else {}
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
            copies=self._copies(index) if pool.copies else None,
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

    def _lane(self, index: int, name: str, latency_s: float, bytes_per_s: float, workers: int = 1) -> Lane:
        """The lane of a replica with this name, made when it is first needed."""
        if (index, name) not in self._lanes:
            lane: Lane = self.engine.Lane(latency_s, bytes_per_s, workers)
            self._lanes[index, name] = lane
            self.log.lanes.append((name, lane))
        return self._lanes[index, name]

    def _copies(self, index: int) -> Copies:
        """Lanes of a replica for the copies that its steps overlap or wait for."""
        pool, swap = self.pool, self.pool.swap
        reads = [(self._store_lanes(index, store)[0], store.first_share) for store in pool.stores if not store.shared]
        lane = None if swap is None else self._lane(index, "swap", swap.latency_s, swap.read_bytes_per_s)
        stages = pool.timer.stages if isinstance(pool.timer, timing.StagedTimer) else 1
        block_bytes = 0.0 if swap is None else swap.block_bytes
        copies: Copies = self.engine.Copies(self._clock(index), reads, lane, block_bytes, stages)
        return copies

    def _clock(self, index: int) -> array[float]:
        return self._clocks.setdefault(index, array("d", [0.0]))

    def _store_lanes(self, index: int, store: StoreSpace) -> tuple[Lane, Lane]:
        """Read and write lane between a replica and one of its stores; of a shared store, its own lanes."""
        index = -1 if store.shared else index
        read = self._lane(index, f"{store.name} read", store.latency_s, store.read_bytes_per_s, store.lanes)
        write_s = store.write_latency_s
        return read, self._lane(index, f"{store.name} write", write_s, store.write_bytes_per_s, store.lanes)

    def _tier(self, index: int, group: int, space: StoreSpace, lose_disks: bool) -> Tier:
        """Access of one prefix cache to a store. Disks outlast the failure of their server."""
        key, groups = (index, group, space.name), self.pool.limits.groups
        if space.shared:
            if self.log.shared_store is None:
                store = self.engine.Store(space.num_blocks, self._policy(space.eviction, None))
                self.log.shared_store = (store, *self._store_lanes(index, space))
            store, *lanes = self.log.shared_store
            lanes += [self._lane(index, f"{space.name} link {way}", *space.link) for way in ("read", "write")]
        else:
            known, lanes = self._disks.get(key), list(self._store_lanes(index, space))
            if known is None or lose_disks or space.medium != "disk":
                store = self.engine.Store(space.num_blocks // groups, self._policy(space.eviction, index))
                if space.medium == "disk":
                    self._disks[key] = store
            else:
                store = known
                store.lose_unwritten(self._clock(index)[0])
        tier: Tier = self.engine.Tier(store, *lanes[:2], space, *lanes[2:])
        self.log.tiers.append(tier)
        return tier

    def _policy(self, setting: EvictionSetting, index: int | None) -> tuple[Eviction, PrefixHashes] | None:
        """Eviction policy for a cache of replica ``index``, or for the fleet's store."""
        if setting == LRU:
            return None
        order = self.log.reference_order(index) if setting.rule.clairvoyant else ()
        if self.log.eviction_facts is None:
            self.log.eviction_facts = EvictionFacts.of(self.log.stream)
        facts = replace(self.log.eviction_facts, retention_s=setting.retention_s, order=order)
        return setting.policy(self.engine, facts)

    def _make_scheduler(self, index: int, lose_disks: bool = False) -> Scheduler:
        """Make a replica's scheduler with empty caches; a ``GroupedScheduler`` for several attention groups."""
        pool, engine, limits = self.pool, self.engine, self.pool.limits
        make = "PipelinedScheduler" if pool.staged else pool.rules.make
        rule = getattr(engine, make) if isinstance(make, str) else make
        swap = None if pool.swap is None else replace(pool.swap, num_blocks=pool.swap.num_blocks // limits.groups)
        made: list[Scheduler] = [rule(limits, cache, swap) for cache in self._caches(index, lose_disks)]
        grouped: Scheduler = made[0] if limits.groups == 1 else engine.GroupedScheduler(limits, made, pool.swap)
        return grouped

    def _caches(self, replica: int, lose_disks: bool) -> Iterator[NoPrefixCache]:
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
            tiers = tuple(self._tier(replica, group, store, lose_disks) for store in pool.stores)
            holders = None if group else log.holders
            size, page = pool.limits.block_size, pool.limits.page_tokens
            yield engine.PrefixCache(
                *(hashes, size, log.input_tokens, outputs, tiers, holders, replica, page),
                clock=self._clock(replica),
                recompute_s=pool.recompute_s,
                first_walk=(replica * groups + group) << 36,
                window_blocks=pool.limits.window_blocks,
                window_room=pool.limits.window_room,
                eviction=self._policy(pool.eviction, replica),
            )
