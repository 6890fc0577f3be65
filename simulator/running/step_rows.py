"""Engine steps of a run: pricing by bound and evidence, and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.result import alike
from simulator.running.build import Build
from simulator.serving import StepLog, StepRecords
from simulator.timing import Costs, EngineTimer, Kernel, ModelTimer, StagedTimer, StepWork, running, some_steps
from simulator.timing.kernels import equal_neighbours
from simulator.timing.power import full_power_s

MEAN_CONTEXT = 0.03
"""Maximum relative error of pricing several steps at their mean context."""
PRICED_TOGETHER = 1 << 15
"""Number of steps whose bounds are computed together, so that the arrays fit a processor's cache."""
COUNTED = (
    "replica", "prefill_seqs", "prefill_tokens", "decode_seqs", "query_len", "output_tokens", "running", "waiting",
    "kv_blocks", "steps",
)  # fmt: skip
SCALED = ("compute_s", "memory_s", "latency_s", "host_s", "calibrated_s", "extrapolated_s", "datasheet_s")
MOST_ROWS = 50_000
"""Maximum number of step rows of a run whose steps are split into parts for the timeline."""


@dataclass(slots=True)
class StepTotals:
    """Sums over the engine steps of each replica, the source of all step figures in a summary. Every step is added
    before rows are joined or dropped, so a summary does not depend on the kept rows.
    """

    peak_flops_per_s: FloatArray
    """Dense peak of the replica in the dtype of its weight matrices."""
    bandwidth_bytes_per_s: FloatArray
    steps: IntArray
    seconds: FloatArray
    prefill_tokens: IntArray
    output_tokens: IntArray
    compute_s: FloatArray
    memory_s: FloatArray
    interconnect_s: FloatArray
    latency_s: FloatArray
    host_s: FloatArray
    calibrated_s: FloatArray
    extrapolated_s: FloatArray
    datasheet_s: FloatArray
    flops: FloatArray
    bytes: FloatArray
    full_power_s: FloatArray
    """Seconds at TDP whose energy above idle power equals that of the steps (``simulator.timing.power``)."""
    block_s: FloatArray
    held_s: FloatArray
    peak_blocks: IntArray
    first_s: FloatArray
    end_s: FloatArray

    @classmethod
    def none(cls, peak_flops_per_s: Sequence[float], bandwidth_bytes_per_s: Sequence[float]) -> StepTotals:
        """Zero totals for replicas with these peaks."""
        kinds = [np.int64 if field.name in COUNTS else np.float64 for field in fields(cls)[2:]]
        columns: list[Any] = [np.zeros(len(peak_flops_per_s), dtype=kind) for kind in kinds]
        totals = cls(np.asarray(peak_flops_per_s), np.asarray(bandwidth_bytes_per_s), *columns)
        totals.first_s += np.inf
        return totals

    def add(self, steps: StepRecords) -> None:
        """Add further steps to the sums."""
        if not len(steps):
            return
        replica, seconds = steps.replica, steps.seconds
        bound_s, arithmetic_s = steps.compute_s + steps.memory_s, steps.flops / self.peak_flops_per_s[replica]
        summed = {name: getattr(steps, name) for name in STEP_SUMS} | {
            "full_power_s": full_power_s(seconds, bound_s, arithmetic_s),
            "block_s": steps.kv_blocks * seconds,
            "held_s": (steps.running + steps.waiting) * seconds,
        }
        order = np.argsort(replica, kind="stable") if replica.max() > replica.min() else slice(None)
        firsts, _ = equal_neighbours(replica[order])
        at = replica[order][firsts]
        rows = np.stack(list(summed.values()), axis=1, dtype=np.float64)[order]
        # Over rows side by side ``sum`` adds one after the other, so that the last bit does not depend on the columns.
        sums_of = np.array([part.sum(axis=0) for part in np.split(rows, firsts[1:])])
        for name, added in zip(summed, sums_of.T, strict=True):
            getattr(self, name)[at] += added.astype(getattr(self, name).dtype)
        for name, extreme, values in (
            ("peak_blocks", np.maximum, steps.kv_blocks),
            ("first_s", np.fmin, steps.start_s),
            ("end_s", np.fmax, steps.start_s + seconds),
        ):
            sums = getattr(self, name)
            sums[at] = extreme(sums[at], extreme.reduceat(values[order], firsts))

    def of_replicas(self, first: int, count: int) -> StepTotals:
        return StepTotals(**{field.name: getattr(self, field.name)[first : first + count] for field in fields(self)})


