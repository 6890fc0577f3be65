"""Capacity plans: the cheapest layout that meets an SLO at a load, or the highest load of each layout.

Layouts are tried in order of cost, so the first layout that meets the SLO is the winner; layouts are skipped only by
conservative bounds (``pruning``). The event simulation, with replications on common random numbers, always decides
whether a layout meets the SLO. Layouts of equal cost rank by the distance from the SLO.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError, InvariantError
from forerun.tables import number
from forerun.workers import Workers, study_workers
from simulator.running.metrics.conclusion import NO_INTERVAL
from simulator.running.metrics.uncertainty import LEVEL as NINE_IN_TEN
from simulator.running.metrics.uncertainty import assumed_engine
from simulator.running.metrics.usage import store_price_notes
from simulator.running.scenario import Scenario
from simulator.studies.plan.layouts import (
    GIVEN,
    REPLICAS,
    TENSOR_PARALLEL,
    Layout,
    layouts,
    listed,
    replica_counts,
    search_axes,
)
from simulator.studies.plan.objectives import RESAMPLES, WAITING, Objective, latency_words
from simulator.studies.plan.options import PlanOptions
from simulator.studies.plan.trials import (
    FAULTS,
    WAIT_LIMIT_S,
    LoadPoint,
    PlannedLoad,
    Verdict,
    chance_to_hold,
    find_highest_rate,
    holds_unloaded,
    judge,
    planned_load,
    trial,
    with_wait_limit,
)
from simulator.studies.steady_state.averages import SteadyReplica
from simulator.studies.steady_state.span import SPAN_S
from simulator.studies.study_file import StudyFile
from simulator.studies.sweep.tiers import SIZE
from simulator.workload import generate_requests
from simulator.workload.generate import trace_began_s

RANKS = ("meets", "misses", "pruned", "not simulated", "refused", "error")
"""Possible statuses of a candidate, in the order in which candidates are listed."""


@dataclass(slots=True)
class Candidate:
    """A layout with a number of replicas, and its verdict."""

    layout: Layout
    replicas: int
    status: str
    reason: str | None = None
    verdict: Verdict | None = None
    max_rate: float | None = None
    at_least: bool = False
    """True if ``max_rate`` is the highest rate that the number of requests can test, and it meets the SLO."""
    searched: int = 0
    """Simulated replicas if a power budget allows more: ``copies`` such groups serve ``copies`` times the rate."""
    chance: float | None = None
    """Probability of meeting the SLO, model error included; None if not computed."""
    share: float | None = None
    """Share of the draws of the model error that meet the SLO; None if not computed."""
    intervals: Mapping[str, list[float]] = field(default_factory=dict)
    """90 % intervals of the limited metrics, model error included; empty if not computed."""
    likely: Mapping[str, list[float]] = field(default_factory=dict)
    """Their likely (50 %) ranges."""
    points: tuple[LoadPoint, ...] = ()
    """Loads at which the candidate was simulated."""

    @property
    def name(self) -> str:
        return self.layout.named(self.replicas)

    @property
    def copies(self) -> float:
        """Number of copies of the simulated replicas that are rented."""
        return self.replicas / self.searched if self.searched else 1.0

    @property
    def chips(self) -> int:
        return self.layout.chips * self.layout.rented(self.replicas)

    @property
    def usd_per_hour(self) -> float | None:
        usd = self.layout.usd_per_hour
        return None if usd is None else usd * self.layout.rented(self.replicas) + self.layout.shared_usd_per_hour


@dataclass(frozen=True, slots=True)
class HeadroomCases:
    """The best layout, of all or of one chip, under a failed replica, a higher load and an hourly profile."""

    one_less: Candidate | None
    """The layout with one replica down; None if it has only one replica."""
    doubled: Candidate | None
    """The layout with enough replicas, or the deployment of pools, for ``GROWTH`` times the load; None if none tried
    meets the SLO."""
    hours: tuple[tuple[float, float, int], ...] = ()
    """Start (s), rate (requests per second) and replicas of each hour of a profile or log. The rate is the highest rate
    of the hour for a profile, and the mean for a log."""
    began_s: float | None = None
    """Unix time of the start of hour 0; None if the hours have no dates."""
    fewest: tuple[int, int] | None = None
    """Replicas that meet the SLO at the favourable and at the unfavourable end of the model error's 90 % interval; None
    without an interval."""


GROWTH = 2.0
"""Ratio of the growth case's load to the planned load."""
MANY_REQUESTS = 20_000
"""Requests of a trace from which a plan starts processes at once."""
MORE_TRIED = 3
"""Number of further replica counts that the growth case tries if the first misses the SLO."""
FEWER_FOR_GROWTH = 1.25
"""Factor by which a larger deployment may be cheaper than in proportion to the load."""
TRIED_OF_A_CHIP = 24
"""Maximum candidates of a chip that are tried after the search has enough layouts, all of other chips."""


