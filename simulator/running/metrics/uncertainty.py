"""The model's own error in the figures of a run, carried from kernels and host to latencies.

Every step of an engine is a sum of kernels and host work, each known to within an interval of its own. A few hundred
draws move all of them at once: kernels of one family and format err partly alike, families err independently. What a
draw does to steps with prompt chunks and to the others is the sum over their shares of time; what that does to the
figures of a run comes from the engine itself, which serves the first requests again with steps stretched along the two
directions in which they vary most. So queueing near saturation is in it, and no draw costs a run of its own. What
kernels timed alone do not tell about an engine comes from measured runs of the same evidence class (``served``).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import exp, hypot, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.document import Json
from hwprofiles import Chip, load_chip
from simulator.running.build import Build, PoolBuild
from simulator.running.metrics.measured_error import (
    ACCEPTANCE,
    MEANS,
    conditions_of,
    informed,
    measured_shifts,
    widths_after_measuring,
)
from simulator.running.metrics.posterior import Posterior
from simulator.running.metrics.served import (
    SERVED,
    UNMOVED,
    Stratum,
    figure_kind,
    is_served,
    served_as,
    served_response,
    serves_arrivals,
    stratum_of,
    without_served,
)
from simulator.running.metrics.statistics import Z50, Z90, WeightedSample
from simulator.running.metrics.summary import (
    RATES,
    REQUEST_LATENCIES,
    Served,
    completed_requests,
    good_requests,
    latency_statistics,
    request_latency_ms,
    slo_limits,
    summarise,
)
from simulator.running.records import Axis, ErrorSource, ModelError, request_records, speculation_counters
from simulator.running.scenario import Scenario
from simulator.serving import GapCounts, RequestRecords, RunLog, SpeculationCounters, StepLog
from simulator.speculation import draft_survival, sampler_of, scaled_survival
from simulator.speculation.acceptance import widest_spread
from simulator.speculation.confidence import drafts_that_vary, seen_worth
from simulator.speculation.speculation_config import named
from simulator.timing import ModelTimer, StagedTimer, load_framework
from simulator.workload import RequestStream, generate_requests

LEVEL, LIKELY = 0.90, 0.50
"""Levels of the intervals: nine in ten, and the likely range."""
OWN_SHARE = {LEVEL: 1.0, LIKELY: 0.41}
"""Share of the 90 % interval of kernels, host work and chance in the ends of each level."""
DRAWS = 512
"""Number of random draws over all error sources together; draws need no further runs."""
LEAST_REQUESTS, SHARE, MOST_REQUESTS = 256, 10, 10_000
"""Requests that are simulated again for every direction: a share of the run, within bounds. A tenth instead of a sixth
moves the ends of TPOT and throughput by at most 2 % in twelve runs of 10,000 to 100,000 requests, those of TTFT by 3 %,
near capacity by up to 20 %."""
LEAST_AT_ONCE = 16
"""Requests taken to run at once where arrivals are open."""
ALIKE = 0.25
"""Share of the variance of a family's errors that its kernels have in common.

Errors on held-out shapes of matrix products (n, k from 1,024 to 32,768), between numbers of tokens against within:
0.07 and 0.08 for bf16 on H100 (vLLM, SGLang) and A100, 0.25 and 0.43 for fp8 on H100."""
SAMPLED_STEPS = 48
"""Steps of each kind that are split into their kernels, evenly over their time."""
NEGLIGIBLE = 0.002
"""Standard deviation of a direction, in logarithms, below which it is not followed."""
BATCHES = 10
KINDS = ("prompts", "decode")
"""Kinds of steps: with prompt chunks, and without."""
FITTED_HOST_ENDS = (0.8, 1.25)
"""90 % ends of host costs per step, fitted to within some 5 % of E2E latencies (frameworks.yaml)."""
ASSUMED_HOST_ENDS = (0.5, 2.0)
DRAFTING_ENDS = (0.8, 1.25)
API_SERVER, API_SERVER_ENDS = "api server", (0.5, 1.8)
"""A server's work before the scheduler sees a request: TTFT of single requests lies 11 % (5 to 20) over the prediction
on one table of guidellm at concurrency 1, where this work is a quarter of it."""
ACCEPTANCE_ENDS = (0.9, 1.1)
"""90 % ends of acceptance rates from other traffic: curves of one drafter differ by some 10 % between tasks."""
LEAST_API_SERVER_LOAD = 0.3
"""Share of the time that an API server works from which its queue is simulated with other work."""
LEAST_ACCEPTANCE_RANGE = 0.01
"""Relative width of the sampling error of a log's acceptance rate below which it is not served again."""
LEAST_GOOD = 0.5
"""Number of good requests for which none counts in logarithms."""
PHASE = "phase"
"""Axis of a closed loop in lock step, whose order of prompts depends on milliseconds. Its cycle is the same; how that
divides into TTFT and TPOT is not known."""


