"""Records of a finished run, the source of its metrics, document and tables, and their computation from the log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NotRequired, Self

import numpy as np
from typing_extensions import TypedDict

from forerun.arrays import IntArray
from forerun.result import Result
from hwprofiles import Chip
from simulator.llm import load_architecture
from simulator.running.build import Build, PoolBuild
from simulator.running.metrics.posterior import Learnt
from simulator.running.metrics.statistics import ratio
from simulator.running.metrics.summary import run_duration_s
from simulator.running.metrics.tasks import task_section
from simulator.running.scenario import Scenario
from simulator.running.step_rows import StepDetail, StepRows, StepTotals
from simulator.serving import (
    EngineCounters,
    GapCounts,
    HostCacheReport,
    KvCacheReport,
    ReplicaUse,
    RequestRecords,
    RunLog,
    ScalingLog,
    SpeculationCounters,
    StepRecords,
    StoreReport,
    StoreSpace,
    TransferReport,
)
from simulator.serving.fleet.fleet_config import Role
from simulator.serving.log import Span
from simulator.serving.store_config import DEVICE
from simulator.timing import Evidence, MemoryPlan, load_framework
from simulator.timing.releases import build_age

if TYPE_CHECKING:
    from simulator.serving.engine import Tier


PARTS = 60
"""Parts of a run in its figures over time."""


class ErrorSource(TypedDict):
    """A component of step times and the range of its error."""

    name: str
    family: str
    """Sources of one family have ``ALIKE`` of their variance in common."""
    draws: str
    """Name of the source's random draws. Kernels of one chip under two names, or of a chip and a chip that extends it,
    share their draws, because their errors are equal."""
    share: dict[str, float]
    """Share of the source in the seconds of each kind of step."""
    low: dict[str, float]
    """Factor on the source at the lower end of its 90 % interval, by kind of step."""
    high: dict[str, float]


class Axis(TypedDict):
    """A direction of variation of step times, and the response of the run's metrics."""

    name: str
    deviation: float
    """Standard deviation along the direction, in logarithms."""
    direction: list[float]
    """Unit vector over ``KINDS``; empty for errors that are not in step times."""
    response: dict[str, list[float]]
    """Logarithm of each metric's factor at both ends of the axis's 90 % interval. For measured runs also, in between,
    at the ends of the 50 % interval."""
    joint: NotRequired[dict[str, list[float]]]
    """Weights of the independent draws behind the error of each kind of figure; one draw for all without them."""


class ModelError(TypedDict):
    """Model error of a run, as plain JSON values."""

    level: float
    sources: list[ErrorSource]
    axes: list[Axis]
    sampling: dict[str, float]
    """Standard error of each metric from batch means over consecutive requests, in logarithms."""
    requests: int
    """Number of requests that were simulated again for every direction."""
    stratum: dict[str, str]
    """Evidence class of the run, by the fields of ``Stratum``."""
    step_ms: dict[str, float]
    """Mean milliseconds of each kind of step."""
    conditions: list[float]
    """Most requests at once on a replica, and mean input and output tokens of a request."""
    after_measuring: NotRequired[dict[str, float]]
    """Widths of the 90 % intervals of means after one measured run of this load; upper end over lower."""
    learnt: NotRequired[dict[str, Learnt]]
    """Estimates of the causes from measured runs of the deployment; absent without such runs."""
    served: str
    """Sentence about the errors of measured runs in the same evidence class."""
    doubted: NotRequired[bool]
    """True if the measured runs are of another deployment and lie outside their nine in ten there."""
    stated: bool
    """False if the engine's parameters are assumed and no run of it was measured: figures have no interval then."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool of identical replicas of a finished run, without the objects that built it."""

    name: str
    role: Role
    replicas: int
    chips: int
    """Number of chips of one replica."""
    chip: Chip
    memory: MemoryPlan
    usd_per_chip_hour: float | None
    peak_flops_per_s: float

    @classmethod
    def of(cls, pool: PoolBuild) -> PoolFacts:
        return cls(*(getattr(pool, field.name) for field in fields(cls)))


