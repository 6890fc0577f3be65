"""A finished run as the laws look at it: its records, its pools, and the counts that must add up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.build import PoolBuild
from simulator.serving import RequestRecords, SpeculationCounters, StepRecords
from simulator.timing import StagedTimer

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

TIME_TOLERANCE_S = 1e-9
"""Sums of seconds over long runs may differ by rounding."""


class PoolSteps(NamedTuple):
    """The engine steps of one pool."""

    pool: PoolBuild
    first: int
    """Number of its first replica."""
    rows: IntArray | None
    """Where its steps stand among all; None = everywhere."""
    steps: StepRecords

    @property
    def staged(self) -> bool:
        """Whether batches overlap in a pipeline."""
        return isinstance(self.pool.cluster.timer, StagedTimer)

    def name(self, row: int) -> str:
        """A step in words, by its number among all steps."""
        place = f" of pool {self.pool.name}" if self.rows is not None else ""
        return f"step {row if self.rows is None else int(self.rows[row])}{place}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind."""

    pools: tuple[PoolBuild, ...]
    """In the order of their replicas' numbers."""
    requests: RequestRecords
    steps: StepRecords
    speculation: SpeculationCounters | None
    """Counters of draft tokens, where there were any."""
    max_concurrency: int | None
    """Of a closed loop; None where requests arrive on their own."""
    restarts: IntArray
    """Times that each request started again because its replica failed."""
    prompt_replica: IntArray
    """Replica that computed each prompt first; -1 where it is the one that served the request."""
    transfers: int
    """Prompts whose KV went to another replica."""
    blocks_left: int
    """KV blocks that requests still held after the last of them had ended, all replicas together."""
    stage_busy_s: float = 0.0
    """Seconds that pipeline stages worked, over all stages."""
    stage_open_s: float = 0.0
    """Seconds of all pipeline stages while any batch was in flight."""

    @property
    def done(self) -> BoolArray:
        """Requests that were served."""
        return ~self.requests.failed

    @property
    def undisturbed(self) -> BoolArray:
        """Requests that were served without preemption or failure."""
        undisturbed: BoolArray = self.done & (self.requests.preemptions == 0) & (self.restarts == 0)
        return undisturbed

    @property
    def handed_over(self) -> bool:
        """Whether prompts and answers are computed by different pools."""
        return any(pool.role == "prefill" for pool in self.pools)

    @property
    def elapsed_s(self) -> float:
        """From the first arrival to the last finish, or to the end of the last step; 0 where nothing was served."""
        done, steps = self.done, self.steps
        if not done.any():
            return 0.0
        end = float((steps.start_s + steps.seconds).max()) if len(steps) else 0.0
        return max(float(self.requests.finished_s[done].max()), end) - float(self.requests.arrival_s[done].min())

    def by_pool(self) -> Iterator[PoolSteps]:
        """The steps of each pool."""
        first = 0
        for pool in self.pools:
            rows, steps = None, self.steps
            if len(self.pools) > 1:
                rows = np.flatnonzero((steps.replica >= first) & (steps.replica < first + pool.replicas))
                steps = steps.take(rows)
            yield PoolSteps(pool, first, rows, steps)
            first += pool.replicas


def first_of(wrong: BoolArray) -> int:
    """The first row where something is wrong."""
    return int(np.argmax(wrong))
