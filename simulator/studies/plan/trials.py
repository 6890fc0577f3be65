"""Event simulation of candidates: number of requests, verdict at a load, highest rate that meets the SLO."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError, InvariantError, NothingServedError, StalledError
from simulator.running.metrics.statistics import mean_interval
from simulator.running.metrics.summary import Served, request_latencies_ms, summarise
from simulator.running.metrics.uncertainty import LEVEL as NINE_IN_TEN
from simulator.running.metrics.uncertainty import (
    LIKELY,
    OwnErrors,
    doubts,
    drawn_slo_ratios,
    intervals_of,
    stated_probability,
)
from simulator.running.records import ModelError
from simulator.running.scenario import Scenario
from simulator.studies.plan.objectives import Objective, reached, resampled
from simulator.studies.plan.options import CONFIDENCE
from simulator.studies.steady_state.span import most_telling_rate, steady_requests
from simulator.studies.steady_state.traffic import population
from simulator.workload import RequestStream, generate_requests


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Load of a scenario's requests at any rate; rates differ only in the time scale."""

    kind: str
    """Kind of load: ``process`` = drawn arrivals of a rate, ``trace`` = the trace's own arrivals at another speed."""
    recorded_rate: float | None
    """Requests per second of the unchanged scenario; None if unknown."""
    requests: int | None
    """Number of requests per run; None = at least the scenario's own number."""
    skipped: int = 0
    """Number of rows of a trace before the first replayed request."""
    window: str = ""
    """Text that describes the replayed part of a trace; empty for the whole trace."""

    def at(self, scenario: Scenario, rate: float) -> Scenario:
        """Copy of the scenario with ``rate`` requests per second."""
        return scenario.with_values(self.values_at(scenario, rate))

    def values_at(self, scenario: Scenario, rate: float) -> dict[str, Any]:
        """Workload fields for ``rate`` requests per second, by dotted path."""
        workload = scenario.workload
        changes: dict[str, Any] = {}
        if self.kind == "trace":
            assert self.recorded_rate is not None
            changes["arrivals"] = {"process": "trace", "rate_scale": rate / self.recorded_rate}
        else:
            arrivals = workload.arrivals
            kept = {}
            if arrivals is not None and arrivals.process in ("gamma", "constant"):
                kept = {"process": arrivals.process}
                if arrivals.burstiness is not None:
                    kept["burstiness"] = arrivals.burstiness  # type: ignore[assignment]
            changes["arrivals"] = {"process": "poisson", **kept, "request_rate": rate}
        return {f"workload.{name}": value for name, value in (changes | self._part()).items()}

    def _part(self) -> dict[str, int]:
        part = {} if self.requests is None else {"num_requests": self.requests}
        return part | ({"skip_requests": self.skipped} if self.skipped else {})

    def most_telling_rate(self, scenario: Scenario, longest_wait_s: float) -> float:
        """Highest rate at which a run of this load is long enough for a verdict."""
        if scenario.workload.trace is not None:
            count = len(population(self.limited(scenario).workload).input_tokens)
        else:
            count = self.requests or scenario.workload.num_requests or 1
        return most_telling_rate(scenario, count, longest_wait_s)

    def limited(self, scenario: Scenario) -> Scenario:
        part = {f"workload.{name}": value for name, value in self._part().items()}
        return scenario.with_values(part) if part else scenario

    def long_enough(self, scenario: Scenario, rate: float, longest_wait_s: float) -> PlannedLoad:
        """Copy of the load with enough requests for a verdict at ``rate``; traces and given request numbers are
        unchanged."""
        if self.kind == "trace" or self.requests is not None or scenario.workload.trace is not None:
            return self
        requests = steady_requests(scenario, rate, longest_wait_s)
        return replace(self, requests=max(scenario.workload.num_requests or 0, requests))


def planned_load(scenario: Scenario, requests: int | None, *, own_arrivals: bool) -> PlannedLoad:
    """Describe the load of a scenario."""
    workload = scenario.workload
    arrivals = workload.arrivals
    replayed = workload.trace is not None and (arrivals is None or arrivals.process == "trace")
    skipped, window = _busiest(scenario, requests) if replayed and requests is not None else (0, "")
    if own_arrivals and replayed:
        load = PlannedLoad("trace", None, requests, skipped, window)
        trace_rate = population(load.limited(scenario).workload).trace_rate
        if trace_rate is None:
            raise ForerunError(f"workload.trace: {workload.trace}: arrivals that span no time have no rate to plan for")
        return replace(load, recorded_rate=trace_rate)
    rate = arrivals.request_rate if arrivals is not None else None
    return PlannedLoad("process", rate, requests, skipped, window)