@dataclass(frozen=True, eq=False, repr=False)
class RunRecords(Result):
    """Records of a finished run."""

    kind = "run"
    report = "dashboards.report"

    scenario: Scenario
    seed: int
    requests: RequestRecords
    steps: StepRecords
    totals: StepTotals
    """Sums over all engine steps, independent of the recorded rows."""
    gaps: GapCounts
    kv: KvCacheReport
    speculation: SpeculationCounters | None
    engine: EngineCounters
    basis: str
    """The weakest evidence level behind more than a twentieth of the device time."""
    evidence: Evidence
    """Shares of device time by evidence level of the kernels; none is calibrated for an engine outside the fits."""
    notes: tuple[str, ...]
    chips: int
    pools: tuple[PoolFacts, ...]
    """Kinds of replicas, in the order of their replica numbers."""
    replicas: tuple[ReplicaUse, ...]
    """Usage of each replica."""
    transfers: TransferReport | None
    """KV transfers between pools; None without disaggregated prefill and decode."""
    restarts: int
    """Number of restarts of requests because their replica failed."""
    spans: tuple[Span, ...] = ()
    """Time spans of KV transfers and failures, for the timeline."""
    steps_kept: bool = True
    """True if ``steps`` has a row per engine step (or per few of them), not only sums over very many."""
    scaling: ScalingLog | None = None
    """Log of the autoscaler; None without one."""
    tasks: dict[str, Any] | None = None
    """Tasks and guessed tool calls; None if no request waits for another."""
    detail: StepDetail | None = None
    """Parts of the run's steps, for the timeline; None if the run is too long."""
    shifts: Mapping[str, float] = field(default_factory=dict)
    """Factors on the figures of a kind that measured runs of the deployment ask for."""
    model_error: ModelError | None = None
    """Estimated model error of the run's metrics; None without ``intervals``."""

    @classmethod
    def of(cls, build: Build, log: RunLog, rows: StepRows, totals: StepTotals, began: tuple[float, float]) -> Self:
        """Collect the records of a run that has just ended; ``began`` is ``clock()`` at its start."""
        requests, evidence, pools = request_records(log), Evidence.of(totals), build.pools
        if any(_beyond_fits(build)):
            evidence = Evidence(0.0, evidence.calibrated + evidence.extrapolated, evidence.datasheet)
        cpu_s, wall_s = (now - then for now, then in zip(clock(), began, strict=True))
        return cls(
            scenario=build.scenario,
            seed=build.seed,
            requests=requests,
            steps=rows.steps(),
            totals=totals,
            gaps=log.gaps(),
            kv=kv_report(build, totals, requests, log),
            speculation=speculation_counters(log, build.main),
            engine=EngineCounters(
                int(totals.steps.sum()), log.exact_steps, float(totals.end_s.max()), cpu_s=cpu_s, wall_s=wall_s
            ),
            basis=evidence.basis,
            evidence=evidence,
            notes=(*build.notes, *log.stream.notes),
            chips=build.chips,
            pools=tuple(map(PoolFacts.of, pools)),
            replicas=replica_use(log, totals, pools, run_duration_s(requests) or 0.0),
            transfers=transfer_report(log) if build.fleet.links else None,
            restarts=int(np.sum(log.restarts)),
            spans=tuple(log.spans),
            scaling=log.scaling,
            tasks=None if log.stream.follows is None else task_section(log.stream, requests),
            detail=StepDetail.of(log.steps, build.main.timer) if len(pools) == 1 and rows.keep else None,
            steps_kept=rows.keep,
        )


