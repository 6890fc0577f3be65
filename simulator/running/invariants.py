"""Invariants of every finished run: speed of light, conservation, order in time, capacity, Little's law.

Steps are checked one by one as they are priced, before rows are merged; the whole run is checked by sums at its end. A
broken invariant is an error in the simulator, never in its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from simulator.running.build import PoolBuild
from simulator.running.step_rows import StepTotals
from simulator.serving import RequestRecords, RunLog, SpeculationCounters, StepRecords
from simulator.serving.clock import TICKS_PER_S
from simulator.timing import StagedTimer

if TYPE_CHECKING:
    from traces import PrefixHashes


TIME_TOLERANCE_S = 1e-9
"""Tolerance in seconds for the rounding of sums over long runs."""
PARTS_TOLERANCE = 1e-6
"""Share by which a step may differ from the sum of its parts, by rounding."""
SOL_TOLERANCE = 0.01
"""Share by which a step may be faster than its lower bound, because decode attention is interpolated."""


class PoolSteps(NamedTuple):
    """A subset of the engine steps of one pool."""

    pool: PoolBuild
    rows: IntArray
    """Row indices of these steps among all steps of the run."""
    alone: bool
    steps: StepRecords

    def name(self, row: int) -> str:
        """Name of a step for messages, with its number among all steps."""
        return f"step {self.rows[row]}{'' if self.alone else f' of pool {self.pool.name}'}"


class StepAudit:
    """Checks every engine step of a run once, and accumulates the sums that the final checks need."""

    def __init__(self, pools: tuple[PoolBuild, ...], hashes: PrefixHashes | None = None) -> None:
        kinds = [pool for pool in pools for _ in range(pool.replicas)]
        self.pools, self._hashes = pools, hashes
        self.totals = StepTotals.none(
            [pool.chips * pool.peak_flops_per_s for pool in kinds],
            [pool.chips * pool.chip.memory.bandwidth_bytes_per_s for pool in kinds],
        )
        self.problems: list[str] = []
        """Descriptions of broken per-step invariants."""
        self.unshared: dict[str, str] = {}
        """Pool name -> first step that reads more keys than the KV blocks hold; an error unless blocks are shared."""
        self._seen = 0
        self._staged: dict[str, FloatArray] = {}
        """Minimum total seconds of all steps of each pipelined replica, by limiting resource."""

    def take(self, steps: StepRecords) -> None:
        """Check further steps; the steps of each replica must be in chronological order."""
        if not len(steps):
            return
        count = len(self.totals.seconds)
        if not 0 <= steps.replica.min() <= steps.replica.max() < count:
            self.problems.append(f"a step ran at replica {steps.replica.max()}, there are {count}")
            return
        self._note(one_step_at_a_time(steps, self.totals.end_s))
        self.totals.add(steps)
        first = 0
        for pool in self.pools:
            rows = np.flatnonzero((steps.replica >= first) & (steps.replica < first + pool.replicas))
            if len(rows):
                pool_steps = steps if len(rows) == len(steps) else steps.take(rows)
                self._look(PoolSteps(pool, rows + self._seen, len(self.pools) == 1, pool_steps))
            first += pool.replicas
        self._seen += len(steps)

    def _look(self, part: PoolSteps) -> None:
        self._note(step_tokens(part))
        self._note(capacity(part))
        if not part.pool.shares_blocks(self._hashes):
            self._note(keys_in_blocks(part))
        elif part.pool.role != "decode" and part.pool.name not in self.unshared:
            for problem in keys_in_blocks(part):
                self.unshared[part.pool.name] = problem
        if part.pool.staged:
            # Batches in a pipeline overlap: the steps of a replica together are held against the time that they took.
            for what, least in () if part.pool.measured else least_seconds(part):
                needed = self._staged.setdefault(what, np.zeros(len(self.totals.seconds)))
                needed += np.bincount(part.steps.replica, weights=least, minlength=len(needed))
        else:
            self._note(speed_of_light(part))
            self._note(sum_of_parts(part))

    def _note(self, problems: Iterator[str]) -> None:
        self.problems += problems if not self.problems else ()

    def overlapping(self) -> Iterator[str]:
        """Problems of pipelined replicas whose batches in total are faster than the speed of light."""
        taken_s = self.totals.end_s - self.totals.first_s
        for what, needed in self._staged.items():
            for replica in np.flatnonzero(needed > 0.0):
                if not needed[replica] <= taken_s[replica] * (1.0 + SOL_TOLERANCE):
                    yield (
                        f"the steps of replica {replica} take {taken_s[replica]:.6g} s, their {what} need "
                        f"{needed[replica]:.6g} s at the peak"
                    )


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """The records and counters of a finished run that the invariants are checked on."""

    pools: tuple[PoolBuild, ...]
    requests: RequestRecords
    steps: StepAudit
    speculation: SpeculationCounters | None
    offered: int
    max_concurrency: int | None
    restarts: IntArray
    """Number of restarts of each request because its replica failed."""
    prompt_replica: IntArray
    """Replica that first computed each prompt."""
    transfers: int
    """Number of prompts whose KV was transferred to another replica."""
    blocks_left: int
    """KV blocks still allocated after the last request has ended, over all replicas."""
    refused: int
    lanes: tuple[tuple[str, float, float], ...] = ()
    """Name of each kind of lane, the bytes that it carried, and the bytes of the blocks that were copied."""
    stage_busy_s: float = 0.0
    """Busy seconds of pipeline stages, summed over all stages."""
    stage_open_s: float = 0.0
    """Seconds with any batch in flight, summed over all pipeline stages."""

    @classmethod
    def of(
        cls,
        pools: tuple[PoolBuild, ...],
        log: RunLog,
        requests: RequestRecords,
        steps: StepAudit,
        speculation: SpeculationCounters | None,
    ) -> FinishedRun:
        """Combine log and records of a run."""
        counters = ("transfers", "blocks_left", "stage_busy_s", "stage_open_s")
        return cls(
            pools=pools,
            requests=requests,
            steps=steps,
            speculation=speculation,
            offered=len(log.stream),
            max_concurrency=log.stream.max_concurrency,
            restarts=np.asarray(log.restarts, dtype=np.int64),
            prompt_replica=np.asarray(log.prompt_replica, dtype=np.int64),
            refused=sum(log.refusals.values()),
            lanes=tuple(_lanes(log)),
            **{name: getattr(log, name) for name in counters},
        )

    @property
    def done(self) -> BoolArray:
        return ~self.requests.failed

    @property
    def undisturbed(self) -> BoolArray:
        return np.asarray(self.done & (self.requests.preemptions == 0) & (self.restarts == 0), dtype=np.bool_)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first arrival to the last finish, or to the end of the last step."""
        if not self.done.any():
            return 0.0
        end_s = max(float(self.requests.finished_s[self.done].max()), float(self.steps.totals.end_s.max()))
        return end_s - float(self.requests.arrival_s[self.done].min())

    def replicas_of(self) -> Iterator[tuple[PoolBuild, int]]:
        """Each pool and the number of its first replica."""
        first = 0
        for pool in self.pools:
            yield pool, first
            first += pool.replicas


