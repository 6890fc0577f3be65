"""Laws of physics: no step beats light speed, no replica runs two steps at once, no chip is busy longer than it ran."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hwprofiles import Chip
from simulator.laws.outcome import TIME_TOLERANCE_S, FloatArray, IntArray, Outcome, PoolSteps, first_of
from simulator.serving import StepRecords
from simulator.timing import LightSpeed, stage_light_speeds

LIGHT_TOLERANCE = 0.01
"""Share by which a step may seem faster than its work allows: decode attention is interpolated between contexts."""


def light_speed(outcome: Outcome) -> Iterator[str]:
    """No step is faster than its work allows at the peak of its chips.

    The work as the kernels count it, at the chip's fastest dense dtype; and as the architecture has it, each weight at
    the peak of its own dtype (``simulator.timing.light_speed``). Batches in a pipeline overlap: there the steps of a
    replica together are held against the time that each stage had.
    """
    for part in outcome.by_pool():
        steps = part.steps
        if not len(steps):
            continue
        working = steps.prefill_tokens + steps.decode_seqs > 0
        idle = ~((steps.seconds > 0.0) | ~working)
        if idle.any() and not part.staged:  # batches may leave a pipeline together, while its host is busy
            yield f"{part.name(first_of(idle))} takes no time"
        for what, least in _least_seconds(part):
            if part.staged:
                yield from _staged(part, what, least)
                continue
            wrong = ~(steps.seconds * (1.0 + LIGHT_TOLERANCE) >= least)
            if wrong.any():
                row = first_of(wrong)
                seconds = steps.seconds[row]
                yield f"{part.name(row)} takes {seconds:.6g} s, its {what} need {least[row]:.6g} s at the peak"


def _least_seconds(part: PoolSteps) -> Iterator[tuple[str, FloatArray]]:
    """What bounds each step of a pool, and the seconds that it needs at least."""
    pool, steps = part.pool, part.steps
    peak, bandwidth = _limits(pool.chip, pool.chips)
    chips = f"of {pool.chips} x {pool.chip.name}"
    yield f"FLOPs {chips}", steps.flops / peak
    yield f"bytes {chips}", steps.bytes / bandwidth
    logit_rows = steps.decode_seqs * steps.query_len
    tokens = steps.prefill_tokens + logit_rows
    for speed in stage_light_speeds(pool.cluster.timer):
        yield from _least_of_model(speed, steps, tokens, logit_rows)


def _least_of_model(
    speed: LightSpeed, steps: StepRecords, tokens: IntArray, logit_rows: IntArray
) -> Iterator[tuple[str, FloatArray]]:
    yield "products with weights in their dtypes", speed.compute_s(tokens, logit_rows) * steps.steps
    yield "weights", speed.weight_reads_s(tokens, logit_rows) * steps.steps
    yield "keys and values", speed.key_reads_s(steps.decode_kv_tokens) * steps.steps


def _staged(part: PoolSteps, what: str, least: FloatArray) -> Iterator[str]:
    """The steps of each replica together against the time from its first to its last."""
    steps, first, count = part.steps, part.first, part.pool.replicas
    needed = np.bincount(steps.replica - first, weights=least, minlength=count)
    start, end = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(start, steps.replica - first, steps.start_s)
    np.maximum.at(end, steps.replica - first, steps.start_s + steps.seconds)
    for replica in np.flatnonzero(needed > 0.0):
        if not needed[replica] <= (end[replica] - start[replica]) * (1.0 + LIGHT_TOLERANCE):
            yield (
                f"the steps of replica {first + replica} take {end[replica] - start[replica]:.6g} s, their {what} need "
                f"{needed[replica]:.6g} s at the peak"
            )


def one_step_at_a_time(outcome: Outcome) -> Iterator[str]:
    """Steps of one replica follow each other; they do not overlap, nor do they last longer than the run."""
    steps = outcome.steps
    rows = np.argsort(steps.replica, kind="stable") if len(steps) and steps.replica.max() else slice(None)
    replica, start, end = steps.replica[rows], steps.start_s[rows], (steps.start_s + steps.seconds)[rows]
    overlap = (replica[1:] == replica[:-1]) & (start[1:] < end[:-1] - TIME_TOLERANCE_S)
    if overlap.any():
        row = first_of(overlap)
        yield f"replica {replica[row]}: a step starts at {start[row + 1]:.12g} s, but one ends at {end[row]:.12g} s"


def busy_time(outcome: Outcome) -> Iterator[str]:
    """No replica, and no pipeline stage, works longer than the run lasts."""
    elapsed_s, steps = outcome.elapsed_s, outcome.steps
    if not len(steps):
        return
    busy = np.bincount(steps.replica, weights=steps.seconds)
    replica = int(np.argmax(busy))
    if not busy[replica] <= elapsed_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield f"replica {replica} was busy for {busy[replica]:.9g} s of the {elapsed_s:.9g} s that the run lasts"
    if not outcome.stage_busy_s <= outcome.stage_open_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield (f"pipeline stages worked {outcome.stage_busy_s:.9g} s of the {outcome.stage_open_s:.9g} s that they had")


def utilisation(outcome: Outcome) -> Iterator[str]:
    """All steps of a pool together do no more than its chips could in the time that the run lasts."""
    elapsed_s = outcome.elapsed_s
    for part in outcome.by_pool():
        steps, pool = part.steps, part.pool
        chips = pool.chips * pool.replicas
        peak, bandwidth = _limits(pool.chip, chips)
        for what, work_s in (("FLOP/s", steps.flops.sum() / peak), ("bandwidth", steps.bytes.sum() / bandwidth)):
            if not work_s <= elapsed_s * (1.0 + LIGHT_TOLERANCE):
                share = work_s / elapsed_s if elapsed_s else np.inf
                yield f"the run used {share:.1%} of the {what} of {chips} x {pool.chip.name}"


def _limits(chip: Chip, chips: int) -> tuple[float, float]:
    """Dense FLOP/s in the fastest dtype, and bytes per second, of ``chips`` chips."""
    return chips * max(chip.compute.dense_flops_per_s.values()), chips * chip.memory.bandwidth_bytes_per_s
