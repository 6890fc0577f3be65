"""Step rows of a run: priced with their bounds, all of them, or summed up on the way where none are to be kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.build import Build
from simulator.serving import GapCounts, RunLog, StepLog, StepRecords
from simulator.timing import Costs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PRICED_TOGETHER = 1 << 17
"""Steps whose bounds are computed at once: keeps memory flat on long runs."""
GROUPS = 1024
"""Sums that stay of every ``PRICED_TOGETHER`` steps where no rows are kept, over all replicas."""
MOST_GROUPS = 16 * GROUPS
"""Sums beyond which neighbours are joined again."""
SUMS = (
    "seconds", "prefill_seqs", "prefill_tokens", "output_tokens", "compute_s", "memory_s", "interconnect_s",
    "latency_s", "host_s", "flops", "bytes", "steps",
)  # fmt: skip
MEANS = ("decode_seqs", "decode_kv_tokens", "running", "waiting", "kv_blocks")


@dataclass(slots=True)
class BlockUse:
    """How the KV blocks of each replica were used, and for how long it worked."""

    busy_s: FloatArray
    peak_blocks: IntArray
    block_seconds: FloatArray
    """Blocks in use times seconds."""

    @classmethod
    def of(cls, steps: StepRecords, replicas: int) -> BlockUse:
        """Of some steps."""
        found = cls(np.zeros(replicas), np.zeros(replicas, dtype=np.int64), np.zeros(replicas))
        found.add(steps)
        return found

    def add(self, steps: StepRecords) -> None:
        """Count further steps."""
        count = len(self.busy_s)
        self.busy_s += np.bincount(steps.replica, weights=steps.seconds, minlength=count)
        self.block_seconds += np.bincount(steps.replica, weights=steps.kv_blocks * steps.seconds, minlength=count)
        np.maximum.at(self.peak_blocks, steps.replica, steps.kv_blocks)


@dataclass(slots=True)
class Condensed:
    """Takes the rows of a ``StepLog`` whenever there are many, prices them and keeps sums over neighbours alone."""

    build: Build
    parts: list[StepRecords] = field(default_factory=list)
    use: BlockUse | None = None
    gap_s: list[FloatArray] = field(default_factory=list)
    gap_counts: list[IntArray] = field(default_factory=list)

    def take(self, log: StepLog) -> None:
        """Sum up the rows that ``log`` holds; it forgets them."""
        if not len(log):
            return
        steps = price_steps(log, self.build)
        if self.use is None:
            self.use = BlockUse.of(steps, sum(pool.replicas for pool in self.build.pools))
        else:
            self.use.add(steps)
        gap_s, counts = step_gaps(log)
        self.gap_s.append(gap_s)
        self.gap_counts.append(counts)
        self.parts.append(summed(steps, -(-len(steps) // GROUPS)))
        log.forget()
        if sum(map(len, self.parts)) > MOST_GROUPS:
            self.parts = [summed(joined(self.parts), 2)]

    def steps(self) -> StepRecords:
        """The sums, in the order of replicas and time."""
        return joined(self.parts)


def price_steps(steps: StepLog, build: Build) -> StepRecords:
    """Engine steps with their bounds.

    Kernels are priced again by formula to see what bounds them; the shares are then laid on the seconds that the step
    took, which interpolated decode attention makes differ by some 1e-4. Copies to and from host memory count as
    interconnect.
    """
    costs, chips = Costs.zeros(len(steps)), np.zeros(len(steps), dtype=np.int64)
    keys = np.zeros(len(steps), dtype=np.int64)
    pool_of = np.repeat(np.arange(len(build.pools)), [pool.replicas for pool in build.pools])
    for number, pool in enumerate(build.pools):
        own = np.flatnonzero(pool_of[steps.integers("replica")] == number)
        for rows in (own[start : start + PRICED_TOGETHER] for start in range(0, len(own), PRICED_TOGETHER)):
            work = steps.work(rows)
            draft = steps.draft(rows)
            part = pool.cluster.timer.costs(work) if draft is None else pool.cluster.timer.costs(work, draft)
            keys[rows], chips[rows] = work.decode_kv_tokens[0], pool.chips_per_stage
            for name in Costs.__slots__:
                getattr(costs, name)[rows] = getattr(part, name)
    count, copies_s = steps.column("steps"), steps.column("copies_s")
    priced = costs.device_s + costs.host_s
    scale = np.divide(steps.column("seconds") - copies_s, priced, out=np.ones_like(priced), where=priced > 0)
    return StepRecords(
        replica=steps.integers("replica"),
        start_s=steps.column("start_s").copy(),
        seconds=steps.column("seconds").copy(),
        prefill_seqs=steps.integers("prefill_seqs"),
        prefill_tokens=steps.integers("prefill_tokens"),
        decode_seqs=steps.integers("decode_seqs"),
        query_len=steps.integers("query_len"),
        decode_kv_tokens=keys,
        output_tokens=steps.integers("output_tokens"),
        running=steps.integers("running"),
        waiting=steps.integers("waiting"),
        kv_blocks=steps.integers("kv_blocks"),
        compute_s=costs.compute_s * scale,
        memory_s=costs.memory_s * scale,
        interconnect_s=costs.interconnect_s * scale + copies_s,
        latency_s=costs.latency_s * scale,
        host_s=costs.host_s * scale,
        flops=costs.flops * count * chips,
        bytes=costs.bytes * count * chips,
        steps=steps.integers("steps"),
    )


def step_gaps(steps: StepLog) -> tuple[FloatArray, IntArray]:
    """Gaps between token deliveries that are the engine's steps themselves: seconds, and requests that saw them."""
    decoding, count = steps.integers("decode_seqs"), steps.integers("steps")
    delivered = decoding > 0
    return steps.column("seconds")[delivered] / count[delivered], (decoding * count)[delivered]