Figures = Callable[[Served], Mapping[str, Any]]
"""Figures of a run by name, such as its summary."""


class Rerun(NamedTuple):
    """Inputs of a summary over requests that were served again."""

    scenario: Scenario
    requests: RequestRecords
    gaps: GapCounts
    speculation: SpeculationCounters | None
    shifts: Mapping[str, float] = {}
    """Factors on the figures of a kind that measured runs of the deployment ask for."""


class OwnErrors(NamedTuple):
    """Facts of a run about its own error."""

    sampling: dict[str, float]
    stratum: Stratum
    least_ms: dict[str, float]
    """TTFT and TPOT of the requests that waited least, scaled to the mean request's tokens."""
    conditions: list[float]
    """``ModelError.conditions``."""


def own_errors(scenario: Scenario, build: Build, result: Served) -> OwnErrors:
    """Sampling error of a run, and the stratum of runs that the error of its model is taken from."""
    ttft_ms = request_latency_ms(result.requests, "ttft")
    least_ms = {"ttft": float(np.nanmin(ttft_ms, initial=np.inf)), "tpot": _least_tpot_ms(result.requests)}
    requests = result.requests
    stratum = stratum_of(scenario, build, requests)
    return OwnErrors(sampling_errors(result), stratum, least_ms, conditions_of(build, requests))


def _least_tpot_ms(requests: RequestRecords) -> float:
    """TPOT of the request with the shortest steps, at the mean acceptance."""
    tpot_ms = request_latency_ms(requests, "tpot")
    if not requests.accepted_tokens.any():
        return float(np.nanmin(tpot_ms, initial=np.inf))
    known = np.isfinite(tpot_ms)
    tokens = requests.output_tokens[known] - 1
    steps = np.maximum(tokens - requests.accepted_tokens[known], 1)
    return float(np.min(tpot_ms[known] * tokens / steps, initial=np.inf)) * float(steps.sum() / max(1, tokens.sum()))