STEP_SUMS = tuple(field.name for field in fields(StepTotals) if field.name in StepRecords.__dataclass_fields__)
"""Names of totals that are sums of the step column with the same name."""
COUNTS = ("steps", "prefill_tokens", "output_tokens", "peak_blocks")


@dataclass(slots=True)
class StepRows:
    """Prices the rows of a ``StepLog`` and passes the rows to each function in ``looks``."""

    build: Build
    looks: Sequence[Callable[[StepRecords], None]]
    keep: bool
    """True if the priced records are retained."""
    parts: list[StepRecords] = field(default_factory=list)

    def take(self, log: StepLog) -> None:
        """Price the rows of ``log``."""
        steps = price_steps(log, self.build)
        for look in self.looks:
            look(steps)
        self.parts.append(steps if self.keep else steps.take(np.zeros(0, dtype=np.int64)))

    def steps(self) -> StepRecords:
        return joined(self.parts)


def price_steps(steps: StepLog, build: Build) -> StepRecords:
    """Engine steps with the sum of their kernels: seconds by bound and by evidence, useful work.

    The sum equals the step's duration, up to the grid of simulated time. For rows of several steps (priced at their
    mean context), for batches that wait for each other in a pipeline and for measured steps, shares are scaled to the
    recorded seconds.
    Copies to and from host memory count as interconnect.
    """
    costs, chips = Costs.zeros(0), np.zeros(len(steps), dtype=np.int64)
    count, copies_s = steps.column("steps"), steps.column("copies_s")
    overlapped = np.zeros(len(steps), dtype=np.bool_)
    pool_of = np.repeat(np.arange(len(build.pools)), [pool.replicas for pool in build.pools])
    for number, pool in enumerate(build.pools):
        timer = pool.timer
        pool_rows = np.flatnonzero(pool_of[steps.integers("replica")] == number)
        overlapped[pool_rows] = isinstance(timer, StagedTimer) or pool.hits is not None or pool.measured
        for start in range(0, len(pool_rows), PRICED_TOGETHER):
            rows: Any = pool_rows[start : start + PRICED_TOGETHER]
            whole = len(rows) == len(steps)
            if len(build.pools) == 1:
                rows = slice(start, start + len(rows))
            work = steps.work(rows)
            draft = steps.draft(rows)
            chips[rows] = pool.chips_per_stage
            part = timer.costs(work) if draft is None else timer.costs(work, draft)
            if whole:
                costs = part
                continue
            if len(costs.host_s) < len(steps):
                costs = Costs.zeros(len(steps))
            costs.put(rows, part)
    priced = costs.device_s + costs.host_s
    scaled = (overlapped | (count > 1)) & (priced > 0)
    scale = np.divide(steps.column("seconds") - copies_s, priced, out=np.ones_like(priced), where=scaled)
    # What a mean context may be off by; parts that are further off do not sum to the step, which the invariants report.
    near = np.clip(scale, (1.0 - MEAN_CONTEXT) * count, (1.0 + MEAN_CONTEXT) * count)
    scale = np.where(scaled & ~overlapped, near, scale)
    scale[steps.integers("prefill_seqs") + steps.integers("decode_seqs") == 0] = 0.0  # requests were preempted, no more
    columns: dict[str, Any] = {name: steps.integers(name) for name in COUNTED}
    columns |= {name: steps.column(name).copy() for name in ("start_s", "seconds")}
    columns |= {name: getattr(costs, name) * scale for name in SCALED}
    columns["interconnect_s"] = costs.interconnect_s * scale + copies_s
    columns["sol_s"] = costs.sol_s * count
    columns |= {name: getattr(costs, name) * count * chips for name in ("flops", "bytes")}
    return StepRecords(decode_kv_tokens=steps.decode_kv_tokens, **columns)