@dataclass(slots=True)
class Plan:
    """A finished plan, best candidate first."""

    study: StudyFile
    objective: Objective
    options: PlanOptions
    rate: float | None
    """Planned requests per second; None if the highest rate is searched."""
    by_price: bool
    """True if cost is in US dollars per hour; else it is a number of chips."""
    candidates: list[Candidate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    load: PlannedLoad | None = None
    headroom_cases: HeadroomCases | None = None
    """The best layout under changed conditions; None without ``headroom`` or if no layout meets the SLO."""
    chip_cases: dict[str, HeadroomCases] = field(default_factory=dict)
    """The same, without hours, for the best layout of each chip; empty without ``headroom``."""

    @property
    def best_of_chips(self) -> dict[str, Candidate]:
        """Best candidate of each chip, the best chip first; a chip that holds nothing has one not simulated, if any."""
        first: dict[str, Candidate] = {}
        order = {"meets": 0, "not simulated": 1}
        for candidate in sorted(self.candidates, key=lambda candidate: order.get(candidate.status, 2)):
            first.setdefault(candidate.layout.chip_names, candidate)
        return first

    @property
    def best(self) -> Candidate | None:
        """The winner; None if no candidate meets the SLO."""
        first = self.candidates[0] if self.candidates else None
        return first if first is not None and first.status == "meets" else None

    def cost(self, candidate: Candidate) -> float:
        """Cost in US dollars per hour, or in chips if not every layout has a price."""
        usd = candidate.usd_per_hour
        return float(usd) if self.by_price and usd is not None else float(candidate.chips)


def make_plan(study: StudyFile, objective: Objective, options: PlanOptions) -> Plan:
    """Search the layouts of a study for layouts that meet an objective."""
    load, rate = _load(study.scenario, options)
    candidates = layouts(study, search_axes(study), options.spare)
    counts = replica_counts(study, options.max_replicas)
    usable = [layout for layout in candidates if layout.refused is None]
    by_price = bool(usable) and all(layout.usd_per_hour is not None for layout in usable)
    plan = Plan(study, objective, options, rate, by_price, notes=_notes(study, usable, by_price), load=load)
    if load.window:
        plan.notes.append(f"{study.scenario.workload.trace}: every run plays {load.window}")
    hour_s = 3600.0 / options.growth
    if load.kind == "trace" and hour_s < SPAN_S:
        plan.notes.append(
            f"growth: the log is played {options.growth:g} times faster, an hour of it in {hour_s:.2g} s, too short "
            "for the queues of a busy hour to grow; --rate with the rate of its busiest hour plans for that hour"
        )
    refused = [Candidate(layout, counts[0], "refused", layout.refused) for layout in candidates if layout.refused]
    own = load.limited(study.scenario).workload
    long_runs = load.kind == "trace" and len(generate_requests(own, options.seed)) >= MANY_REQUESTS
    with study_workers(options.jobs, long_runs) as workers:
        search = HighestRates if rate is None else CheapestFirst
        searched = search(plan, load, usable, counts, workers).run()
    plan.candidates = [*searched, *refused]
    return plan


def _load(scenario: Scenario, options: PlanOptions) -> tuple[PlannedLoad, float | None]:
    load = planned_load(scenario, options.requests, own_arrivals=options.mode == "own")
    if options.mode == "max-rate":
        return load, None
    rate = options.rate if options.mode == "rate" else load.recorded_rate
    if rate is None:
        raise ForerunError(
            "workload.arrivals: a plan needs a request rate: give rate, max_rate or trace, or set request_rate here"
        )
    profile = _profile(scenario)
    return load, rate * options.growth * (1.0 if profile is None else max(factor for _, factor in profile))


def _profile(scenario: Scenario) -> Sequence[tuple[float, float]] | None:
    arrivals = scenario.workload.arrivals
    return None if arrivals is None else arrivals.profile


def highest_by_hour(profile: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Start (s) of each hour of a profile, and the hour's highest factor relative to the profile's highest. A profile
    shorter than a day is divided into 24 equal parts."""
    at_s, factor = np.array(profile, dtype=np.float64).T
    step = min(3600.0, at_s[-1] / 24)
    starts = np.arange(0.0, at_s[-1] * (1 - 1e-9), step)
    most = [max(np.interp([t, min(t + step, at_s[-1])], at_s, factor).max(),
                factor[(at_s >= t) & (at_s <= t + step)].max(initial=0.0)) for t in starts]  # fmt: skip
    return [(float(t), float(one / factor.max())) for t, one in zip(starts, most, strict=True)]


LEAST_HOURS = 3
"""Minimum hours of a log for which a plan lists replicas by the hour."""
LEAST_COVERED_S = 600.0
"""Minimum divisor in seconds for the request rate of an hour that a log covers only partly."""


def hourly_rates(arrival_s: FloatArray, began_s: float | None) -> list[tuple[float, float]]:
    """Start (s) of each hour of the clock, or after the first request, and its mean rate of arrivals.

    >>> hourly_rates(np.array([0.0, 1800.0, 3600.0, 7200.0]), 1714557600.0 + 1800)
    [(0.0, 0.0005555555555555556), (1800.0, 0.0005555555555555556), (5400.0, 0.0005555555555555556)]
    """
    last = float(arrival_s[-1])
    starts = np.arange(-((began_s or 0.0) % 3600.0), max(last, 1.0), 3600.0)
    hours = np.minimum((arrival_s - starts[0]) // 3600.0, len(starts) - 1).astype(int)
    counts = np.bincount(hours, minlength=len(starts))
    begins, ends = np.maximum(starts, 0.0), np.minimum(starts + 3600.0, last)
    rates = counts / np.maximum(ends - begins, LEAST_COVERED_S)
    return list(zip(begins.tolist(), rates.tolist(), strict=True))


def _notes(study: StudyFile, usable: Sequence[Layout], by_price: bool) -> list[str]:
    notes = list(study.notes)
    if study.scenario.measured is None and any(assumed_engine(one.scenario.engine.framework) for one in usable):
        notes.append(NO_INTERVAL)
    if _profile(study.scenario) is not None:
        notes.append("workload.arrivals.profile: the rate planned for is that of its busiest moment")
    if pools := study.scenario.pools:
        fields = ", ".join(f"--vary pools.{name}.{TENSOR_PARALLEL}=2,4,8" for name in pools)
        notes.append(f"pools: only their numbers of replicas are searched unless varied, such as with {fields}")
    arrivals = study.scenario.workload.arrivals
    if arrivals is not None and arrivals.process == "closed-loop":
        notes.append(
            "workload.arrivals: a closed loop has no rate, so Poisson arrivals are planned; for a number of users, "
            "forerun sweep --vary workload.arrivals.max_concurrency=16,32,64"
        )
    if not by_price and any(layout.usd_per_hour is not None for layout in usable):
        notes.append("not every chip has a price: layouts are ranked by their number of chips")
    prices = study.scenario.prices
    given = {price.source == GIVEN for layout in usable for price in layout.prices.values()}
    if by_price and prices is not None and not isinstance(prices.usd_per_chip_hour, dict) and given == {True, False}:
        chip = study.scenario.hardware.chip
        notes.append(f"prices.usd_per_chip_hour is the price of {chip}; other chips cost what their profiles say")
    if by_price:
        notes += store_price_notes(study.scenario)
    for path in filter(SIZE.fullmatch, study.vary):
        words = f"forerun sweep --vary {path}={','.join(f'{size:g}' for size in listed(path, study.vary[path]))}"
        notes.append(f"{path}: {words} draws hit rates, TTFT and dollars over this size, beside the working set")
    return notes


RATE_MARGIN = 1.25
"""Factor on the analytic highest rate of a replica; above it, a growing queue is certain."""
LATENCY_MARGIN = 0.75
"""Share of an analytic latency without load that counts as a certain lower bound."""


def overload(
    steady: SteadyReplica | None, objective: Objective, replicas: int, arrival_s: FloatArray, rate: float
) -> str | None:
    """Reason why the queue must exceed a limit at this number of replicas; None if it may not.

    By time t at most ``n (m + 1.25 R t)`` requests have been started: n replicas of m places, R the analytic highest
    rate of a replica. Request k, which arrives at t_k, therefore waits at least ``(k / n - m) / (1.25 R) - t_k``;
    quantiles and mean of this wait over all requests bound the quantiles and means of TTFT and E2E latency.

    Args:
        steady: analytic averages of one replica; None without a closed form. Not used if prompts share prefixes,
            because the hit rate depends on routing.
        objective: the SLO.
        replicas: number of replicas.
        arrival_s: arrival times of the run, ascending.
        rate: planned requests per second.
    """
    if steady is None or not len(arrival_s) or steady.traffic.cached_tokens.any():
        return None
    start_s = (np.arange(len(arrival_s)) / replicas - steady.most) / (RATE_MARGIN * steady.most_rate)
    wait_s = np.maximum(0.0, start_s - (arrival_s - arrival_s[0]))
    for quantile, limit_s in wait_budgets(objective):
        least = float(np.mean(wait_s)) if quantile is None else float(np.quantile(wait_s, quantile, method="lower"))
        if least > limit_s:
            requested, served = number(rate, 3), number(replicas * steady.most_rate, 3)
            return f"requested {requested} req/s, serves about {served} in the long run: the queue outgrows the SLO"
    return None


def infeasible_reason(steady: SteadyReplica | None, objective: Objective) -> str | None:
    """Reason why an SLO cannot be met even without load; None if it may be met.

    The mean latencies of a request that runs alone, times ``LATENCY_MARGIN``, bound the mean and every percentile from
    the 90th: other requests never make a request faster, and latencies without load follow the lengths of requests,
    whose mean is checked to be below their 90th percentile. Other statistics are not checked.
    """
    if steady is None or steady.traffic.cached_tokens.any():
        return None
    lengths = (steady.traffic.input_tokens, steady.traffic.output_tokens)
    if any(float(np.percentile(tokens, 90)) < float(tokens.mean()) for tokens in lengths):
        return None
    unloaded = steady.closed_loop(1.0)
    latencies = {"ttft": unloaded.ttft_s, "tpot": unloaded.tpot_s, "e2el": unloaded.e2e_s}
    for limit in objective.limits:
        seconds = latencies.get(limit.latency)
        bounded = limit.statistic == "mean" or (limit.statistic[0] == "p" and float(limit.statistic[1:]) >= 90)
        if seconds is not None and bounded and LATENCY_MARGIN * seconds * 1e3 > limit.limit_ms:
            mean = latency_words(f"mean_{limit.latency}_ms", seconds * 1e3)
            return f"a request that has a replica to itself has {mean}: {limit.key} {limit.limit_ms:g} is out of reach"
    return None


def wait_budgets(objective: Objective) -> list[tuple[float | None, float]]:
    """Maximum waits that the objective allows, as (quantile of the requests or None for the mean, seconds)."""
    waits: list[tuple[float | None, float]] = []
    for limit in objective.limits:
        if limit.latency in WAITING and limit.statistic != "std":
            known = {"mean": None, "median": 0.5}
            quantile = known[limit.statistic] if limit.statistic in known else float(limit.statistic[1:]) / 100
            waits.append((quantile, limit.limit_ms / 1e3))
    if objective.goodput is not None:
        waits += [(objective.goodput, ms / 1e3) for name, ms in objective.per_request_ms if name in WAITING]
    return waits


def longest_wait_s(objective: Objective) -> float:
    """Longest of the waits that the objective allows."""
    return max((wait for _, wait in wait_budgets(objective)), default=0.0)


UNLOADED = 1e-3
"""Share of the load at which almost all requests run alone."""
WORTH_SHOWING = 3.0
"""Maximum cost of further layouts tried for the table, as a multiple of the winner's cost."""
TRIED_AT_ONCE = 2
"""Number of candidates simulated ahead; the result does not depend on it."""
SEARCH_SEEDS = 3
"""Maximum replications of each load in the search for a highest rate."""
BEGIN_SHARE = 0.8
"""Share of the steady-state rate at which the search for a highest rate begins."""


def fault_words(error: Exception) -> tuple[str, str]:
    """Status and reason of a layout whose run ended in an error."""
    if isinstance(error, ForerunError):
        return "refused", str(error)
    invariant = error.invariant if isinstance(error, InvariantError) else str(error)
    return "error", f"internal error, please report: {invariant}"


StartedSearch = tuple[Callable[[], Any], float]
"""Result of a search for a highest rate, and the highest rate that it can tell."""


@dataclass(eq=False)
class _Search:
    """Base of both searches: worker processes judge each candidate once."""

    _plan: Plan
    _load: PlannedLoad
    _layouts: Sequence[Layout]
    _counts: Sequence[int]
    _workers: Workers

    def __post_init__(self) -> None:
        self._started: dict[tuple[int, int, float], Callable[[], Any]] = {}
        options = self._plan.options
        self._seeds = [options.seed + n for n in range(options.replications)]
        self._longest_wait_s = longest_wait_s(self._plan.objective)

    def _seeds_of(self, scenario: Scenario) -> list[int]:
        return self._seeds if scenario.random else self._seeds[:1]

    def _judged(
        self, layout: Layout, replicas: int, load: PlannedLoad, rate: float, interval: bool = False
    ) -> Callable[[], Verdict]:
        """Start judging a candidate, with the model error if wanted, or return the started work."""
        key = (id(layout), replicas, rate)
        if key not in self._started:
            driven = layout.with_replicas(load.at(layout.scenario, rate), replicas)
            seeds, confidence = self._seeds_of(driven), self._plan.options.confidence
            arguments = (driven, self._plan.objective, seeds, not driven.random, confidence, interval)
            self._started[key] = self._workers.start(_judge, *arguments)
        return self._started[key]

    def _search(
        self, layout: Layout, replicas: int, guess: float, longest: float, held: float = 0.0
    ) -> StartedSearch | None:
        """Begin the search for a highest rate; None if a run is too short for a verdict even at the guess."""
        driven = layout.with_replicas(layout.scenario, replicas)
        objective = with_wait_limit(driven, self._seeds[0], self._plan.objective)
        wait_s = longest_wait_s(objective)
        shown = self._plan.rate is None
        load = self._load.long_enough(driven, longest, max(wait_s, WAIT_LIMIT_S * shown))
        most = load.most_telling_rate(driven, wait_s)
        if most < guess and self._plan.rate is not None:
            return None
        options = self._plan.options
        seeds = self._seeds_of(driven)[:SEARCH_SEEDS]
        begin = max(guess, BEGIN_SHARE * longest)
        arguments = (driven, load, objective, seeds, begin, most, options.confidence)
        return self._workers.start(find_highest_rate, *arguments, shown, options.interval, held), most

    def _tick(self, done: int, total: int) -> None:
        if self._plan.options.progress is not None:
            self._plan.options.progress(done, max(done, total))


class CheapestFirst(_Search):
    """Search in order of cost until enough layouts meet the objective."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self._plan.rate is not None
        self._rate: float = self._plan.rate
        scenario = self._plan.study.scenario
        self._run_load = self._load.long_enough(scenario, self._rate, self._longest_wait_s)
        driven = self._run_load.at(scenario, self._rate)
        self._arrival_s = generate_requests(driven.workload, self._plan.options.seed).arrival_s
        self._queue: list[tuple[float, int, int]] = []
        """Heap of (cost, index of the layout, index of the replica count)."""
        self._tried: list[Candidate] = []
        self._ended = 0
        """Work finished so far, for progress: candidates judged plus searches for a highest rate."""
        self._searches: dict[int, StartedSearch | None] = {}
        """Search for the highest rate of each winner, by its identity; None if a run is too short for one."""
        self._unloaded_miss: dict[int, str | None] = {}
        """Layout -> reason why it misses the SLO even without load; None if it meets the SLO then."""

    def run(self) -> list[Candidate]:
        """Run the search; returns all tried or pruned candidates, ranked."""
        for index, layout in enumerate(self._layouts):
            reason = infeasible_reason(layout.steady, self._plan.objective)
            if reason is not None:
                self._tried.append(Candidate(layout, self._counts[0], "pruned", reason))
            else:
                self._push(index, 0)
        winners: list[Candidate] = []
        cheapest = inf
        while self._queue and not self._enough(len(winners), cheapest):
            candidate = self._try_cheapest()
            if candidate.status == "meets":
                winners.append(candidate)
                cheapest = min(cheapest, self._plan.cost(candidate))
        if self._plan.options.headroom and winners:
            winners += self._winners_of_other_chips({one.layout.chip_names for one in winners})
        self._leave_rest(cheapest)
        if self._plan.options.headroom:
            self._find_headroom(winners)
        ranked = sorted(self._tried, key=self._rank)
        if self._plan.options.headroom and winners:
            firsts = {one.layout.chip_names: one for one in reversed(ranked) if one.status == "meets"}
            self._plan.chip_cases = {chip: self._headroom_cases(one) for chip, one in firsts.items()}
            cases = self._plan.chip_cases[ranked[0].layout.chip_names]
            self._plan.headroom_cases = replace(cases, hours=self._hours(ranked[0]))
        return ranked

    def _try_cheapest(self) -> Candidate:
        """Judge the cheapest candidate of the queue; if it misses, its layout is queued with more replicas."""
        _, index, place = heapq.heappop(self._queue)
        candidate = self._try(index, place)
        self._count_model_error(candidate, self._rate)
        self._tried.append(candidate)
        if candidate.status == "misses":
            self._next(index, place, candidate)
        elif candidate.status == "meets" and self._plan.options.headroom:
            self._searches[id(candidate)] = self._headroom_search(candidate)
        return candidate

    def _winners_of_other_chips(self, known: Set[str]) -> list[Candidate]:
        """First layout that meets the objective of every chip that has none yet, however dear."""
        queue, winners = self._queue, []
        for chip in dict.fromkeys(layout.chip_names for layout in self._layouts):
            if chip in known:
                continue
            own = [entry for entry in queue if self._layouts[entry[1]].chip_names == chip]
            queue = [entry for entry in queue if entry not in own]
            self._queue = sorted(own)
            for _ in range(TRIED_OF_A_CHIP):
                candidate = self._try_cheapest() if self._queue else None
                if candidate is None or candidate.status == "meets":
                    winners += [candidate] if candidate is not None else []
                    break
            queue += self._queue
        self._queue = sorted(queue)
        return winners

    def _enough(self, holding: int, cheapest: float) -> bool:
        cost = self._queue[0][0]
        dearer = cost > cheapest * (1 + 1e-9)
        return dearer and (holding >= self._plan.options.finalists or cost > WORTH_SHOWING * cheapest)

    def _rank(self, candidate: Candidate) -> tuple[float, ...]:
        order = RANKS.index(candidate.status)
        slo_ratio = candidate.verdict.slo_ratio if candidate.verdict is not None else inf
        cost = self._plan.cost(candidate)
        # At equal cost the layout that holds the higher rate dominates, whatever the SLO leaves at the rate requested.
        reach = -(candidate.max_rate or 0.0)
        return (order, round(cost, 9), reach, slo_ratio) if order == 0 else (order, slo_ratio, cost)

    def _push(self, index: int, place: int) -> None:
        """Queue a layout with the first replica count, from index ``place`` on, that is not certainly overloaded."""
        layout = self._layouts[index]
        reason, skipped = None, None
        most = len(self._counts) if layout.scalable else 1
        while place < most:
            replicas = self._counts[place]
            reason = overload(layout.steady, self._plan.objective, replicas, self._arrival_s, self._rate)
            if reason is None:
                break
            skipped = Candidate(layout, replicas, "pruned", reason)
            place += 1
        if skipped is not None:
            self._tried.append(skipped)
        if place < most:
            cost = self._plan.cost(Candidate(layout, self._counts[place], ""))
            heapq.heappush(self._queue, (cost, index, place))

    def _next(self, index: int, place: int, missed: Candidate) -> None:
        """Queue the layout with the next replica count, unless more replicas cannot help."""
        verdict = missed.verdict
        if verdict is not None and verdict.failed:
            missed.reason = f"{missed.reason}; more replicas would not help"
            return
        if index not in self._unloaded_miss:
            self._unloaded_miss[index] = self._miss_without_load(self._layouts[index])
        unloaded = self._unloaded_miss[index]
        if unloaded is None:
            self._push(index, place + 1)
        else:
            missed.reason = f"{missed.reason}; without load still {unloaded}, so no number of replicas helps"

    def _miss_without_load(self, layout: Layout) -> str | None:
        """Reason why a replica misses the SLO at almost no load; None if it meets the SLO or cannot be run."""
        rate = self._rate * UNLOADED
        driven = layout.with_replicas(self._run_load.at(layout.scenario, rate), 1)
        self._plan.runs += 1
        if holds_unloaded(driven, self._seeds_of(driven), self._plan.objective):
            return None
        unloaded = self._candidate(layout, 1, self._run_load, rate)
        self._count_model_error(unloaded, rate)
        return unloaded.reason if unloaded.status == "misses" else None

    def _count_model_error(self, candidate: Candidate, rate: float, always: bool = False) -> None:
        """Mark a candidate as missing if its probability with the model error is below the required confidence.

        With ``always``, candidates that miss as predicted get a probability too.
        """
        plan = self._plan
        if candidate.verdict is None or not (always or candidate.status == "meets") or not plan.options.interval:
            return
        layout = candidate.layout
        driven = layout.with_replicas(self._run_load.at(layout.scenario, rate), candidate.replicas)
        arguments = (driven, plan.options.seed, plan.objective, candidate.verdict)
        try:
            held = candidate.verdict.held or self._workers.start(chance_to_hold, *arguments)()
            candidate.chance, candidate.intervals, candidate.likely, candidate.share = held
        except FAULTS as error:
            candidate.status, candidate.reason = fault_words(error)
            return
        plan.runs += 1
        if candidate.status == "meets" and candidate.chance is not None and candidate.chance < plan.options.confidence:
            candidate.status = "misses"
            required = plan.options.confidence
            candidate.reason = (
                f"{miss_words(candidate.verdict, required)}, which meets the SLO with only {candidate.chance:.1%} "
                f"probability, the model's error counted ({required:.0%} required)"
            )

    def _try(self, index: int, place: int) -> Candidate:
        """Judge a candidate while the next candidates of the queue are already being simulated."""
        for other, at in [(index, place), *(one[1:] for one in heapq.nsmallest(TRIED_AT_ONCE - 1, self._queue))]:
            layout, replicas, interval = self._layouts[other], self._counts[at], self._plan.options.interval
            self._judged(layout, replicas, self._run_load, self._rate, interval)
        return self._candidate(self._layouts[index], self._counts[place], self._run_load, self._rate)

    def _candidate(self, layout: Layout, replicas: int, load: PlannedLoad, rate: float) -> Candidate:
        """The judged candidate; if it cannot be run, the error becomes its reason and does not end the plan."""
        try:
            verdict = self._judged(layout, replicas, load, rate)()
        except FAULTS as error:
            return Candidate(layout, replicas, *fault_words(error))
        finally:
            self._one_more()
        self._plan.runs += verdict.runs
        points = verdict.at(rate)
        if verdict.meets:
            return Candidate(layout, replicas, "meets", verdict=verdict, points=points)
        reason = miss_words(verdict, self._plan.options.confidence)
        return Candidate(layout, replicas, "misses", reason, verdict, points=points)

    def _one_more(self) -> None:
        """Advance the progress by one judged candidate or one finished search."""
        self._ended += 1
        self._tick(self._ended, self._ended + min(len(self._queue), TRIED_AT_ONCE))

    def _leave_rest(self, cheapest: float) -> None:
        """List the remaining candidates of the queue, which cost more than the winner."""
        while self._queue:
            cost, index, place = heapq.heappop(self._queue)
            words = f"costs {number(cost / cheapest, 3)} times the best" if cheapest < inf else "not reached"
            self._tried.append(Candidate(self._layouts[index], self._counts[place], "not simulated", words))

    def _headroom_search(self, winner: Candidate) -> StartedSearch | None:
        """Begin the search for the highest rate of a winning layout."""
        guess, steady = 1.1 * self._rate, winner.layout.steady
        longest = max(guess, steady.most_rate * winner.replicas if steady is not None else 2.0 * guess)
        return self._search(winner.layout, winner.replicas, guess, longest, held=self._rate)

    def _find_headroom(self, winners: Sequence[Candidate]) -> None:
        """Highest rate of every winning layout, searched in parallel."""
        searches = [(one, *search) for one in winners if (search := self._searches[id(one)]) is not None]
        for winner, search_of, most in searches:
            try:
                rate, tried, highest, _ = search_of()
            except FAULTS as error:
                self._plan.notes.append(f"{winner.name}: its highest rate is not known: {fault_words(error)[1]}")
                continue
            finally:
                self._one_more()
            self._plan.runs += tried
            winner.points += highest.tried if highest is not None else ()
            # Fewer seeds than the verdict had may disagree with it: the rate requested is held whatever they say.
            winner.max_rate, winner.at_least = max(rate, self._rate), rate >= most
        if len(searches) < len(winners):
            self._plan.notes.append(
                "too few requests to tell how much more than the requested rate a layout would hold"
            )

    def _headroom_cases(self, best: Candidate) -> HeadroomCases:
        """The best layout with one replica down, and with enough replicas for ``GROWTH`` times the load."""
        layout = best.layout
        if not layout.scalable:
            return HeadroomCases(None, self._grown_deployment(best))
        began_s = trace_began_s(self._plan.study.scenario.workload)
        left = layout.rented(best.replicas) - 1
        one_less = self._surely_tried_at(layout, left, self._rate) if left else None
        grown = self._rate * GROWTH
        reach = best.max_rate or self._rate
        if reach >= grown:  # the search for the highest rate has tried it
            return HeadroomCases(one_less, best, began_s=began_s, fewest=self._fewest(best, one_less))
        first = max(best.replicas, ceil(best.replicas * grown / reach - 1e-9))
        tried = (self._surely_tried_at(layout, replicas, grown) for replicas in range(first, first + MORE_TRIED + 1))
        doubled = next((candidate for candidate in tried if candidate.status == "meets"), None)
        return HeadroomCases(one_less, doubled, began_s=began_s, fewest=self._fewest(best, one_less))

    def _grown_deployment(self, best: Candidate) -> Candidate | None:
        """Cheapest deployment of the same chips that holds ``GROWTH`` times the load for less than two of the best."""
        cost, grown = self._plan.cost, self._rate * GROWTH
        most, tried = 2.0 * cost(best) * (1 - 1e-9), 0
        least = cost(best) * min(GROWTH, grown / (best.max_rate or self._rate)) / FEWER_FOR_GROWTH
        alike = [c for c in self._tried if c.layout.chip_names == best.layout.chip_names and not c.layout.scalable]
        for one in sorted(alike, key=cost):
            if not cost(best) <= cost(one) < most:
                continue
            if one.max_rate is not None:
                holds = one.max_rate >= grown
            elif holds := one.status == "not simulated" and cost(one) >= least and tried < TRIED_OF_A_CHIP:
                tried += 1
                holds = self._surely_tried_at(one.layout, one.replicas, grown).status == "meets"
            if holds:
                return one
        return None

    def _fewest(self, best: Candidate, one_less: Candidate | None) -> tuple[int, int] | None:
        """Replicas that meet the SLO at both ends of the model error, in steps of a tenth."""
        if best.share is None:
            return None
        tail, step = (1.0 - NINE_IN_TEN) / 2, max(1, round(best.replicas / 10))

        def share(replicas: int) -> float:
            candidate = one_less
            if candidate is None or candidate.replicas != replicas:
                candidate = self._tried_at(best.layout, replicas, self._rate)
            if candidate.share is None:
                self._count_model_error(candidate, self._rate, always=True)
            return candidate.share or 0.0

        few = many = best.replicas
        while few > step and best.replicas - few < MORE_TRIED * step and share(few - step) >= tail:
            few -= step
        held = best.share
        while held < 1.0 - tail and many - best.replicas < MORE_TRIED * step:
            many += step
            held = share(many)
        return few, many

    def _hours(self, best: Candidate) -> tuple[tuple[float, float, int], ...]:
        """Minimum replicas of the best layout that meet the SLO at the highest rate of each hour of a profile."""
        profile = _profile(self._plan.study.scenario)
        if profile is None:
            return self._log_hours(best)
        rates = [(start, self._rate * share) for start, share in highest_by_hour(profile)]
        held: dict[int, float] = {best.replicas: self._rate}
        for replicas in range(1, best.replicas):
            reach = (best.max_rate or self._rate) * replicas / best.replicas
            within = sorted({rate for _, rate in rates if 0 < rate <= reach}, reverse=True)
            held[replicas] = next(
                (rate for rate in within if self._tried_at(best.layout, replicas, rate).status == "meets"), 0.0
            )
        least = [min(n for n, most in held.items() if rate <= most) if rate else 0 for _, rate in rates]
        return tuple((start, rate, best.layout.rented(n)) for (start, rate), n in zip(rates, least, strict=True))

    def _log_hours(self, best: Candidate) -> tuple[tuple[float, float, int], ...]:
        """Replicas of the best layout for each hour of a log, in proportion to its busiest hour."""
        workload, plan = self._plan.study.scenario.workload, self._plan
        if self._load.kind != "trace":
            return ()
        rates = hourly_rates(generate_requests(workload, plan.options.seed).arrival_s, trace_began_s(workload))
        if len(rates) < LEAST_HOURS:
            return ()
        rates = [(start, rate * plan.options.growth) for start, rate in rates]
        held = best.max_rate or self._rate
        if not self._load.window:  # the whole log was played: at that mean rate its busiest hour was held
            held *= max(rate for _, rate in rates) / self._rate
        least = [min(best.replicas, ceil(rate * best.replicas / held - 1e-9)) for _, rate in rates]
        return tuple((start, rate, best.layout.rented(n)) for (start, rate), n in zip(rates, least, strict=True))

    def _surely_tried_at(self, layout: Layout, replicas: int, rate: float) -> Candidate:
        candidate = self._tried_at(layout, replicas, rate)
        self._count_model_error(candidate, rate)
        return candidate

    def _tried_at(self, layout: Layout, replicas: int, rate: float) -> Candidate:
        load = self._load.long_enough(self._plan.study.scenario, rate, self._longest_wait_s)
        return self._candidate(layout, replicas, load, rate)


class HighestRates(_Search):
    """Search for the highest rate of every candidate."""

    def run(self) -> list[Candidate]:
        """Run the search; returns all candidates, highest rate first."""
        plan, candidates, searches = self._plan, [], []
        for layout in self._layouts:
            reason = infeasible_reason(layout.steady, plan.objective)
            for replicas in self._counts_of(layout):
                candidate = Candidate(layout, replicas, "pruned", reason)
                candidates.append(candidate)
                if not replicas:
                    budget = f"the budget of {plan.options.power_budget_w:,.0f} W"
                    candidate.reason = f"a replica may draw {layout.board_w:,.0f} W, more than {budget}"
                    candidate.replicas = 1
                    continue
                if plan.options.power_budget_w is not None:
                    candidate.searched = replicas = 1
                guess = replicas * (layout.steady.most_rate if layout.steady is not None else 1.0)
                search = None if reason is not None else self._search(layout, replicas, BEGIN_SHARE * guess, guess)
                if search is not None:
                    searches.append((candidate, *search))
        for done, (candidate, search_of, most) in enumerate(searches):
            self._settle(candidate, search_of, most)
            self._tick(done + 1, len(searches))
        return sorted(candidates, key=self._rank)

    def _counts_of(self, layout: Layout) -> Sequence[int]:
        budget = self._plan.options.power_budget_w
        if budget is not None:
            fits = int(budget / layout.board_w + 1e-9)
            return (max(0, fits - layout.spare) if layout.scalable else min(1, fits),)
        if not layout.scalable:
            return (1,)
        return self._counts if REPLICAS in self._plan.study.vary else (self._plan.study.scenario.hardware.replicas,)

    def _settle(self, candidate: Candidate, search: Callable[[], Any], most: float) -> None:
        try:
            result = search()
        except FAULTS as error:
            candidate.status, candidate.reason = fault_words(error)
            return
        rate, tried, candidate.verdict, candidate.chance = result
        sure = candidate.chance is None or candidate.chance >= self._plan.options.confidence
        self._plan.runs += tried
        if candidate.verdict is not None:
            candidate.points = candidate.verdict.tried
        if rate > 0 and candidate.verdict is not None and sure:
            candidate.status, candidate.max_rate = "meets", rate * candidate.copies
            candidate.at_least = rate >= most
        else:
            candidate.status, candidate.reason = "misses", "misses at every rate tried"
            if candidate.chance is not None:
                sure = f"{candidate.chance:.1%} ({self._plan.options.confidence:.0%} required)"
                candidate.reason = f"meets the SLO at no rate tried with more than {sure}, the model's error counted"

    def _rank(self, candidate: Candidate) -> tuple[float, ...]:
        return RANKS.index(candidate.status), -(candidate.max_rate or 0.0), self._plan.cost(candidate)


def _judge(
    scenario: Scenario, objective: Objective, seeds: Sequence[int], resample: bool, confidence: float, interval: bool
) -> Verdict:
    verdict = judge(objective, trial(scenario, objective, seeds, resample), confidence)
    if interval and verdict.meets:
        with suppress(*FAULTS):  # raised again where the certainty is needed
            verdict = replace(verdict, held=chance_to_hold(scenario, seeds[0], objective, verdict))
    return verdict


def miss_words(verdict: Verdict, confidence: float) -> str:
    """Reason why a candidate misses: failed requests, the value nearest to its limit, or disagreeing runs."""
    if verdict.failed:
        parts = [note.partition(" refused: ")[2] for note in verdict.observation.notes if " refused: " in note]
        return f"{verdict.failed} requests that cannot be served: {'; '.join(parts) or 'too long'}"
    assert verdict.binding is not None
    words = latency_words(verdict.binding, verdict.values[verdict.binding])
    if verdict.slo_ratio <= 1.0 and verdict.share < confidence:
        of = f"{verdict.runs} runs" if verdict.runs > 1 else f"{RESAMPLES} resamples of the trace"
        words += f", and only {verdict.share:.0%} of {of} meet the SLO ({confidence:.0%} required)"
    return words