def model_error(
    scenario: Scenario,
    seed: int,
    build: Build,
    stream: RequestStream,
    own: OwnErrors,
    figures: Figures = summarise,
    like: ModelError | None = None,
    posterior: Posterior | None = None,
    advise: bool = True,
) -> ModelError:
    """Model error in the figures of a finished run.

    Args:
        like: error of the run at another load, whose sources of step times are taken over; default: found anew.
        posterior: what measured runs of the deployment tell, in place of the errors of other deployments.
        advise: adds the widths after one measured run (``after_measuring``).
    """
    requests = first_requests(scenario, seed, stream, requests_again(build, stream))

    def run(moved: Build, log: RunLog | None = None) -> Rerun:
        log = log or moved.fleet.run(requests, None, 0, StepLog.forget)
        return Rerun(scenario, request_records(log), log.gaps(), speculation_counters(log, moved.main))

    def served(moved: Build) -> Mapping[str, Any]:
        return figures(run(moved))

    def axis(name: str, ends: list[Mapping[str, Any]], deviation: float = 1.0, direction: Sequence[float] = ()) -> Axis:
        return Axis(name=name, deviation=deviation, direction=list(direction), response=_response(base, ends))

    if like is None:
        logged = build.fleet.run(requests)
        plain, sources, step_ms = run(build, logged), step_sources(build, logged), _step_ms(logged)
    else:
        plain, sources, step_ms = run(build), like["sources"], like["step_ms"]
    base = figures(plain)
    axes = []
    for direction, deviation in _directions(sources):
        ends = [served(_with_factors(build, np.exp(end * deviation * direction))) for end in (-Z90, Z90)]
        axes.append(axis("steps", ends, deviation, direction.tolist()))
    survivals = [] if build.main.sampler is None else _acceptance_ends(scenario)
    if survivals:
        axes.append(axis(ACCEPTANCE, [served(_with_acceptance(scenario, build, seed, ends)) for ends in survivals]))
    api_server_ms = _api_server_ms(build, requests)
    if _api_server_load(build, requests, base) >= LEAST_API_SERVER_LOAD:
        axes.append(axis(API_SERVER, [served(_with_api_server_work(build, factor)) for factor in API_SERVER_ENDS]))
    elif api_server_ms > 0:
        moved_ms = [api_server_ms * (factor - 1.0) for factor in API_SERVER_ENDS]
        axes.append(axis(API_SERVER, [_with_api_server(base, more_ms) for more_ms in moved_ms]))
    if stream.stays_in_step and len(build.pools) == 1:
        response = _phase_response(base, own.least_ms, int(stream.output_tokens[0]))
        axes.append(Axis(name=PHASE, deviation=1.0, direction=[], response=response))
    alike = served_as(own.stratum)
    factors = alike.factors | ({"throughput": UNMOVED} if serves_arrivals(scenario, own.stratum) else {})
    response = served_response(base, factors)
    name = f"{SERVED} {scenario.engine.framework}"
    error = ModelError(
        level=LEVEL,
        sources=sources,
        axes=[*axes, Axis(name=name, deviation=1.0, direction=[], response=response)],
        sampling=own.sampling,
        requests=len(requests),
        stratum=own.stratum._asdict(),
        served=alike.words,
        step_ms=step_ms,
        conditions=own.conditions,
        stated=posterior is not None or not assumed_engine(scenario.engine.framework),
    )
    after = widths_after_measuring(scenario, base, error) if advise else {}
    error = error if posterior is None else informed(error, posterior, scenario, base)
    shifts = {} if posterior is None else measured_shifts(posterior, scenario, build, plain.requests)
    _add_goodput(error["axes"][-1]["response"], scenario, plain.requests, shifts)
    return {**error, "after_measuring": after}


def _add_goodput(
    response: dict[str, list[float]], scenario: Scenario, requests: RequestRecords, shifts: Mapping[str, float]
) -> None:
    """Replace the response of goodput along the axis of measured runs by what its latencies make of good requests."""
    limits = slo_limits(scenario.slo)

    def good(moved: Mapping[str, float]) -> float:
        known = good_requests(limits, requests, moved)
        return max(LEAST_GOOD, float(np.count_nonzero(known))) if known is not None else 1.0

    def moved_to(end: int) -> dict[str, float]:
        ends = {name: response.get(f"mean_{name}_ms", [0.0] * 4)[end] for name in REQUEST_LATENCIES}
        return {name: shifts.get(name, 1.0) * exp(one) for name, one in ends.items()}

    if "request_goodput" not in response:
        return
    usual = good(shifts)
    rate = response.get("request_throughput", [0.0] * len(response["request_goodput"]))
    response["request_goodput"] = [log(good(moved_to(end)) / usual) + rate[end] for end in range(len(rate))]


def assumed_engine(framework: str) -> bool:
    """True if nothing of an engine was measured: an interval would rest on other engines."""
    return load_framework(framework).source.kind == "assumed"


def _step_ms(log: RunLog) -> dict[str, float]:
    """Mean milliseconds of each kind of step; that of the other kind where there are none."""
    seconds, steps = log.steps.column("seconds"), log.steps.column("steps")
    prompts = log.steps.integers("prefill_tokens") > 0
    means = [1e3 * float(seconds[rows].sum() / max(1.0, steps[rows].sum())) for rows in (prompts, ~prompts)]
    return {kind: mean or other for kind, mean, other in zip(KINDS, means, means[::-1], strict=True)}


def requests_again(build: Build, stream: RequestStream) -> int:
    """Requests that are served again for every direction. Where every step is decided or priced in Python, a tenth of a
    short run too, but twice the running requests, so that the load stays."""
    share = len(stream) // SHARE
    if any(pool.interpreted or pool.hits is not None or pool.rule is not None for pool in build.pools):
        return min(max(2 * (stream.max_concurrency or LEAST_AT_ONCE), share), MOST_REQUESTS)
    return min(max(LEAST_REQUESTS, share), MOST_REQUESTS)