def joined(parts: list[StepRecords]) -> StepRecords:
    """Concatenate ``parts``; the list is emptied, so that memory is freed column by column."""
    if len(parts) == 1:
        return parts[0]
    columns = [part.columns() for part in parts]
    parts.clear()
    names = StepRecords.__dataclass_fields__
    return StepRecords(**{name: np.concatenate([part.pop(name) for part in columns]) for name in names})


class SampledStep(NamedTuple):
    """Seconds of one engine step by part."""

    row: int
    """Row index in the run's step records."""
    host_s: float
    draft_s: float
    kernels: tuple[Kernel, ...]
    """Kernels of the step; every chip runs the same kernels."""


class StepDetail:
    """Parts of a run's steps for its timeline, computed when they are first read, or pickled."""

    def __init__(self, log: StepLog, timer: ModelTimer) -> None:
        self._log, self._timer = log, timer

    @classmethod
    def of(cls, log: StepLog, timer: EngineTimer) -> StepDetail | None:
        """Create the detail; None if the run is too long or its timer does not list kernels."""
        known = isinstance(timer, ModelTimer) and not log.dropped and 0 < len(log) <= MOST_ROWS
        return cls(log, timer) if known else None  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("draft_s", "sampled", "devices")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StepDetail) and alike(self.__getstate__(), other.__getstate__())

    @cached_property
    def draft_s(self) -> FloatArray | None:
        """Seconds that the drafter adds to each step row; None without a drafter."""
        log = self._log
        added_s = self._timer.exposed_drafting_s(log.work(slice(None)), log.draft(slice(None)))
        return None if added_s is None else np.minimum(added_s * log.column("steps"), log.column("seconds"))

    @cached_property
    def sampled(self) -> tuple[SampledStep, ...]:
        """The step of median duration of each kind; empty for pipelines, whose steps overlap."""
        return () if isinstance(self._timer, StagedTimer) else tuple(self._samples())

    @cached_property
    def devices(self) -> int:
        """Number of chips that run the same kernels in parallel."""
        return self._timer.target.deployment.group_chips

    def _samples(self) -> Iterator[SampledStep]:
        timer, work, seconds = self._timer, self._log.work(slice(None)), self._log.column("seconds")
        single = np.where(self._log.column("copies_s") > 0, 0.0, self._log.column("steps"))
        for row in median_rows(work, seconds, single):
            one_step = timer.scored(some_steps(work, np.array([row])))
            kernels = tuple(running(timer.target.kernels(one_step)))
            host_s = float(seconds[row]) - sum(one.step_s for one in kernels)
            yield SampledStep(row, max(0.0, host_s), 0.0 if self.draft_s is None else float(self.draft_s[row]), kernels)


def median_rows(work: StepWork[Any], seconds: FloatArray, steps: FloatArray) -> list[int]:
    """Row of median duration among the single steps of each kind: prompts only, decode or verify only, both."""
    prompts, decodes, single = work.prefill_tokens > 0, work.decode_seqs > 0, steps == 1
    rows = []
    for kind in (prompts & ~decodes, decodes & ~prompts, prompts & decodes):
        indices = np.flatnonzero(kind & single)
        if len(indices):
            rows.append(int(indices[np.argsort(seconds[indices], kind="stable")[len(indices) // 2]]))
    return rows


@dataclass(slots=True)
class DecodeSample:
    """Sample of every n-th decode-only step; n doubles so that at most ``most`` steps are retained. The sample does not
    depend on the chunks in which steps arrive."""

    most: int = 256
    parts: list[StepRecords] = field(default_factory=list)
    _stride: int = 1
    _seen: int = 0

    def take(self, steps: StepRecords) -> None:
        """Process further steps."""
        rows = np.flatnonzero((steps.prefill_seqs == 0) & (steps.decode_seqs > 0))
        numbers = self._seen + np.arange(len(rows))
        self._seen += len(rows)
        self.parts.append(steps.take(rows[numbers % self._stride == 0]))
        while len(self) > self.most:
            self._stride *= 2
            self.parts = [self.steps.take(np.arange(0, len(self.steps), 2))]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def steps(self) -> StepRecords:
        self.parts = [joined(self.parts)]
        return self.parts[0]