def clock() -> tuple[float, float]:
    """CPU seconds of this process and its ended child processes, and wall-clock time in seconds."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system, time.perf_counter()


def _beyond_fits(build: Build) -> Iterator[bool]:
    """True for each pool that depends on assumptions or has an engine release outside the fits."""
    yield from (pool.assumed for pool in build.pools)
    engine = build.scenario.engine
    library, model = load_framework(engine.framework).kernel_library, load_architecture(build.scenario.model).name
    yield build_age(library, engine.release, model) != "fitted"


def request_records(log: RunLog) -> RequestRecords:
    """Request records from a log, one row per request."""
    kinds: dict[str, Any] = dict.fromkeys(("arrival_s", "scheduled_s", "first_token_s", "finished_s"))
    kinds |= dict.fromkeys(
        ("replica", "preemptions", "cached_tokens", "drafts", "draft_tokens", "accepted_tokens"), np.int64
    )
    kinds["failed"] = np.bool_
    return RequestRecords(
        **{name: np.asarray(getattr(log, name), dtype=kind) for name, kind in kinds.items()},
        input_tokens=log.stream.input_tokens,
        output_tokens=log.stream.output_tokens,
        stage=None if log.stream.stages is None else log.stream.stages.of,
        warm_up=log.stream.warm_up,
    )


def speculation_counters(log: RunLog, pool: PoolBuild) -> SpeculationCounters | None:
    """Numbers of drafts, draft tokens and accepted tokens over all requests; None if the pool does not draft."""
    if pool.sampler is None:
        return None
    counts = log.accepted_counts
    at_least = np.cumsum(counts[::-1])[::-1][1:]
    return SpeculationCounters(
        num_drafts=int(counts.sum()),
        draft_tokens=int(np.sum(log.draft_tokens)),
        accepted_tokens=int(at_least.sum()),
        accepted_per_position=tuple(int(n) for n in at_least),
    )


def kv_report(build: Build, totals: StepTotals, requests: RequestRecords, log: RunLog) -> KvCacheReport:
    """KV block usage of the main pool, and preemptions, cache hits and copies of all replicas."""
    cached = any(pool.shares_blocks(log.stream.prefix_hashes) for pool in build.pools)
    first = sum(pool.replicas for pool in takewhile(lambda pool: pool.role == "prefill", build.pools))
    pool_rows = slice(first, first + build.main.replicas)
    memory, busy = build.memory, float(totals.seconds[pool_rows].sum())
    peak_blocks = int(totals.peak_blocks[pool_rows].max())
    mean_blocks = float(totals.block_s[pool_rows].sum() / busy) if busy else 0.0
    hits = int(requests.cached_tokens.sum()) if cached else None
    prompt_tokens = int(requests.input_tokens[np.isfinite(requests.scheduled_s)].sum())
    short = build.scenario.engine.kv_offloading_bytes is not None
    listed = not short and any(pool.stores for pool in build.pools)
    tiers = tier_tokens(build, requests, log) if cached else {}
    over_time = cached and any(pool.stores for pool in build.pools)
    return KvCacheReport(
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        page_tokens=memory.page_tokens if memory.page_tokens > memory.block_size else None,
        capacity_tokens=memory.num_blocks * memory.block_size,
        peak_blocks=peak_blocks,
        mean_blocks=mean_blocks,
        peak_use=ratio(peak_blocks, memory.num_blocks),
        mean_use=ratio(mean_blocks, memory.num_blocks),
        preemptions=int(requests.preemptions.sum()),
        swapped_blocks=log.swapped_blocks if any(pool.swap for pool in build.pools) else None,
        prefix_hit_tokens=hits,
        prefix_hit_rate=ratio(hits, prompt_tokens),
        hit_rate_by_tier={name: ratio(int(n.sum()), prompt_tokens) for name, n in tiers.items()} if cached else None,
        hit_rate_over_time=_hit_rates(tiers, requests) if over_time else None,
        host=_host_report(build, log, tiers, prompt_tokens),
        stores=tuple(_store_reports(build, log, tiers, prompt_tokens, run_duration_s(requests))) if listed else None,
        lane_bytes=lane_bytes(log) if listed else None,
        bytes_per_token=memory.replica_kv_bytes_per_token,
        weights_bytes=memory.weight_bytes,
        draft_weights_bytes=memory.draft_weight_bytes,
        activation_bytes=memory.activation_bytes,
        capacity_bytes=memory.capacity_bytes,
        overridden=memory.overridden,
        per_chip_bytes=memory.split,
    )


def tier_tokens(build: Build, requests: RequestRecords, log: RunLog) -> dict[str, IntArray]:
    """Cached tokens of each request by tier: ``device``, then the stores in order."""
    tiers = {name: np.zeros(len(requests), dtype=np.int64) for name in (DEVICE, *_spaces(build))}
    for row, tokens in log.tier_tokens.items():
        for name, count in tokens.items():
            tiers[name][row] = count
    tiers[DEVICE] = requests.cached_tokens - sum(tiers.values())
    return tiers


def _hit_rates(tiers: Mapping[str, IntArray], requests: RequestRecords) -> dict[str, list[float | None]]:
    """Hit rate of each tier in ``PARTS`` equal parts of a run, by the start of each prompt."""
    begun = np.isfinite(requests.scheduled_s)
    begin_s = requests.scheduled_s[begun]
    ends = np.linspace(0.0, begin_s.max(initial=0.0), PARTS + 1)[1:]
    part = np.searchsorted(ends[:-1], begin_s, "right")
    prompts = np.bincount(part, weights=requests.input_tokens[begun], minlength=PARTS)
    rates: dict[str, list[float | None]] = {"until_s": ends.tolist()}
    for name, tokens in tiers.items():
        hits = np.bincount(part, weights=tokens[begun], minlength=PARTS)
        rates[name] = [ratio(*pair) for pair in zip(hits.tolist(), prompts.tolist(), strict=True)]
    return rates


def _spaces(build: Build) -> dict[str, StoreSpace]:
    """Stores of all pools by name."""
    return {space.name: space for pool in build.pools for space in pool.stores}


def _host_report(
    build: Build, log: RunLog, tokens: Mapping[str, IntArray], prompt_tokens: int
) -> HostCacheReport | None:
    spaces = [space for pool in build.pools for space in pool.stores if space.medium == "host"]
    if not spaces:
        return None
    tiers, names = _tiers(log, {space.name for space in spaces}), {space.name for space in spaces}
    hits = int(sum(tokens[name].sum() for name in names)) if tokens else None
    return HostCacheReport(
        num_blocks=max(space.num_blocks for space in spaces),
        peak_blocks=max((tier.store.peak_blocks for tier in tiers), default=0),
        hit_tokens=hits,
        offloaded_blocks=sum(tier.written_blocks for tier in tiers),
        loaded_blocks=sum(tier.read_blocks for tier in tiers),
        hit_rate=ratio(hits, prompt_tokens),
    )


def _tiers(log: RunLog, names: set[str]) -> list[Tier]:
    return [tier for tier in log.tiers if tier.name in names]


def _store_reports(
    build: Build, log: RunLog, tokens: Mapping[str, IntArray], prompt_tokens: int, run_s: float | None
) -> Iterator[StoreReport]:
    for name, space in _spaces(build).items():
        tiers, hits = _tiers(log, {name}), int(tokens[name].sum()) if tokens else None
        peak_blocks = max((tier.store.peak_blocks for tier in tiers), default=0)
        yield StoreReport(
            name=name,
            medium=space.medium,
            num_blocks=space.num_blocks,
            peak_blocks=peak_blocks,
            hit_tokens=hits,
            hit_rate=ratio(hits, prompt_tokens),
            written_blocks=sum(tier.written_blocks for tier in tiers),
            read_blocks=sum(tier.read_blocks for tier in tiers),
            written_bytes=sum(tier.written_blocks * tier.block_bytes for tier in tiers),
            read_bytes=sum(tier.read_blocks * tier.block_bytes for tier in tiers),
            bytes=space.num_blocks * space.block_bytes,
            peak_bytes=peak_blocks * space.block_bytes,
            read_busy=_busy(log, f"{name} read", run_s),
            write_busy=_busy(log, f"{name} write", run_s),
        )


def _busy(log: RunLog, name: str, run_s: float | None) -> float | None:
    """Mean share of the run in which the lanes of a name carry copies, at most 1."""
    busy_s = [lane.busy_s for one, lane in log.lanes if one == name]
    return min(1.0, sum(busy_s) / (len(busy_s) * run_s)) if busy_s and run_s else None


def lane_bytes(log: RunLog) -> dict[str, float]:
    """Bytes that lanes of each name carried."""
    carried: dict[str, float] = {}
    for name, lane in log.lanes:
        carried[name] = carried.get(name, 0.0) + lane.booked_bytes
    return carried


def replica_use(log: RunLog, totals: StepTotals, kinds: Sequence[PoolBuild], run_s: float) -> tuple[ReplicaUse, ...]:
    """One row per replica; prompts count where they were first computed, requests where they finished."""
    pools = [pool for pool in kinds for _ in range(pool.replicas)]
    count = len(pools)
    prompt_by = np.asarray(log.prompt_replica)
    requests = np.bincount(np.asarray(log.replica)[np.isfinite(log.finished_s)], minlength=count)
    prompts = np.bincount(prompt_by, weights=log.stream.input_tokens * np.isfinite(log.scheduled_s), minlength=count)
    hits = np.bincount(prompt_by, weights=log.cached_tokens, minlength=count)
    chunks = np.asarray(log.stream.output_tokens - np.asarray(log.accepted_tokens)) * np.isfinite(log.finished_s)
    streamed = np.bincount(np.asarray(log.replica), weights=chunks, minlength=count)
    return tuple(
        ReplicaUse(
            replica=index,
            pool=pool.name,
            chip=pool.chip.name,
            requests=int(requests[index]),
            prompt_tokens=int(prompts[index]),
            prefix_hit_tokens=(hit := int(hits[index]) if pool.shares_blocks(log.stream.prefix_hashes) else None),
            prefix_hit_rate=ratio(hit, int(prompts[index])),
            peak_use=ratio(int(totals.peak_blocks[index]), pool.limits.num_blocks),
            busy=ratio(float(totals.seconds[index]), run_s),
            api_server_busy=ratio(
                pool.limits.api_server_busy_s(requests[index], prompts[index], streamed[index]), run_s
            ),
        )
        for index, pool in enumerate(pools)
    )


def transfer_report(log: RunLog) -> TransferReport:
    mean_s = log.transfer_s / log.transfers if log.transfers else None
    return TransferReport(log.transfers, log.transferred_tokens, mean_s)