def first_requests(scenario: Scenario, seed: int, stream: RequestStream, most: int) -> RequestStream:
    if len(stream) <= most:
        return stream
    if stream.prefix_hashes is None and not stream.times_depend:
        named = ("arrival_s", "input_tokens", "output_tokens", "priorities", "think_s")
        cut = {name: getattr(stream, name)[:most] for name in named if getattr(stream, name) is not None}
        return replace(stream, **cut, stages=None, warm_up=None)
    fewer = generate_requests(scenario.workload.model_copy(update={"num_requests": most, "warm_up": None}), seed)
    return fewer if len(fewer) else stream


def _with_factors(build: Build, factors: FloatArray) -> Build:
    prompts, decode = map(float, factors)

    def moved(pool: PoolBuild) -> PoolBuild:
        with_prompts, without = pool.step_factors  # those of measured runs
        return replace(pool, step_factors=(prompts * with_prompts, decode * without))

    return build.with_pools(moved)


def _with_acceptance(scenario: Scenario, build: Build, seed: int, survival: FloatArray) -> Build:
    assert scenario.speculation is not None
    acceptance = drafts_that_vary(scenario.speculation, float(survival[0]))
    if acceptance.spread:
        acceptance = acceptance.model_copy(update={"spread": min(acceptance.spread, widest_spread(float(survival[0])))})
    sampler = sampler_of(acceptance, survival, seed, scenario.speculation.draft)
    error = named(scenario.speculation.policy).calibration_error or 0.0

    def moved(pool: PoolBuild) -> PoolBuild:
        if pool.sampler is None:
            return pool
        budget = pool.budget
        if budget is not None:
            budget = replace(budget, worth=seen_worth(sampler.rates, budget.confidence, error))
        return replace(pool, sampler=sampler, budget=budget)

    return build.with_pools(moved)


def _acceptance_ends(scenario: Scenario) -> list[FloatArray]:
    """Survival rates at both ends of the acceptance range; empty without drafting.

    Those of an engine's log are the ends of its sampling error; empty if it counts so many drafts that there is none.
    """
    speculation = scenario.speculation
    if speculation is None or speculation.acceptance is None:
        return []
    ends = ACCEPTANCE_ENDS
    if speculation.acceptance.log is not None:
        from simulator.speculation.engine_logs import rate_factors, read_acceptance

        ends = rate_factors(read_acceptance(speculation.acceptance.log))
        if ends[1] - ends[0] < LEAST_ACCEPTANCE_RANGE:
            return []
    survival = [float(share) for share in draft_survival(speculation)]
    return [np.asarray(scaled_survival(survival, factor)) for factor in ends]


def _api_server_ms(build: Build, stream: RequestStream) -> float:
    limits, tokens = build.pools[0].limits, float(np.mean(stream.input_tokens))
    return 1e3 * (limits.api_server_s + limits.api_server_work_s + limits.tokenisation_per_token_s * tokens)


def _api_server_load(build: Build, stream: RequestStream, figures: Mapping[str, Any]) -> float:
    """Share of the time that the API servers of the main pool work."""
    counts = float(np.mean(stream.input_tokens)), float(np.mean(stream.output_tokens))
    busy_s = build.main.limits.api_server_busy_s(1.0, *counts)
    return float(busy_s * (figures.get("request_throughput") or 0.0) / build.main.replicas)


def _with_api_server_work(build: Build, factor: float) -> Build:
    """The build with a factor on everything that its API servers do."""
    names = ("api_server_s", "api_server_work_s", "tokenisation_per_token_s", "streaming_s")

    def change(pool: PoolBuild) -> PoolBuild:
        scaled = {name: factor * getattr(pool.limits, name) for name in names}
        return replace(pool, limits=replace(pool.limits, **scaled))

    return build.with_pools(change)


def _with_api_server(figures: Mapping[str, Any], more_ms: float) -> Json:
    """The figures with every first token later by as much."""
    late = re.compile(r"(mean|median|p[\d.]+)_(ttft|e2el)_ms")
    moved = {key: value + more_ms for key, value in figures.items() if isinstance(value, float) and late.fullmatch(key)}
    return {**figures, **moved}