def _busiest(scenario: Scenario, requests: int) -> tuple[int, str]:
    """Number of rows before the busiest ``requests`` consecutive requests of a trace, and their span as text."""
    arrival_s = generate_requests(scenario.workload, 0).arrival_s
    if len(arrival_s) <= requests:
        return 0, ""
    spans = arrival_s[requests - 1 :] - arrival_s[: len(arrival_s) - requests + 1]
    first = int(np.argmin(spans))
    begin, end = (_clock(float(arrival_s[row])) for row in (first, first + requests - 1))
    words = f"its busiest {requests:,} requests in a row, from {begin} to {end} after its first of {len(arrival_s):,}"
    return scenario.workload.skip_requests + first, words


def _clock(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


FAULTS = (ForerunError, InvariantError, StalledError)
"""Exceptions of a layout's run that a plan reports as the layout's reason."""
CLEAR_MISS = 1.5
"""SLO ratio of the first run above which a candidate misses without further runs."""
TOLERANCE = 0.01
"""Relative width of the final bracket of a highest rate."""
MOST_WIDENING = 24
FLAT, NEAR = 0.97, 3.0
"""Bounds on the SLO ratio at a lower load. If it is at least ``FLAT`` times the earlier ratio and at most ``NEAR``,
requests do not wait."""
LEAST_SHARE = 1e-6
"""Share of a layout's capacity at which almost all requests run alone: a miss there is final."""
MOST_RATIO = 2.0
"""Maximum SLO ratio that the interpolation uses: above it, queues grow with the length of the run.

On ten plans of dense and mixture models on six chips, under limits of TTFT, TPOT, E2E and goodput, values from 1.25 to
100 find a bisection's rate within its tolerance; 2 tries the fewest loads (56; 64 at 1.25, 60 at 10, 91 by bisection).
"""
LEVEL = 0.95
JUST_MISSED = 1.0 + 1e-9
SURE_TOLERANCE = 0.03
"""Tolerance in place of ``TOLERANCE`` if the model error is included."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Values of one run that a plan uses."""

    values: dict[str, float | None]
    failed: int
    completed: int
    output_throughput: float | None
    """Output tokens per second while requests arrive."""
    median_tpot_ms: float | None
    power_w: float | None = None
    bottleneck: dict[str, float] | None = None
    basis: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """Shares of device time by evidence level; empty for a run that is not shown."""
    notes: tuple[str, ...] = ()
    resamples: tuple[dict[str, float | None], ...] | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    """Summary metrics; empty for a run that is not shown."""
    own: OwnErrors | None = None
    """Data of the run for its model error; None for a run that is not shown and misses a limit."""
    memory: dict[str, float] = field(default_factory=dict)
    """Bytes on one chip by use, for models with further state than KV."""


class LoadPoint(NamedTuple):
    """Metrics of a candidate's first run at one load."""

    request_rate: float
    output_throughput: float
    median_tpot_ms: float
    meets: bool
    slo_ratio: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a candidate at a load: result, certainty, and binding limit."""

    meets: bool
    """True if the mean values and the required share of the runs meet the objective."""
    slo_ratio: float
    """Largest SLO ratio of the mean values; at most 1 if met, infinite if requests fail."""
    binding: str | None
    values: dict[str, float | None]
    """Mean values of the limited metrics over the runs."""
    interval: tuple[float, float] | None
    """95 % interval of the binding value."""
    share: float
    """Share of runs (or of resamples of a single replay) that meet every limit."""
    runs: int
    method: str
    """Source of share and interval: ``replications`` or ``block bootstrap``."""
    failed: int
    """Number of failed requests if too many for the objective; else 0."""
    observation: Observation
    tried: tuple[LoadPoint, ...] = ()
    """Loads tried in the search for a highest rate that ended with this verdict, ascending."""
    held: Held | None = None
    """Certainty with the model error; None if not computed."""

    def at(self, request_rate: float) -> tuple[LoadPoint, ...]:
        """The verdict as a load point (throughput and speed); empty if no answer has a second token."""
        seen = self.observation
        if not seen.output_throughput or not seen.median_tpot_ms:
            return ()
        return (LoadPoint(request_rate, seen.output_throughput, seen.median_tpot_ms, self.meets, self.slo_ratio),)


def observe(
    scenario: Scenario, seed: int, objective: Objective, resample: bool = False, shown: bool = True
) -> Observation:
    """Simulate one run and return the values that a plan needs; called in a worker process.

    A run that is not ``shown`` has no power, bottleneck or notes, and its evidence level is unknown.
    """
    from simulator.running.build import build_run
    from simulator.running.metrics import own_errors, run_document, summarise
    from simulator.running.metrics.conclusion import load_section, steady_output_throughput
    from simulator.running.run import RunResult, serve, simulate

    result = simulate(scenario, seed, full_step_rows=0) if shown else serve(scenario, seed)
    document = run_document(result) if isinstance(result, RunResult) else None
    summary = summarise(result) if document is None else document["summary"]
    seen = Observation(
        values=reached(objective, result),
        failed=summary["failed"],
        completed=summary["completed"],
        output_throughput=steady_output_throughput(
            load_section(result.requests, scenario.workload), summary, scenario.workload
        ),
        median_tpot_ms=summary["median_tpot_ms"],
    )
    if document is None or not isinstance(result, RunResult):
        holds = _holds(objective, seen.values)  # then the model's error counts
        return replace(seen, own=own_errors(scenario, build_run(scenario, seed), result)) if holds else seen
    rows = resampled(objective, result, seed) if resample else None
    return replace(
        seen,
        power_w=document["power"] and document["power"]["mean_w"],
        bottleneck=document["bottleneck"],
        basis=result.basis,
        evidence=result.evidence._asdict(),
        summary=summary,
        notes=result.notes,
        resamples=None if rows is None else tuple(rows),
        own=own_errors(scenario, build_run(scenario, seed), result),
        memory=document["kv_cache"].get("per_chip_bytes", {}),
    )


UNLOADED_MARGIN = 0.9
"""Maximum share of a limit for the longest request alone, so that no shorter request violates it. The margin is needed
because kernels process whole tiles, so a few more tokens may take slightly less time."""


def holds_unloaded(scenario: Scenario, seeds: Sequence[int], objective: Objective) -> bool:
    """True if every request certainly meets the objective when it runs alone; if False, runs must decide.

    The longest prompt with the longest answer is simulated. No other request has a longer TTFT or a longer decode step,
    whatever the acceptance: these values bound every mean, percentile and deviation.
    """
    from simulator.running.run import simulate

    streams = [generate_requests(scenario.workload, seed) for seed in seeds]
    prompt, answer = (
        max(int(getattr(one, name).max(initial=1)) for one in streams) for name in ("input_tokens", "output_tokens")
    )
    longest = RequestStream(np.zeros(1), np.array([prompt]), np.array([answer]), None)
    try:
        result = simulate(scenario, seeds[0], full_step_rows=0, stream=longest)
    except FAULTS:
        return False
    first_ms = float(request_latencies_ms(result.requests)["ttft"][0])
    gap_ms = 1e3 * float(result.gaps.gap_s.max(initial=0.0))
    bounds = {"ttft": first_ms, "tpot": gap_ms, "itl": gap_ms, "e2el": first_ms + (answer - 1) * gap_ms}
    limits = [(one.latency, one.limit_ms) for one in objective.limits] + list(objective.per_request_ms)
    return all(bounds[name] <= UNLOADED_MARGIN * limit_ms for name, limit_ms in limits)


WAIT_LIMIT_S, WAIT_LIMIT = 10.0, 3.0
"""Longest TTFT of a load that is served, in the search for a highest rate: 10 s, or three times that of the longest
prompt alone. Longer waits come of a queue that grows: they tell the length of the run, and any load holds them."""


def with_wait_limit(scenario: Scenario, seed: int, objective: Objective) -> Objective:
    """The objective with limits on TTFT that a growing queue cannot hold, however lenient its own are."""
    shortened = objective.with_ttft_within(WAIT_LIMIT_S)
    if shortened == objective:
        return objective
    from simulator.running.run import serve

    prompt = int(generate_requests(scenario.workload, seed).input_tokens.max(initial=1))
    longest = RequestStream(np.zeros(1), np.array([prompt]), np.array([1]), None)
    try:
        alone_s = float(request_latencies_ms(serve(scenario, seed, stream=longest).requests)["ttft"][0]) / 1e3
    except FAULTS:
        return objective
    return objective.with_ttft_within(max(WAIT_LIMIT_S, WAIT_LIMIT * alone_s))


class Held(NamedTuple):
    """Certainty of a candidate, model error included."""

    probability: float | None
    """Probability of meeting the objective; None for an engine whose parameters are assumed."""
    intervals: Mapping[str, list[float]]
    """90 % intervals of the limited metrics, in the form of a run's document."""
    likely: Mapping[str, list[float]]
    """Their likely (50 %) ranges."""
    share: float | None = None
    """Share of the draws of the model error that meet the objective, which ``probability`` bounds by the evidence."""


def chance_to_hold(scenario: Scenario, seed: int, objective: Objective, verdict: Verdict) -> Held:
    """Probability that a candidate meets the objective, and the intervals of its limited metrics.

    ``seed`` is the seed of the verdict's first run.
    """
    drawn, error = slo_ratios_drawn(scenario, seed, objective, verdict)
    if not error["stated"]:
        return Held(None, {}, {})
    seen = verdict.observation
    sampling = {key: deviation / sqrt(verdict.runs) for key, deviation in error["sampling"].items()}
    figures = {**seen.summary, **verdict.values}
    ends = (intervals_of(figures, error, sampling, level) for level in (NINE_IN_TEN, LIKELY))
    wide, likely = ({limit.key: one[limit.key] for limit in objective.limits if limit.key in one} for one in ends)
    share = float(np.mean(drawn <= 1.0))
    return Held(stated_probability(share, seen.evidence, *doubts(error)), wide, likely, share)


def slo_ratios_drawn(
    scenario: Scenario, seed: int, objective: Objective, verdict: Verdict, like: ModelError | None = None
) -> tuple[FloatArray, ModelError]:
    """SLO ratios of a candidate in every draw of the model error, and the model error.

    ``like`` may be that at another rate: the shares of a step's kernels hardly depend on the rate.
    """
    from simulator.running.run import error_of_run

    def figures(run: Served) -> dict[str, Any]:
        return {**summarise(run), **reached(objective, run)}

    error = error_of_run(scenario, seed, figures, verdict.observation.own, like)
    gc.collect(1)
    return drawn_slo_ratios(verdict.values, error, objective.slo_ratio, verdict.runs), error


def judge(objective: Objective, observations: Sequence[Observation], confidence: float = CONFIDENCE) -> Verdict:
    """Verdict from one or more runs: mean values against the limits, and the agreement of the runs. Share and Student-t
    interval come from several runs; for a single run, from its resamples.
    """
    values = {key: _mean([run.values[key] for run in observations]) for key in objective.keys}
    slo_ratios = {key: objective.slo_ratio(key, value) for key, value in values.items()}
    binding = max(slo_ratios, key=slo_ratios.__getitem__)
    refused = [objective.refuses_too_many(run.failed, run.failed + run.completed) for run in observations]
    failed = sum(run.failed for run in observations) if any(refused) else 0
    first = observations[0]
    known = [value for run in observations if (value := run.values[binding]) is not None]
    interval, method = None, "replications"
    holds = [
        _holds(objective, run.values) and not too_many for run, too_many in zip(observations, refused, strict=True)
    ]
    if len(observations) > 1:
        interval = mean_interval(known, LEVEL) if len(known) > 1 else None
    elif first.resamples is not None:
        holds = [_holds(objective, row) and not failed for row in first.resamples]
        drawn = sorted(value for row in first.resamples if (value := row[binding]) is not None)
        method = "block bootstrap"
        if drawn:
            edge = int(len(drawn) * (1 - LEVEL) / 2)
            interval = drawn[edge], drawn[-1 - edge]
    slo_ratio = inf if failed else slo_ratios[binding]
    share = sum(holds) / len(holds)
    return Verdict(
        meets=slo_ratio <= 1.0 and share >= confidence,
        slo_ratio=slo_ratio,
        binding=binding,
        values=values,
        interval=interval,
        share=share,
        runs=len(observations),
        method=method,
        failed=failed,
        observation=first,
    )


def highest_rate(
    slo_ratio_at: Callable[[float], float],
    guess: float,
    most: float = inf,
    tolerance: float = TOLERANCE,
    held: float = 0.0,
) -> tuple[float, int]:
    """Highest load at which ``slo_ratio_at`` is at most 1, by interpolation of logarithms.

    The result meets the SLO, and ``(1 + tolerance)`` times the result does not. Runs at different loads share their
    random numbers, so the ratio rises with load except for the granularity of batching. A bracket that two loads have
    not halved is bisected.

    Args:
        slo_ratio_at: function from a load to the largest SLO ratio.
        guess: load at which the search starts, > 0.
        most: highest load to try.
        tolerance: relative width of the final bracket.
        held: a load that is known to meet the SLO; lower loads are not tried.

    Returns:
        The load and the number of loads tried. The load is ``most`` if that meets the SLO, and ``held`` if no other
        load does, down to ``LEAST_SHARE`` of the guess.
    """
    rate, step, tried, low, high, last = min(guess, most), 1.25, 0, 0.0, inf, inf
    below, above, widths = 0.0, 0.0, [inf, inf]
    while True:
        tried += 1
        slo_ratio = slo_ratio_at(rate)
        if slo_ratio <= 1.0:
            low, below = rate, -log(max(slo_ratio, 1 / MOST_RATIO))
        else:
            high, above = rate, log(min(slo_ratio, MOST_RATIO))
        if low == 0.0 and high / step <= held:
            low = held
        if low == 0.0 or high == inf:
            if tried >= MOST_WIDENING or low >= most or high <= LEAST_SHARE * guess:
                return low, tried
            rate = min(low * step, most) if high == inf else high / step
            if FLAT * last < slo_ratio < NEAR and held == 0.0:
                rate = LEAST_SHARE * guess  # load is not what it misses by: if the lowest misses too, all do
            step, last = min(step * 1.5, 4.0), slo_ratio if low == 0.0 else inf
        elif high / low > 1.0 + tolerance:
            widths.append(log(high / low))
            share = below / (below + above) if below and widths[-1] <= widths[-3] / 2 else 0.5
            nearest = min(1.0 + tolerance, sqrt(high / low))
            rate = min(max(low * exp(share * widths[-1]), low * nearest), high / nearest)
        else:
            return low, tried


def find_highest_rate(
    scenario: Scenario,
    load: PlannedLoad,
    objective: Objective,
    seeds: Sequence[int],
    guess: float,
    most: float = inf,
    confidence: float = CONFIDENCE,
    shown: bool = True,
    interval: bool = False,
    held: float = 0.0,
) -> tuple[float, int, Verdict | None, float | None]:
    """Search for the highest rate of a scenario over common seeds, with the verdict there; runs in a worker process.

    A rate passes if enough runs meet the objective and, with ``interval``, if the probability of meeting it, model
    error included, is at least ``confidence``. Only the run at the highest rate is observed as ``shown``; rates below
    ``held`` are not tried.

    Returns:
        The rate, the number of runs, the verdict there, and the probability there (at a rate of 0, the highest
        probability of all tried rates; None without ``interval``).
    """
    verdicts: dict[float, Verdict] = {}
    chances: dict[float, float] = {}
    like: ModelError | None = None

    def slo_ratio_at(rate: float) -> float:
        nonlocal like
        driven = load.at(scenario, rate)
        verdict = verdicts[rate] = judge(objective, trial(driven, objective, seeds, shown=False), confidence)
        if not verdict.meets:
            return max(verdict.slo_ratio, JUST_MISSED)
        if not interval:
            return verdict.slo_ratio
        drawn, error = slo_ratios_drawn(driven, seeds[0], objective, verdict, like)
        like = error
        if not error["stated"]:
            return verdict.slo_ratio
        chances[rate] = float(np.mean(drawn <= 1.0))
        return float(np.quantile(drawn, confidence, method="inverted_cdf"))

    rate, tried = highest_rate(slo_ratio_at, guess, most, SURE_TOLERANCE if interval else TOLERANCE, held)
    verdict = verdicts.get(rate)
    points = tuple(point for one in sorted(verdicts) for point in verdicts[one].at(one))
    if shown and verdict is not None:
        verdict = judge(objective, trial(load.at(scenario, rate), objective, seeds), confidence)
    if verdict is not None:
        verdict = replace(
            verdict, tried=tuple(one._replace(meets=one.meets and one.request_rate <= rate) for one in points)
        )
    chance = chances.get(rate, max(chances.values(), default=None))
    evidence = [{} if verdict is None else verdict.observation.evidence, *([] if like is None else doubts(like))]
    return rate, tried + len(chances), verdict, None if chance is None else stated_probability(chance, *evidence)


def trial(
    scenario: Scenario, objective: Objective, seeds: Sequence[int], resample: bool = False, shown: bool = True
) -> list[Observation]:
    """Run one candidate at one load, seed by seed; only the first seed if that run misses by far."""
    runs: list[Observation] = []
    for seed in seeds:
        try:
            runs.append(observe(scenario, seed, objective, resample and len(seeds) == 1, shown))
            gc.collect(1)  # the engine's objects refer to each other and hold the rows of a run
        except NothingServedError as error:
            raise ForerunError(f"no request can be served here ({error.reasons})") from None
        if len(runs) == 1 and judge(objective, runs).slo_ratio > CLEAR_MISS:
            break
    return runs


def _holds(objective: Objective, values: dict[str, float | None]) -> bool:
    return all(objective.slo_ratio(key, value) <= 1.0 for key, value in values.items())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
