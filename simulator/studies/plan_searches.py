"""The two searches of a capacity plan: candidates by rising cost, and the highest rate of each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from simulator.errors import ForerunError
from simulator.scenario import Scenario
from simulator.studies.candidates import Candidate, Plan, ProgressCall
from simulator.studies.layouts import REPLICAS, Layout
from simulator.studies.loads import Load
from simulator.studies.objectives import Objective, latency_words
from simulator.studies.pruning import bearable_waits, hopeless, overload
from simulator.studies.trials import Verdict, find_highest_rate, judge, trial
from simulator.workers import Workers
from simulator.workload import generate_requests

UNLOADED = 1e-3
"""Share of the load at which nearly every request is alone."""
WORTH_SHOWING = 3.0
"""Times the winner's cost up to which other layouts are tried for the table."""
TRIED_AT_ONCE = 2
"""Candidates simulated ahead; what is reported does not depend on it."""
SEARCH_SEEDS = 3
"""Most replications of each load in the search for a highest rate."""


class _Search:
    """What both searches share: candidates judged by worker processes, each once."""

    def __init__(
        self,
        plan: Plan,
        load: Load,
        usable: Sequence[Layout],
        counts: Sequence[int],
        workers: Workers,
        progress: ProgressCall | None,
    ) -> None:
        self._plan = plan
        self._load = load
        self._layouts = usable
        self._counts = counts
        self._workers = workers
        self._progress = progress
        self._started: dict[tuple[int, int, float], Callable[[], Any]] = {}
        options = plan.options
        self._seeds = [options.seed + n for n in range(options.replications)]
        self._longest_wait_s = max((wait for _, wait in bearable_waits(plan.objective)), default=0.0)

    def _random(self, scenario: Scenario) -> bool:
        """Whether two seeds give two different runs."""
        return self._load.kind != "trace" or (
            scenario.speculation is not None and scenario.speculation.method != "none"
        )

    def _judged(self, layout: Layout, replicas: int, load: Load, rate: float) -> Callable[[], Verdict]:
        """Begin to judge a candidate, or find what was begun."""
        key = (id(layout), replicas, rate)
        if key not in self._started:
            driven = layout.with_replicas(load.at(layout.scenario, rate), replicas)
            random = self._random(driven)
            seeds = self._seeds if random else self._seeds[:1]
            self._started[key] = self._workers.start(_judge, driven, self._plan.objective, seeds, not random)
        return self._started[key]

    def _search(
        self, layout: Layout, replicas: int, guess: float, longest: float
    ) -> tuple[Callable[[], tuple[float, int, Verdict | None]], float] | None:
        """Begin the search for a highest rate; None where a run is too short to tell even at the guess.

        Args:
            layout: what is searched.
            replicas: of it.
            guess: where to start.
            longest: rate at which a run is long enough, where its length is not given.
        """
        driven = layout.with_replicas(layout.scenario, replicas)
        load = self._load.long_enough(driven, longest, self._longest_wait_s)
        most = load.most_telling_rate(driven, self._longest_wait_s)
        if most < guess and self._plan.rate is not None:
            return None
        seeds = self._seeds[:SEARCH_SEEDS] if self._random(driven) else self._seeds[:1]
        return self._workers.start(find_highest_rate, driven, load, self._plan.objective, seeds, guess, most), most

    def _tick(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, max(done, total))