def _lanes(log: RunLog) -> Iterator[tuple[str, float, float]]:
    """Bytes carried by the lanes of each store, and bytes of the blocks copied over them."""
    carried: dict[str, float] = {}
    for name, lane in log.lanes:
        carried[name] = carried.get(name, 0.0) + lane.booked_bytes
    for name in {tier.name for tier in log.tiers}:
        tiers = [tier for tier in log.tiers if tier.name == name]
        for way, blocks in (("read", "read_blocks"), ("write", "written_blocks")):
            copied = sum(getattr(tier, blocks) * tier.block_bytes for tier in tiers)
            yield f"{name} {way}", carried[f"{name} {way}"], copied
            if f"{name} link {way}" in carried:
                yield f"{name} link {way}", carried[f"{name} link {way}"], copied


def copies(outcome: FinishedRun) -> Iterator[str]:
    """The lanes of a store carry the bytes of the blocks that are copied to and from it."""
    for name, carried, copied in outcome.lanes:
        if abs(carried - copied) > 1e-9 * max(carried, copied):
            yield f"lane {name} carried {carried:.9g} bytes, the blocks copied have {copied:.9g}"


def broken(outcome: FinishedRun) -> str | None:
    """First broken invariant of a finished run, with place and numbers; None if all invariants hold."""
    for invariant in INVARIANTS:
        for problem in invariant(outcome):
            return problem
    return None


def request_times(outcome: FinishedRun) -> Iterator[str]:
    """Every request ends once, finished or refused, at a replica that can finish it. A request that restarts after a
    failure may get its last token from its second prompt."""
    records, done = outcome.requests, np.isfinite(outcome.requests.finished_s)
    if len(records) != outcome.offered:
        yield f"{outcome.offered} requests were offered, there are records of {len(records)}"
    for row in _first(done == records.failed):
        yield f"request {row} was neither finished nor refused, or both"
    if outcome.refused != int(records.failed.sum()):
        yield f"{outcome.refused} requests were refused with a reason, {int(records.failed.sum())} have failed"
    count = sum(pool.replicas for pool in outcome.pools)
    for row in _first(done & ((records.replica < 0) | (records.replica >= count))):
        yield f"request {row} ended at replica {records.replica[row]}, there are {count}"
    for pool, first in outcome.replicas_of():
        if pool.role != "prefill":
            continue
        here = (records.replica >= first) & (records.replica < first + pool.replicas)
        for row in _first(done & here & (records.output_tokens > 1) & (outcome.restarts == 0)):
            yield f"request {row} ended in pool {pool.name}, which only computes prompts"


