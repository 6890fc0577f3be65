"""Laws that every finished run must keep: light speed, conservation, order in time, capacity, Little's law.

They are looked at after each simulation, as cheap sums over its records. A run that breaks one is a fault of the
simulator, never of its input: it raises with the scenario attached instead of handing out numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Chip
from simulator.errors import LawBrokenError
from simulator.scenario import Scenario
from simulator.serving import KvCacheReport, RequestRecords, SpeculationCounters, StepRecords

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

LIGHT_TOLERANCE = 0.01
"""Share by which a step may seem faster than its work allows: decode attention is interpolated between contexts."""
TIME_TOLERANCE_S = 1e-9
"""Sums of seconds over long runs may differ by rounding."""


def check_laws(
    scenario: Scenario,
    seed: int,
    chip: Chip | None,
    chips: int,
    requests: RequestRecords,
    steps: StepRecords,
    kv: KvCacheReport,
    speculation: SpeculationCounters | None = None,
    max_concurrency: int | None = None,
) -> None:
    """Raise for the first law that a finished run breaks.

    Args:
        scenario: what was run, for whoever reproduces it.
        seed: the run's.
        chip: what the target model ran on; None where pools or failures make replicas unlike: only the laws of requests
            are looked at then.
        chips: of all replicas together.
        requests: one row per request.
        steps: one row per engine step.
        kv: the KV cache's size and use.
        speculation: counters of draft tokens, where there were any.
        max_concurrency: of a closed loop; None where requests arrive on their own.

    Raises:
        LawBrokenError: naming the law, the place and the numbers.
    """
    problems = [*order(requests), *little(requests, max_concurrency)]
    if chip is not None:
        hardware = scenario.hardware
        problems += tokens(requests, steps, speculation)
        problems += light_speed(steps, chip, hardware.chips_per_replica * hardware.speculative_parallel)
        problems += capacity(steps, kv, scenario.engine.max_num_seqs)
        if hardware.pipeline_parallel == 1:
            problems += one_step_at_a_time(steps)
        problems += utilisation(requests, steps, chip, chips)
    if problems:
        raise LawBrokenError(problems[0], scenario.model_dump_json(exclude_unset=True), seed)


def order(requests: RequestRecords) -> Iterator[str]:
    """Every request ends; it arrives, is scheduled, has its first token and then its last, in this order."""
    done = np.isfinite(requests.finished_s)
    if np.any(done == requests.failed):
        yield f"request {_first(done == requests.failed)} was neither finished nor refused, or both"
    stages = ("arrival_s", "scheduled_s", "first_token_s", "finished_s")
    for earlier, later in pairwise(stages):
        before, after = getattr(requests, earlier)[done], getattr(requests, later)[done]
        wrong = ~(after >= before - TIME_TOLERANCE_S)
        if wrong.any():
            row = _first(wrong)
            yield f"request {np.flatnonzero(done)[row]}: {later} {after[row]:.9g} is before {earlier} {before[row]:.9g}"


def tokens(requests: RequestRecords, steps: StepRecords, speculation: SpeculationCounters | None) -> Iterator[str]:
    """Steps hand out exactly the tokens that requests receive, and compute each prompt token that was not cached."""
    done = ~requests.failed
    handed, received = int(steps.output_tokens.sum()), int(requests.output_tokens[done].sum())
    if handed != received:
        yield f"steps handed out {handed} tokens, requests received {received}"
    computed = int(steps.prefill_tokens.sum())
    needed = int((requests.input_tokens - requests.cached_tokens)[done].sum())
    if computed < needed or (computed > needed and not requests.preemptions.any()):
        yield f"steps computed {computed} prompt tokens, requests without preemption need {needed}"
    if speculation is not None:
        counts = (speculation.num_drafts, *speculation.accepted_per_position)
        if speculation.accepted_tokens > speculation.draft_tokens or any(np.diff(counts) > 0):
            yield (
                f"{speculation.accepted_tokens} of {speculation.draft_tokens} draft tokens were accepted, by position "
                f"{counts[1:]} of {counts[0]} drafts"
            )


def light_speed(steps: StepRecords, chip: Chip, engine_chips: int) -> Iterator[str]:
    """No step is faster than its FLOPs at the chip's dense peak and its bytes at the memory's bandwidth allow."""
    peak, bandwidth = _limits(chip, engine_chips)
    for what, least in (("FLOPs", steps.flops / peak), ("bytes", steps.bytes / bandwidth)):
        wrong = ~(steps.seconds * (1.0 + LIGHT_TOLERANCE) >= least)
        if wrong.any():
            row = _first(wrong)
            yield (
                f"step {row} takes {steps.seconds[row]:.6g} s, its {what} need {least[row]:.6g} s at the peak of "
                f"{engine_chips} x {chip.name}"
            )
    if not np.all(steps.seconds > 0.0):
        yield f"step {_first(~(steps.seconds > 0.0))} takes no time"


def capacity(steps: StepRecords, kv: KvCacheReport, max_num_seqs: int) -> Iterator[str]:
    """KV blocks in use and running sequences stay within their limits."""
    limits = (("KV blocks", steps.kv_blocks, kv.num_blocks), ("sequences", steps.running, max_num_seqs))
    for what, used, limit in limits:
        wrong = (used > limit) | (used < 0)
        if wrong.any():
            row = _first(wrong)
            yield f"step {row} holds {used[row]} {what}, there are {limit}"


def one_step_at_a_time(steps: StepRecords) -> Iterator[str]:
    """Steps of one replica follow each other; they do not overlap."""
    rows = np.argsort(steps.replica, kind="stable") if len(steps) and steps.replica.max() else slice(None)
    replica, start, end = steps.replica[rows], steps.start_s[rows], (steps.start_s + steps.seconds)[rows]
    overlap = (replica[1:] == replica[:-1]) & (start[1:] < end[:-1] - TIME_TOLERANCE_S)
    if overlap.any():
        row = _first(overlap)
        yield f"replica {replica[row]}: a step starts at {start[row + 1]:.12g} s, but one ends at {end[row]:.12g} s"


def utilisation(requests: RequestRecords, steps: StepRecords, chip: Chip, chips: int) -> Iterator[str]:
    """All steps together do no more than all chips could from the first arrival to the last finish."""
    done = ~requests.failed
    if not done.any():
        return
    duration_s = max(float(requests.finished_s[done].max()), _end(steps)) - float(requests.arrival_s.min())
    peak, bandwidth = _limits(chip, chips)
    for what, work_s in (("FLOP/s", steps.flops.sum() / peak), ("bandwidth", steps.bytes.sum() / bandwidth)):
        if not work_s <= duration_s * (1.0 + LIGHT_TOLERANCE):
            yield f"the run used {work_s / duration_s:.1%} of the {what} of {chips} x {chip.name}"


def little(requests: RequestRecords, max_concurrency: int | None) -> Iterator[str]:
    """A closed loop of N holds at most N requests on average: throughput times mean latency <= N.

    Source: J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9(3) (1961).
    """
    done = ~requests.failed
    if max_concurrency is None or not done.any():
        return
    latencies_s = float((requests.finished_s - requests.arrival_s)[done].sum())
    duration_s = float(requests.finished_s[done].max() - requests.arrival_s[done].min())
    if latencies_s > max_concurrency * duration_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield (
            f"throughput times latency is {latencies_s / duration_s:.6g} requests in a closed loop of {max_concurrency}"
        )


def _limits(chip: Chip, chips: int) -> tuple[float, float]:
    """Dense FLOP/s in the fastest dtype, and bytes per second, of ``chips`` chips."""
    return chips * max(chip.compute.dense_flops_per_s.values()), chips * chip.memory.bandwidth_bytes_per_s


def _end(steps: StepRecords) -> float:
    return float((steps.start_s + steps.seconds).max()) if len(steps) else 0.0


def _first(wrong: BoolArray) -> int:
    """The first row where something is wrong."""
    return int(np.argmax(wrong))