class CheapestFirst(_Search):
    """Candidates in order of cost until enough layouts hold the objective."""

    def __init__(self, plan: Plan, load: Load, rate: float, *rest: Any) -> None:
        super().__init__(plan, load, *rest)
        self._rate = rate
        self._run_load = load.long_enough(plan.study.scenario, rate, self._longest_wait_s)
        self._arrival_s = self._arrivals()
        self._queue: list[tuple[float, int, int]] = []
        """(cost, layout, position in the replica counts)"""
        self._tried: list[Candidate] = []
        self._hopeful: dict[int, str | None] = {}
        """Why a layout misses even without load, by layout; None where it holds then."""

    def run(self) -> list[Candidate]:
        """All candidates that were looked at, ranked."""
        for index, layout in enumerate(self._layouts):
            reason = hopeless(layout.steady, self._plan.objective)
            if reason is not None:
                self._tried.append(Candidate(layout, self._counts[0], "pruned", reason))
            else:
                self._push(index, 0)
        winners: list[Candidate] = []
        cheapest = inf
        while self._queue:
            if self._enough(len(winners), cheapest):
                break
            cost, index, place = heapq.heappop(self._queue)
            candidate = self._try(index, place)
            if candidate is None:
                continue
            self._tried.append(candidate)
            self._tick(len(self._tried), len(self._tried) + min(len(self._queue), TRIED_AT_ONCE))
            if candidate.status == "meets":
                winners.append(candidate)
                cheapest = min(cheapest, cost)
            elif candidate.status == "misses":
                self._next(index, place, candidate)
        self._leave_rest(cheapest)
        if self._plan.options.headroom:
            self._find_headroom(winners)
        return sorted(self._tried, key=self._rank)

    def _enough(self, holding: int, cheapest: float) -> bool:
        """Whether the next in the queue can neither win nor is wanted for the table."""
        cost = self._queue[0][0]
        dearer = cost > cheapest * (1 + 1e-9)
        return dearer and (holding >= self._plan.options.finalists or cost > WORTH_SHOWING * cheapest)

    def _rank(self, candidate: Candidate) -> tuple[float, ...]:
        order = {"meets": 0.0, "misses": 1.0, "pruned": 2.0, "not simulated": 3.0, "refused": 4.0}[candidate.status]
        strain = candidate.verdict.strain if candidate.verdict is not None else inf
        cost = self._plan.cost(candidate)
        return (order, cost, strain) if order == 0 else (order, strain, cost)

    def _push(self, index: int, place: int) -> None:
        """Queue a layout at the first number of replicas, from ``place``, whose queue does not surely grow."""
        layout = self._layouts[index]
        reason, skipped = None, None
        most = len(self._counts) if layout.scalable else 1
        while place < most:
            replicas = self._counts[place]
            reason = overload(layout.steady, self._plan.objective, replicas, self._arrival_s)
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
        """Queue the layout with more replicas, unless none would help."""
        verdict = missed.verdict
        if verdict is not None and verdict.failed:
            missed.reason = f"{missed.reason}; more replicas would not help"
            return
        if index not in self._hopeful:
            layout = self._layouts[index]
            alone = self._judged(layout, 1, self._run_load, self._rate * UNLOADED)()
            self._plan.runs += alone.runs
            self._hopeful[index] = None if alone.meets else _miss_words(alone)
        if self._hopeful[index] is None:
            self._push(index, place + 1)
        else:
            missed.reason = (
                f"{missed.reason}; without load still {self._hopeful[index]}, so no number of replicas helps"
            )

    def _try(self, index: int, place: int) -> Candidate | None:
        """Judge a candidate, with the next in the queue already begun."""
        layout, replicas = self._layouts[index], self._counts[place]
        judged = self._judged(layout, replicas, self._run_load, self._rate)
        for _, other, at in heapq.nsmallest(TRIED_AT_ONCE - 1, self._queue):
            self._judged(self._layouts[other], self._counts[at], self._run_load, self._rate)
        try:
            verdict = judged()
        except ForerunError as error:
            return Candidate(layout, replicas, "refused", str(error))
        self._plan.runs += verdict.runs
        status = "meets" if verdict.meets else "misses"
        reason = None if verdict.meets else _miss_words(verdict)
        return Candidate(layout, replicas, status, reason, verdict, rate=self._rate)

    def _leave_rest(self, cheapest: float) -> None:
        """List what is left in the queue: it costs more than the winner."""
        while self._queue:
            cost, index, place = heapq.heappop(self._queue)
            words = f"costs {cost / cheapest:.3g} times the best" if cheapest < inf else "not reached"
            self._tried.append(Candidate(self._layouts[index], self._counts[place], "not simulated", words))

    def _find_headroom(self, winners: Sequence[Candidate]) -> None:
        """The highest rate of every layout that holds, searched by as many processes as there are."""
        searches = []
        for winner in winners:
            guess = 1.1 * self._rate
            steady = winner.layout.steady
            longest = max(guess, steady.most_rate * winner.replicas if steady is not None else 2.0 * guess)
            search = self._search(winner.layout, winner.replicas, guess, longest)
            if search is not None:
                searches.append((winner, *search))
        for winner, search_of, most in searches:
            rate, tried, _ = search_of()
            self._plan.runs += tried
            if rate > 0:
                winner.max_rate, winner.at_least = rate, rate >= most
        if len(searches) < len(winners):
            self._plan.notes.append("too few requests to tell how much more than asked a layout would hold")

    def _arrivals(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        driven = self._run_load.at(self._plan.study.scenario, self._rate)
        return generate_requests(driven.workload, self._plan.options.seed).arrival_s


class HighestRates(_Search):
    """The highest rate of every candidate."""

    def run(self) -> list[Candidate]:
        """All candidates, highest rate first."""
        plan, found, searches = self._plan, [], []
        for layout in self._layouts:
            reason = hopeless(layout.steady, plan.objective)
            for replicas in self._counts_of(layout):
                candidate = Candidate(layout, replicas, "pruned", reason)
                found.append(candidate)
                guess = replicas * (layout.steady.most_rate if layout.steady is not None else 1.0)
                search = None if reason is not None else self._search(layout, replicas, 0.8 * guess, guess)
                if search is not None:
                    searches.append((candidate, *search))
        for done, (candidate, search_of, most) in enumerate(searches):
            self._settle(candidate, search_of, most)
            self._tick(done + 1, len(searches))
        return sorted(found, key=self._rank)

    def _counts_of(self, layout: Layout) -> Sequence[int]:
        if not layout.scalable:
            return (1,)
        return self._counts if REPLICAS in self._plan.study.vary else (self._plan.study.scenario.hardware.replicas,)

    def _settle(
        self, candidate: Candidate, search: Callable[[], tuple[float, int, Verdict | None]], most: float
    ) -> None:
        try:
            rate, tried, verdict = search()
        except ForerunError as error:
            candidate.status, candidate.reason = "refused", str(error)
            return
        self._plan.runs += tried
        candidate.verdict, candidate.rate = verdict, rate or None
        if rate > 0 and verdict is not None:
            candidate.status, candidate.max_rate, candidate.at_least = "meets", rate, rate >= most
        else:
            candidate.status, candidate.reason = "misses", "misses at every rate tried"

    def _rank(self, candidate: Candidate) -> tuple[float, ...]:
        order = {"meets": 0.0, "misses": 1.0, "pruned": 2.0, "refused": 3.0}[candidate.status]
        return order, -(candidate.max_rate or 0.0), self._plan.cost(candidate)


def _judge(scenario: Scenario, objective: Objective, seeds: Sequence[int], resample: bool) -> Verdict:
    """What a worker process does for one candidate."""
    return judge(objective, trial(scenario, objective, seeds, resample))


def _miss_words(verdict: Verdict) -> str:
    if verdict.failed:
        return f"{verdict.failed} requests cannot be served: {'; '.join(_refusals(verdict)) or 'too long'}"
    assert verdict.binding is not None
    return latency_words(verdict.binding, verdict.values[verdict.binding])


def _refusals(verdict: Verdict) -> list[str]:
    return [note.partition("refused: ")[2] for note in verdict.observation.notes if "requests refused: " in note]