def step_sources(build: Build, log: RunLog) -> list[ErrorSource]:
    """Sources of a run's step time by kernel family, format and chip, each with its interval."""
    steps, timer = log.steps, build.main.timer
    if not isinstance(timer, ModelTimer):
        return []
    seconds, prompts = steps.column("seconds"), steps.integers("prefill_tokens") > 0
    ends = np.cumsum([0, *(pool.replicas for pool in build.pools)])
    place = build.pools.index(build.main)
    in_pool = (steps.integers("replica") >= ends[place]) & (steps.integers("replica") < ends[place + 1])
    sources: dict[str, ErrorSource] = {}
    for kind, rows in zip(KINDS, (np.flatnonzero(in_pool & prompts), np.flatnonzero(in_pool & ~prompts)), strict=True):
        if len(rows):
            _split_by_source(sources, kind, timer, log, _evenly_in_time(rows, seconds))
    return list(sources.values())


def _split_by_source(
    sources: dict[str, ErrorSource], kind: str, timer: ModelTimer, log: RunLog, rows: IntArray
) -> None:
    work, draft = log.steps.work(rows), log.steps.draft(rows)
    costs = timer.costs(work) if draft is None else timer.costs(work, draft)
    total, deployment = costs.device_s + costs.host_s, timer.target.deployment
    library, framework = deployment.kernels, deployment.framework
    left = np.ones(len(rows))
    for kernel in timer.target.kernels(timer.scored(work)) if not isinstance(timer, StagedTimer) else ():
        share = np.asarray(kernel.step_s) / total
        left = left - share
        if kernel.fitted[0] or kernel.family == "collective":
            fitted = kernel.fitted if kernel.fitted[0] else ("collective", "any")
            ends = library.interval(*fitted, kernel.sizes, kernel.bound, assumed=True)
            names = (library.library, *(part for part in fitted if part != "any"))
            family, draws = " ".join((library.chip.name, *names)), " ".join((measured_as(library.chip), *names))
            _add(sources, f"{family}: {kernel.name}", kind, share, *ends, draws=f"{draws}: {kernel.name}")
    drafting = timer.exposed_drafting_s(work, draft)
    if drafting is not None:
        left = left - drafting / total
        _add(sources, f"{framework.name} drafting", kind, drafting / total, *DRAFTING_ENDS)
    host = ASSUMED_HOST_ENDS if framework.source.kind == "assumed" else FITTED_HOST_ENDS
    _add(sources, f"{framework.name} host", kind, np.maximum(left, 0.0), *host)


def measured_as(chip: Chip) -> str:
    """Name of the hardware that ``chip``'s kernels were measured on. Equal for chips with equal limits, and for a chip
    without own fits and its ``like`` chip."""
    while not chip.kernels and chip.like is not None:
        chip = load_chip(chip.like)
    bandwidths = (chip.memory.bandwidth_bytes_per_s, chip.on_chip.bandwidth_bytes_per_s)
    numbers = (sorted(chip.compute.dense_flops_per_s.items()), chip.compute.cores, *bandwidths)
    return f"{zlib.crc32(repr(numbers).encode()):08x}"


def _add(
    sources: dict[str, ErrorSource], name: str, kind: str, share: FloatArray, low: Any, high: Any, draws: str = ""
) -> None:
    """Count a share of some steps under a source, its ends weighted with it in logarithms."""
    weight = float(np.mean(share))
    if weight <= 0.0:
        return
    new = ErrorSource(name=name, family=name.partition(":")[0], draws=draws or name, share={}, low={}, high={})
    source = sources.setdefault(name, new)
    before = source["share"].get(kind, 0.0)
    for end, value in (("low", low), ("high", high)):
        mean = float(np.mean(share * np.log(value))) / weight
        known = log(source[end].get(kind, 1.0))  # type: ignore[literal-required]
        source[end][kind] = exp((before * known + weight * mean) / (before + weight))  # type: ignore[literal-required]
    source["share"][kind] = before + weight


def _evenly_in_time(rows: IntArray, seconds: FloatArray) -> IntArray:
    reached = np.cumsum(seconds[rows])
    places = (np.arange(SAMPLED_STEPS) + 0.5) / SAMPLED_STEPS * reached[-1]
    chosen: IntArray = rows[np.searchsorted(reached, places)]
    return chosen