def order(outcome: FinishedRun) -> Iterator[str]:
    """Times of a request are ordered: arrival, scheduling, first token, last token."""
    records = outcome.requests
    done = np.isfinite(records.finished_s)
    for earlier, later in pairwise(("arrival_s", "scheduled_s", "first_token_s", "finished_s")):
        before, after = getattr(records, earlier), getattr(records, later)
        for row in _first(done & ~(after >= before - TIME_TOLERANCE_S)):
            yield f"request {row}: {later} {after[row]:.9g} is before {earlier} {before[row]:.9g}"


def first_come(outcome: FinishedRun) -> Iterator[str]:
    """Under a first-come rule, requests reach the batch of a replica in the order of their arrival. Excluded are
    requests that were preempted or lost their replica (they joined twice), requests from several prefill workers, and
    those that wait for a store. Each attention group has a queue."""
    records, steady = outcome.requests, outcome.undisturbed
    for pool, first in outcome.replicas_of():
        if not pool.rules.first_come or pool.role == "decode" or pool.limits.groups > 1:
            continue
        if any(store.background for store in pool.stores):
            continue
        for replica in range(first, first + pool.replicas):
            row = np.flatnonzero(steady & (outcome.prompt_replica == replica))
            row = row[np.argsort(records.arrival_s[row], kind="stable")]
            overtakes = np.diff(records.scheduled_s[row]) < 0
            for at in _first(overtakes & (np.diff(records.arrival_s[row]) > 0)):
                yield f"request {row[at + 1]} was scheduled before request {row[at]}, which had come before it"


def little(outcome: FinishedRun) -> Iterator[str]:
    """Time-integrated requests in the engines are at most time-integrated requests in the system. A closed loop of N
    has at most N requests on average (throughput times mean latency <= N) and at every moment.

    Pipelined steps, which overlap with earlier batches, are not checked.

    Source: J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9(3) (1961).
    """
    records, done = outcome.requests, outcome.done
    if not done.any():
        return
    latencies_s = float((records.finished_s - records.arrival_s)[done].sum())
    held_s = sum(
        float(outcome.steps.totals.held_s[first : first + pool.replicas].sum())
        for pool, first in outcome.replicas_of()
        if not pool.staged
    )
    if held_s > latencies_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield f"engines held requests for {held_s:.9g} s in all, requests were in the system for {latencies_s:.9g} s"
    most = outcome.max_concurrency
    if most is None:
        return
    arrival, finished = records.arrival_s[done], records.finished_s[done]
    duration_s = float(finished.max() - arrival.min())
    if latencies_s > most * duration_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield f"throughput times latency is {latencies_s / duration_s:.6g} requests in a closed loop of {most}"
    left_s = np.sort(finished)[: max(0, len(finished) - most)]
    for row in _first(np.sort(arrival)[most:] < left_s - TIME_TOLERANCE_S):
        yield f"request {row + most} was sent while a closed loop of {most} was full"


def transfers(outcome: FinishedRun) -> Iterator[str]:
    """Each prompt that another replica answers was transferred to it, exactly once unless a replica failed."""
    if all(pool.role != "prefill" for pool in outcome.pools):
        return
    moved_prompt = outcome.prompt_replica != outcome.requests.replica
    moved = int((outcome.done & moved_prompt & (outcome.restarts == 0)).sum())
    if outcome.transfers < moved or (outcome.transfers > moved and not outcome.restarts.any()):
        yield f"{outcome.transfers} prompts were sent between replicas, {moved} requests ended at another one"


