"""What each replica did, from the log of a run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.serving.log import RunLog
from simulator.serving.pool import Pool
from simulator.serving.records import ReplicaUse, TransferReport


def replica_use(
    log: RunLog,
    busy_s: NDArray[np.float64],
    peak_blocks: NDArray[np.int64],
    pools: Sequence[Pool],
    chips: Sequence[str],
) -> tuple[ReplicaUse, ...]:
    """One row per replica.

    A prompt counts where it was computed first, a request where it was finished.

    Args:
        log: of the finished run.
        busy_s: seconds in engine steps, of each replica.
        peak_blocks: most KV blocks in use, of each replica.
        pools: the pool of each replica.
        chips: the chip of each replica.
    """
    count = len(pools)
    finished = np.isfinite(np.asarray(log.finished_s))
    scheduled = np.isfinite(np.asarray(log.scheduled_s))
    served_by = np.asarray(log.replica, dtype=np.int64)
    first = np.asarray(log.prompt_replica, dtype=np.int64)
    prompt_by = np.where(first >= 0, first, served_by)[scheduled]
    requests = np.bincount(served_by[finished], minlength=count)
    prompts = np.bincount(prompt_by, weights=log.stream.input_tokens[scheduled], minlength=count)
    hits = np.bincount(prompt_by, weights=np.asarray(log.cached_tokens)[scheduled], minlength=count)
    hashed = log.stream.prefix_hashes is not None
    return tuple(
        ReplicaUse(
            replica=index,
            pool=pool.name,
            chip=chips[index],
            requests=int(requests[index]),
            prompt_tokens=int(prompts[index]),
            prefix_hit_tokens=int(hits[index]) if hashed and pool.prefix_caching else None,
            num_blocks=pool.limits.num_blocks,
            peak_blocks=int(peak_blocks[index]),
            busy_s=float(busy_s[index]),
        )
        for index, pool in enumerate(pools)
    )


def transfer_report(log: RunLog) -> TransferReport:
    """KV transfers of a run."""
    mean_s = log.transfer_s / log.transfers if log.transfers else None
    return TransferReport(log.transfers, log.transferred_tokens, mean_s)
