"""Reports from the log of a finished run: requests, speculation and transfer counters, KV and replica usage."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from simulator.running.build import Build, PoolBuild
from simulator.running.step_rows import StepTotals
from simulator.serving import (
    HostCacheReport,
    KvCacheReport,
    ReplicaUse,
    RequestRecords,
    RunLog,
    SpeculationCounters,
    TransferReport,
)


def request_records(log: RunLog, pool: PoolBuild) -> RequestRecords:
    """One row per request; the pool tells how many tokens are drafted where that never changes."""
    drafts = np.asarray(log.drafts, dtype=np.int64)
    return RequestRecords(
        arrival_s=np.asarray(log.arrival_s),
        input_tokens=log.stream.input_tokens,
        output_tokens=log.stream.output_tokens,
        scheduled_s=np.asarray(log.scheduled_s),
        first_token_s=np.asarray(log.first_token_s),
        finished_s=np.asarray(log.finished_s),
        replica=np.asarray(log.replica, dtype=np.int64),
        preemptions=np.asarray(log.preemptions, dtype=np.int64),
        cached_tokens=np.asarray(log.cached_tokens, dtype=np.int64),
        drafts=drafts,
        draft_tokens=_draft_tokens(log, pool),
        accepted_tokens=np.asarray(log.accepted_tokens, dtype=np.int64),
        failed=np.asarray(log.failed, dtype=bool),
    )


def _draft_tokens(log: RunLog, pool: PoolBuild) -> NDArray[np.int64]:
    """Tokens drafted for each request; computed from the number of drafts where K is fixed."""
    if pool.rule is not None or pool.sampler is None:
        return np.asarray(log.draft_tokens, dtype=np.int64)
    return np.asarray(log.drafts, dtype=np.int64) * (pool.limits.query_len - 1)


def speculation_counters(log: RunLog, pool: PoolBuild) -> SpeculationCounters:
    """Drafts, their tokens and those accepted, over all requests."""
    counts = log.accepted_counts
    drafts = int(counts.sum())
    at_least = np.cumsum(counts[::-1])[::-1][1:]
    return SpeculationCounters(
        num_drafts=drafts,
        draft_tokens=int(_draft_tokens(log, pool).sum()),
        accepted_tokens=int(at_least.sum()),
        accepted_per_position=tuple(int(n) for n in at_least),
    )


def kv_report(build: Build, totals: StepTotals, requests: RequestRecords, log: RunLog) -> KvCacheReport:
    """KV block usage of the main pool, and preemptions, cache hits and copies of all replicas."""
    cached = any(pool.shares_blocks(log.stream.prefix_hashes) for pool in build.pools)
    first = sum(pool.replicas for pool in takewhile(lambda pool: pool.role == "prefill", build.pools))
    pool_rows = slice(first, first + build.main.replicas)
    memory, busy = build.memory, float(totals.seconds[pool_rows].sum())
    return KvCacheReport(
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        peak_blocks=int(totals.peak_blocks[pool_rows].max()),
        mean_blocks=float(totals.block_s[pool_rows].sum() / busy) if busy else 0.0,
        preemptions=int(requests.preemptions.sum()),
        prefix_hit_tokens=int(requests.cached_tokens.sum()) if cached else None,
        bytes_per_token=memory.replica_kv_bytes_per_token,
        weights_bytes=memory.weight_bytes,
        draft_weights_bytes=memory.draft_weight_bytes,
        activation_bytes=memory.activation_bytes,
        capacity_bytes=memory.capacity_bytes,
        overridden=memory.overridden,
        split_bytes=memory.split,
        page_tokens=memory.page_tokens if memory.page_tokens > memory.block_size else 0,
        host=_host_report(build, log, cached),
        swapped_blocks=log.swapped_blocks if any(pool.swap for pool in build.pools) else None,
    )


def _host_report(build: Build, log: RunLog, cached: bool) -> HostCacheReport | None:
    """Host memory behind the prefix caches, where any replica has some."""
    capacities = [pool.offload.num_blocks for pool in build.pools if pool.offload is not None]
    if not capacities:
        return None
    return HostCacheReport(
        num_blocks=max(capacities),
        peak_blocks=max((host.peak_blocks for host in log.host_caches), default=0),
        hit_tokens=log.host_hit_tokens if cached else None,
        offloaded_blocks=sum(host.offloaded_blocks for host in log.host_caches),
        loaded_blocks=sum(host.loaded_blocks for host in log.host_caches),
    )


def replica_use(log: RunLog, totals: StepTotals, kinds: Sequence[PoolBuild]) -> tuple[ReplicaUse, ...]:
    """One row per replica: a prompt counts where it was computed first, a request where it was finished."""
    pools = [pool for pool in kinds for _ in range(pool.replicas)]
    count = len(pools)
    finished = np.isfinite(np.asarray(log.finished_s))
    scheduled = np.isfinite(np.asarray(log.scheduled_s))
    served_by = np.asarray(log.replica, dtype=np.int64)
    first = np.asarray(log.prompt_replica, dtype=np.int64)
    prompt_by = np.where(first >= 0, first, served_by)[scheduled]
    requests = np.bincount(served_by[finished], minlength=count)
    prompts = np.bincount(prompt_by, weights=log.stream.input_tokens[scheduled], minlength=count)
    hits = np.bincount(prompt_by, weights=np.asarray(log.cached_tokens)[scheduled], minlength=count)
    return tuple(
        ReplicaUse(
            replica=index,
            pool=pool.name,
            chip=pool.chip.name,
            requests=int(requests[index]),
            prompt_tokens=int(prompts[index]),
            prefix_hit_tokens=int(hits[index]) if pool.shares_blocks(log.stream.prefix_hashes) else None,
            num_blocks=pool.limits.num_blocks,
            peak_blocks=int(totals.peak_blocks[index]),
            busy_s=float(totals.seconds[index]),
        )
        for index, pool in enumerate(pools)
    )


def transfer_report(log: RunLog) -> TransferReport:
    """KV transfers of a run."""
    mean_s = log.transfer_s / log.transfers if log.transfers else None
    return TransferReport(log.transfers, log.transferred_tokens, mean_s)