def token_counts(outcome: FinishedRun) -> Iterator[str]:
    """Steps deliver exactly the tokens that requests receive, and compute each uncached prompt token. Each prompt token
    is computed once; the last token of a prompt whose KV was transferred at most once more."""
    records, totals, done = outcome.requests, outcome.steps.totals, outcome.done
    handed, received = int(totals.output_tokens.sum()), int(records.output_tokens[done].sum())
    if handed != received:
        yield f"steps handed out {handed} tokens, requests received {received}"
    computed, steady = int(totals.prefill_tokens.sum()), outcome.undisturbed
    needed = int((records.input_tokens - records.cached_tokens)[steady].sum())
    if computed < needed:
        yield f"steps computed {computed} prompt tokens, requests without preemption need {needed}"
    if np.array_equal(steady, done) and computed > needed + outcome.transfers:
        yield (
            f"steps computed {computed} prompt tokens, requests without preemption need {needed}, and "
            f"{outcome.transfers} that were handed over one more each"
        )
    for row in _first((records.cached_tokens < 0) | (records.cached_tokens > records.input_tokens)):
        yield (
            f"request {row} found {records.cached_tokens[row]} of its {records.input_tokens[row]} prompt tokens cached"
        )


def draft_counts(outcome: FinishedRun) -> Iterator[str]:
    """Accepted draft tokens never exceed drafted tokens or accepted tokens of the previous position; each verify step
    yields a token."""
    counters, records = outcome.speculation, outcome.requests
    if counters is None:
        return
    counts = (counters.num_drafts, *counters.accepted_per_position)
    if counters.accepted_tokens > counters.draft_tokens or any(np.diff(counts) > 0):
        yield (
            f"{counters.accepted_tokens} of {counters.draft_tokens} draft tokens were accepted, by position "
            f"{counts[1:]} of {counts[0]} drafts"
        )
    sums = (int(records.drafts.sum()), int(records.draft_tokens.sum()), int(records.accepted_tokens.sum()))
    total = (counters.num_drafts, counters.draft_tokens, counters.accepted_tokens)
    if sums != total:
        yield f"drafts, their tokens and the accepted ones: {sums} over the requests, {total} counted"
    most = np.where(outcome.done, np.maximum(records.output_tokens - 1, 0), 0)
    for what, count, limit in (
        ("draft tokens accepted", records.accepted_tokens, records.draft_tokens),
        ("verify steps", records.drafts, most),
    ):
        for row in _first(count > limit):
            yield f"request {row} has {count[row]} {what}, there can be {limit[row]}"


def step_problems(outcome: FinishedRun) -> Iterator[str]:
    """Problems of single steps, collected by ``StepAudit``."""
    yield from outcome.steps.problems
    # Requests record what was cached when they were first admitted. Resumed and restarted ones may share more blocks.
    records = outcome.requests
    if not (records.cached_tokens.any() or records.preemptions.any() or outcome.restarts.any()):
        yield from outcome.steps.unshared.values()
    yield from outcome.steps.overlapping()


def blocks(outcome: FinishedRun) -> Iterator[str]:
    """All KV blocks are free again at the end."""
    if outcome.blocks_left:
        yield f"requests still held {outcome.blocks_left} KV blocks after the last of them had ended"


def busy_time(outcome: FinishedRun) -> Iterator[str]:
    """No replica and no pipeline stage is busy for longer than the run's duration."""
    elapsed_s, busy = outcome.elapsed_s, outcome.steps.totals.seconds
    replica = int(np.argmax(busy))
    if not busy[replica] <= elapsed_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield f"replica {replica} was busy for {busy[replica]:.9g} s of the {elapsed_s:.9g} s that the run lasts"
    if not outcome.stage_busy_s <= outcome.stage_open_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield (f"pipeline stages worked {outcome.stage_busy_s:.9g} s of the {outcome.stage_open_s:.9g} s that they had")


def peak_utilisation(outcome: FinishedRun) -> Iterator[str]:
    """Total work of a pool's steps is at most its chips' peak times the duration of the run."""
    elapsed_s = outcome.elapsed_s
    for pool, first in outcome.replicas_of():
        totals = outcome.steps.totals.of_replicas(first, pool.replicas)
        chips = pool.chips * pool.replicas
        peak, bandwidth = _limits(pool)
        if pool.measured:
            continue
        for what, work_s in (("FLOP/s", totals.flops.sum() / peak), ("bandwidth", totals.bytes.sum() / bandwidth)):
            if not work_s <= pool.replicas * elapsed_s * (1.0 + SOL_TOLERANCE):
                share = work_s / pool.replicas / elapsed_s if elapsed_s else np.inf
                yield f"the run used {share:.1%} of the {what} of {chips} x {pool.chip.name}"


INVARIANTS = (
    request_times,
    order,
    first_come,
    little,
    transfers,
    token_counts,
    draft_counts,
    step_problems,
    blocks,
    copies,
    busy_time,
    peak_utilisation,
)