@lru_cache(maxsize=1024)
def standard_draws(name: str) -> FloatArray:
    """Standard normal draws of a source, the same in every run, so that variants share them."""
    half = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(DRAWS // 2)
    draws = np.concatenate((half, -half))
    draws.flags.writeable = False
    return draws


def step_draws(sources: Sequence[ErrorSource]) -> FloatArray:
    """Logarithm of the factor on the seconds of each kind of step (rows) in every draw (columns)."""
    sums = np.zeros((len(KINDS), DRAWS))
    for row, kind in enumerate(KINDS):
        moved, known = np.zeros(DRAWS), 0.0
        for source in sources:
            if kind not in source["share"]:
                continue
            family = source["draws"].partition(":")[0]
            draws = standard_draws(source["draws"])
            if source["draws"] != family:
                draws = sqrt(1 - ALIKE) * draws + sqrt(ALIKE) * standard_draws(family)
            end = np.where(draws < 0, -log(source["low"][kind]), log(source["high"][kind]))
            moved += source["share"][kind] * np.expm1(draws * end / Z90)
            known += source["share"][kind]
        if known:
            sums[row] = np.log(np.maximum(0.05, 1.0 + moved))
    return sums


def _directions(sources: Sequence[ErrorSource]) -> list[tuple[FloatArray, float]]:
    values, vectors = np.linalg.eigh(np.cov(step_draws(sources)))
    deviations = np.sqrt(np.maximum(values, 0.0))
    return [(vectors[:, i], float(deviations[i])) for i in (1, 0) if deviations[i] > NEGLIGIBLE]


def _phase_response(figures: Mapping[str, Any], least_ms: Mapping[str, float], tokens: int) -> dict[str, list[float]]:
    """Logarithms of the factors on TTFT and TPOT if prompts are mixed into decode steps, and if prompts come first. One
    of the two is then the value of a request without other prompts; the other takes the remainder of the end-to-end
    latency, for answers of as many tokens.
    """
    response = {key: [0.0, 0.0] for key, value in figures.items() if isinstance(value, float) and value > 0}
    for statistic in [key.removesuffix("_e2el_ms") for key in response if key.endswith("_e2el_ms")]:
        e2el, alone = figures[f"{statistic}_e2el_ms"], least_ms
        ends = {
            "ttft": (alone["ttft"], e2el - (tokens - 1) * alone["tpot"]),
            "tpot": (alone["tpot"], (e2el - alone["ttft"]) / (tokens - 1)),
        }
        for name, (low, high) in ends.items():
            key = f"{statistic}_{name}_ms"
            if key in response and low > 0:  # drafts may deliver all tokens of an answer at once
                value = figures[key]
                response[key] = [log(min(low, value) / value), log(max(high, value) / value)]
        response.get(f"{statistic}_tpot_ms", []).reverse()
    return response


def _response(base: Mapping[str, Any], ends: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    return {
        key: [log(end[key] / value) for end in ends]
        for key, value in base.items()
        if isinstance(value, float) and value > 0 and all(end.get(key) and end[key] > 0 for end in ends)
    }


def metric_draws(error: ModelError, metric: str, steps: FloatArray | None = None) -> FloatArray | None:
    """Logarithm of the factor on a summary figure in every draw of the model error; None if no error is known. Between
    the simulated ends and beyond, the figure moves linearly in logarithms on either side. ``steps`` are the
    :func:`step_draws` of the error's sources, for callers with several figures.
    """
    if not error["axes"] or any(metric not in axis["response"] for axis in error["axes"]):
        return None
    steps = step_draws(error["sources"]) if steps is None else steps
    total, kind = np.zeros(DRAWS), figure_kind(metric)
    for axis in error["axes"]:
        along = standard_draws(axis["name"])
        if kind in (joint := axis.get("joint", {})):
            several = [standard_draws(f"{axis['name']} {place}") for place in range(len(joint[kind]))]
            along = np.asarray(joint[kind]) @ np.array(several)
        if axis["direction"]:
            along = np.asarray(axis["direction"]) @ steps / axis["deviation"]
        response = axis["response"][metric]
        if len(response) > 2:  # likely range and nine in ten; beyond them as steep as between
            low, middle_low, middle_high, high = response
            knots, values = [-Z90, -Z50, 0.0, Z50, Z90], [low, middle_low, 0.0, middle_high, high]
            slopes = [(middle - end) / (Z90 - Z50) for end, middle in ((low, middle_low), (high, middle_high))]
            total += np.interp(along, knots, values) - slopes[1] * np.maximum(along - Z90, 0.0)
            total += slopes[0] * np.minimum(along + Z90, 0.0)
        else:
            low, high = response
            total += np.where(along < 0, -low, high) * along / Z90
    return total


def sampling_draws(metric: str, deviation: float) -> FloatArray:
    return deviation * standard_draws(f"chance {metric}")


def intervals_of(
    summary: Mapping[str, Any], error: ModelError, sampling: Mapping[str, float], level: float = LEVEL
) -> dict[str, list[float]]:
    """Ends of the interval of every figure that has one, nine in ten or likely."""
    factors = interval_factors(summary, error, sampling, level)
    return {key: [summary[key] * low, summary[key] * high] for key, (low, high) in factors.items()}


def interval_factors(
    summary: Mapping[str, Any], error: ModelError, sampling: Mapping[str, float], level: float = LEVEL
) -> dict[str, tuple[float, float]]:
    """Ends of the interval over its figure: kernels and host, chance, and measured runs. The ends of measured runs were
    fitted for this sum (``validation.served.bands``)."""
    steps, factors = step_draws(error["sources"]), dict[str, tuple[float, float]]()
    composed, served = without_served(error), [axis for axis in error["axes"] if is_served(axis)]
    outer = slice(None, None, 3) if level == LEVEL else slice(1, 3)
    for key, value in summary.items():
        if not isinstance(value, int | float) or value <= 0 or any(key not in axis["response"] for axis in served):
            continue
        draws = metric_draws(composed, key, steps) if composed["axes"] else np.zeros(DRAWS)
        if draws is not None:
            drawn = WeightedSample.of(draws + sampling_draws(key, sampling.get(key, 0.0)))
            low, high = (OWN_SHARE[level] * drawn.percentile(50 * (1 + side * LEVEL)) for side in (-1, 1))
            ends = [sorted(axis["response"][key][outer]) for axis in served]
            low = -hypot(min(0.0, low), *(end[0] for end in ends))
            high = hypot(max(0.0, high), *(end[1] for end in ends))
            factors[key] = exp(low), exp(high)
    if "request_goodput" in factors:  # at most all requests are good
        (low, high), (least, most) = factors["request_goodput"], factors["request_throughput"]
        most *= summary["request_throughput"] / summary["request_goodput"]
        factors["request_goodput"] = min(low, least), min(high, most)
    return factors


def decoding_share(summary: Json, statistic: str) -> float:
    """Share of the E2E latency after the first token."""
    return max(0.0, 1.0 - float(summary[f"{statistic}_ttft_ms"]) / float(summary[f"{statistic}_e2el_ms"]))


def drawn_slo_ratios(
    values: Mapping[str, float | None], error: ModelError, ratio: Callable[[str, float], float], runs: int = 1
) -> FloatArray:
    """Largest ratio of a value to its limit in every draw of the model's error.

    Args:
        values: limited figures, as means over ``runs`` runs; a figure that was not measured misses no limit.
        error: of the model, in these figures.
        ratio: of a figure's value to its limit.
    """
    steps, ratios = step_draws(error["sources"]), np.zeros(DRAWS)
    for key, value in values.items():
        draws = None if value is None else metric_draws(error, key, steps)
        if value is not None and draws is not None:
            chance = sampling_draws(key, error["sampling"].get(key, 0.0) / sqrt(runs))
            ratios = np.maximum(ratios, [ratio(key, float(one)) for one in value * np.exp(draws + chance)])
    return ratios


SURPRISED = " its prediction, outside nine in ten"
"""End of the words on a measured figure that lies outside its interval."""
LEAST_SURE, MOST_SURE = 0.1, 0.9
"""Probabilities that are stated at least and at most where nothing was measured."""


def stated_probability(probability: float, *evidence: Mapping[str, float]) -> float:
    """A probability, capped to 10 %..90 % for the part of the time that was not measured.

    stated = (1 - s) p + s min(max(p, 0.1), 0.9): the error of what was measured has been scored, so that ``p`` comes
    true as often as it says; on the remaining share ``s`` of the time, one case in ten may lie outside every interval.

    Args:
        probability: ``p``, over the draws of the model's error.
        evidence: shares of device time by evidence level of each run; ``s`` is that of the least measured.

    >>> stated_probability(0.997, {"calibrated": 1.0}), stated_probability(0.997, {"datasheet": 1.0})
    (0.997, 0.9)
    >>> round(stated_probability(1.0, {"calibrated": 0.95, "extrapolated": 0.05}), 3)
    0.995
    """
    unmeasured = max(1.0 - shares.get("calibrated", 0.0) for shares in evidence)
    capped = min(max(probability, LEAST_SURE), MOST_SURE)
    return probability if capped == probability else (1.0 - unmeasured) * probability + unmeasured * capped


def doubts(*errors: ModelError) -> list[dict[str, float]]:
    """Evidence for :func:`stated_probability` of runs of doubted models: none."""
    return [{} for error in errors if error.get("doubted")]


def slo_probability(slo: Mapping[str, Any], error: ModelError | None, *evidence: Mapping[str, float]) -> float | None:
    """Probability that runs meet their limits, as in their document's ``slo`` section; None for an unknown error.

    ``evidence`` has each run's shares of device time by level."""
    limits = slo["limits"]
    if error is None or not error["stated"]:
        return None
    if any(row["met"] is False and row["value"] <= row["limit"] for row in limits.values()):
        return 0.0  # requests are refused, whatever the model's error
    values = {key: row["value"] for key, row in limits.items()}
    drawn = drawn_slo_ratios(values, error, lambda key, value: value / limits[key]["limit"], len(evidence))
    return stated_probability(float(np.mean(drawn <= 1.0)), *evidence, *doubts(error))


def interval_section(
    summary: Mapping[str, Any], error: ModelError | None, sampling: Mapping[str, float] | None
) -> Json:
    """The document's ``intervals`` section: intervals, their level, the kinds of error in them, and the model error."""
    if error is None or not error["stated"]:
        return {"intervals": {}, "likely": {}, "interval_level": None, "intervals_of": None, "model_error": error}
    return {
        "intervals": intervals_of(summary, error, sampling or {}),
        "likely": intervals_of(summary, error, sampling or {}, LIKELY),
        "interval_level": LEVEL,
        "intervals_of": "model error and sampling",
        "model_error": error,
    }


LEAST_GAIN = 1.15
"""Factor by which a measured run must narrow an interval to be worth naming."""


def worth_measuring(summary: Json, error: ModelError | None) -> Json | None:
    """The mean that one measured run of this load would narrow most, with its widths; None where none helps."""
    if error is None or not error["stated"]:
        return None
    widths = {key: high / low for key, (low, high) in intervals_of(summary, error, error["sampling"]).items()}
    gains = {key: widths[key] / after for key, after in error.get("after_measuring", {}).items() if key in widths}
    best = next((key for key in MEANS if gains.get(key, 0.0) >= LEAST_GAIN), None)
    if best is None:
        return None
    return {"metric": best, "width": widths[best], "width_after": error["after_measuring"][best]}


def sampling_errors(result: Served) -> dict[str, float]:
    """Standard error of the figures of one run, in logarithms. Of latencies from stretches of its requests in order of
    arrival, of rates from the start and end of the clock. ITL takes that of TPOT.

    Source: method of batch means; A. M. Law, "Simulation Modeling and Analysis" (5th ed., 2015), section 9.5.3.
    """
    requests = result.requests.measured
    done = completed_requests(requests)
    if done.sum() < 2 * BATCHES:
        return {}
    errors = {}
    for name in REQUEST_LATENCIES:
        values = request_latency_ms(requests, name)[done]
        parts = np.array_split(values, BATCHES)
        rows = [latency_statistics(name, WeightedSample.of(part[~np.isnan(part)])) for part in parts]
        del values, parts  # before those of the next latency are there as well
        for key in rows[0]:
            known = [row[key] for row in rows]
            if all(value is not None and value > 0 for value in known):
                errors[key] = float(np.std(np.log(np.asarray(known, dtype=np.float64)), ddof=1)) / sqrt(BATCHES)
    errors |= {key.replace("tpot", "itl"): value for key, value in errors.items() if "_tpot_" in key}
    return errors | dict.fromkeys(RATES, _rate_error(requests, done))


def _rate_error(requests: RequestRecords, done: BoolArray) -> float:
    """Standard error of a run's rates in logarithms: its duration, one gap and one latency more or less.

    Whether a benchmark counts until the last request is sent, is due or is answered, and what its client takes to
    start, no table tells: inference-perf's 60 requests at one a second took 59.6 s.
    """
    arrivals, finished = requests.arrival_s[done], requests.finished_s[done]
    duration = float(finished.max() - arrivals.min())
    return (1.0 / len(arrivals) + float(np.mean(finished - arrivals)) / duration) / Z90