def run_gaps(log: RunLog, fast: bool, condensed: Condensed | None) -> GapCounts:
    """All gaps between token deliveries of a run.

    Args:
        log: of the finished run.
        fast: whether the gaps within steps are to be taken from the steps.
        condensed: what was summed up on the way, if anything was.
    """
    explicit = np.asarray(log.gaps_s)
    ones = np.ones(len(explicit), dtype=np.int64)
    if not fast:
        return GapCounts(explicit, ones)
    seconds, counts = ([], []) if condensed is None else (condensed.gap_s, condensed.gap_counts)
    if condensed is None:
        one, two = step_gaps(log.steps)
        seconds, counts = [one], [two]
    return GapCounts(np.concatenate((*seconds, explicit)), np.concatenate((*counts, ones)))


def summed(steps: StepRecords, size: int) -> StepRecords:
    """One row for every ``size`` neighbouring rows of a replica, in the order of replicas and time.

    Seconds, tokens, prompts, FLOPs and bytes are sums; running and waiting requests, contexts and blocks are means over
    the engine steps behind them, rounded up.
    """
    order = np.argsort(steps.replica, kind="stable")
    replica, count = steps.replica[order], steps.steps[order]
    place = np.arange(len(order)) - np.searchsorted(replica, replica, side="left")
    firsts = np.flatnonzero(place % max(1, size) == 0)
    columns: dict[str, Any] = {}
    total = np.add.reduceat(count, firsts)
    for name in StepRecords.__dataclass_fields__:
        values = getattr(steps, name)[order]
        if name in SUMS:
            columns[name] = np.add.reduceat(values, firsts)
        elif name in MEANS:
            columns[name] = -(-np.add.reduceat(values * count, firsts) // total)
        elif name == "query_len":
            columns[name] = np.maximum.reduceat(values, firsts)
        else:
            columns[name] = values[firsts]
    return StepRecords(**columns)


def joined(parts: list[StepRecords]) -> StepRecords:
    """The rows of several tables, one after the other."""
    columns = [part.columns() for part in parts]
    names = StepRecords.__dataclass_fields__
    return StepRecords(**{name: np.concatenate([part[name] for part in columns]) for name in names})