def step_tokens(part: PoolSteps) -> Iterator[str]:
    """No step delivers more tokens than it computed."""
    rows = part.steps
    most = rows.prefill_seqs + rows.decode_seqs * rows.query_len * rows.steps
    for row in _first((rows.output_tokens > most) | (rows.output_tokens < 0)):
        yield f"{part.name(row)} handed out {rows.output_tokens[row]} tokens, it computed {most[row]}"


def sum_of_parts(part: PoolSteps) -> Iterator[str]:
    """A step takes as long as its parts: kernels by bound, copies and host."""
    rows = part.steps
    summed_s = rows.compute_s + rows.memory_s + rows.interconnect_s + rows.latency_s + rows.host_s
    tick_s = np.maximum(1 / TICKS_PER_S, np.spacing(rows.start_s + rows.seconds))
    for row in _first(~(np.abs(rows.seconds - summed_s) <= PARTS_TOLERANCE * rows.seconds + rows.steps * tick_s)):
        yield f"{part.name(row)} takes {rows.seconds[row]:.9g} s, its parts {summed_s[row]:.9g} s"


def capacity(part: PoolSteps) -> Iterator[str]:
    """KV blocks in use and running sequences stay within their limits."""
    limits, rows = part.pool.limits.together, part.steps
    for what, used, limit in (
        ("KV blocks", rows.kv_blocks, limits.num_blocks),
        ("sequences", rows.running, limits.max_num_seqs),
    ):
        for row in _first((used > limit) | (used < 0)):
            yield f"{part.name(row)} holds {used[row]} {what}, there are {limit}"


def keys_in_blocks(part: PoolSteps) -> Iterator[str]:
    """Sequences without shared blocks read at most as many keys as their KV blocks hold."""
    rows, size = part.steps, part.pool.limits.block_size
    for row in _first(rows.decode_kv_tokens > rows.kv_blocks * size):
        yield f"{part.name(row)} reads {rows.decode_kv_tokens[row]} keys from {rows.kv_blocks[row]} blocks of {size}"


def speed_of_light(part: PoolSteps) -> Iterator[str]:
    """No step is faster than its work allows at the peak of its chips; measured ones may be, by chance."""
    seconds = part.steps.seconds
    for row in _first(~((seconds > 0.0) | (part.steps.prefill_tokens + part.steps.decode_seqs == 0))):
        yield f"{part.name(row)} takes no time"
    for what, least in least_seconds(part):
        for row in _first(~(seconds * (1.0 + SOL_TOLERANCE) >= least)):
            yield f"{part.name(row)} takes {seconds[row]:.6g} s, its {what} need {least[row]:.6g} s at the peak"


def least_seconds(part: PoolSteps) -> Iterator[tuple[str, FloatArray]]:
    """Lower bounds of each step's seconds: FLOPs at the fastest dense dtype, bytes, and each kernel at its own peak."""
    pool, rows = part.pool, part.steps
    peak, bandwidth = _limits(pool)
    chips = f"of {pool.chips} x {pool.chip.name}"
    yield f"FLOPs {chips}", rows.flops / peak
    yield f"bytes {chips}", rows.bytes / bandwidth
    timer = pool.timer
    yield "kernels one by one", rows.sol_s / (timer.stages if isinstance(timer, StagedTimer) else 1)


def one_step_at_a_time(rows: StepRecords, end_s: FloatArray) -> Iterator[str]:
    """Steps of one replica do not overlap; ``end_s`` is the end of the latest earlier step of each replica."""
    by_replica = np.argsort(rows.replica, kind="stable") if rows.replica.max() else slice(None)
    replica, start, end = rows.replica[by_replica], rows.start_s[by_replica], (rows.start_s + rows.seconds)[by_replica]
    before = np.where(np.append(True, replica[1:] != replica[:-1]), end_s[replica], np.append(0.0, end[:-1]))
    # Far out the spacing of doubles is larger than the tolerance.
    for row in _first(start < before - TIME_TOLERANCE_S - 4.0 * np.spacing(before)):
        yield f"replica {replica[row]}: a step starts at {start[row]:.12g} s, but one ends at {before[row]:.12g} s"


def _limits(pool: PoolBuild) -> tuple[float, float]:
    """Dense FLOP/s in the fastest dtype, and bytes per second, of a replica. If different devices run one after the
    other (``hardware.layers_on``), the fastest device counts."""
    chips = (pool.chip, *pool.other_chips)
    peaks = [max(chip.compute.dense_flops_per_s.values()) for chip in chips]
    return pool.chips * max(peaks), pool.chips * max(chip.memory.bandwidth_bytes_per_s for chip in chips)


def _first(wrong: BoolArray) -> list[int]:
    rows: list[int] = np.flatnonzero(wrong)[:1].tolist()
    return rows
