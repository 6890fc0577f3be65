"""Search for the routing rule that serves a workload best, on common random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import log
from statistics import fmean

import numpy as np

from forerun.document import LEFT_OUT, DocumentPart, Json, StudyDocument
from forerun.errors import ArgumentError, ForerunError
from forerun.result import StudyResult, Summary
from forerun.tables import Table, Value, number
from forerun.workers import study_workers
from hwprofiles import weakest
from simulator.launch.endpoint_picker import endpoint_picker_text
from simulator.running.build import build_run
from simulator.running.scenario import Scenario
from simulator.serving.fleet.fleet_config import SCRAPED
from simulator.studies.artefacts import ARTEFACTS, artefact
from simulator.studies.compare.comparison import headline_metric
from simulator.studies.engine_flags import pool_scenarios
from simulator.studies.frame import ProgressCall, study_header
from simulator.studies.paired import (
    HIGHER_IS_BETTER,
    Ratio,
    checked_metric,
    metric_values,
    metric_with_unit,
    metric_words,
    paired_ratio,
    times,
)
from simulator.studies.runs import RunPool, needed_for, with_seeds
from simulator.studies.study_file import Variant, yaml_text

STARTS: Sequence[Json] = (
    {"filters": [{"filter": "prefix-affinity"}], "scorers": [{"scorer": "token-load"}]},
    {"scorers": [{"scorer": "prefix", "weight": 3.0}, {"scorer": "queue", "weight": 2.0},
                 {"scorer": "kv-use", "weight": 2.0}]},
    {"scorers": [{"scorer": "requests"}]},
)  # fmt: skip
"""Rules that the search starts from beside the scenario's own: llm-d's guide, llm-d's default, fewest requests."""
RULE = ("filters", "scorers", "picker")
SCRAPE_S = 0.05
"""Scrape interval of rules that look at metrics, where the scenario states none: llm-d's."""
VALUES: dict[str, Sequence[float]] = {
    "prefix-affinity.threshold": (0.3, 0.5, 0.65, 0.8, 0.9),
    "prefix-affinity.max_ttft_penalty_s": (0.0, 1.0, 3.0, 8.0, 18.0),
    "requests.idle": (0, 1, 4),
}
"""Values of a filter's or scorer's field that are tried."""
FACTORS: dict[str, Sequence[float]] = {
    "prefix-affinity.peak_prefill_tokens_per_s": (0.25, 0.5, 2.0, 4.0),
    "token-load.threshold_tokens": (1 / 64, 1 / 16, 1 / 4),
    "load-aware.threshold": (0.25, 4.0),
    "weight": (0.25, 0.5, 2.0, 4.0),
}
"""Factors on a field's value that are tried; weights and thresholds of scorers only beside another scorer."""
KEPT, MOVES, SEARCH_SEEDS = 3, 3, (1, 2, 4)
"""Rules that survive a round, variations of each of them, and runs of each rule after each round."""


@dataclass(frozen=True, kw_only=True)
class TriedRule(DocumentPart):
    """A routing rule, and how it served the workload on the seeds of the search."""

    rule: str
    routing: str
    router: Json
    runs: int
    value: float | None
    """Mean of the metric; None if a run failed."""
    ratio: float | None
    """Speed-up over the scenario's own rule on the same seeds."""


@dataclass(frozen=True, kw_only=True)
class RouterDocument(StudyDocument):
    """The JSON of ``tune --router``."""

    artefact: str | None = field(default=None, metadata=LEFT_OUT)
    metric: str
    replications: int
    rules: list[TriedRule]
    """Rules that were tried, best first; the scenario's own is among them."""
    best: TriedRule
    gain: Ratio
    """Speed-up of the best rule over the scenario's own, on seeds that the search did not use."""
    better: bool
    """True if the interval of the gain lies above 1."""

    @property
    def deployment(self) -> Scenario:
        """Scenario with the best rule, or with its own if none is better."""
        own = Scenario.model_validate(self.scenario)
        return own.with_values(_settings(self.best.routing, self.best.router)) if self.better else own


class RouterResult(StudyResult[RouterDocument]):
    """Routing rules by how well they serve a workload. Its data frame has one row per rule."""

    kind = "router"
    document_type = RouterDocument

    @property
    def best(self) -> TriedRule:
        """Best rule of the search; ``data.better`` says if it is better than the scenario's own."""
        return self.data.best

    @property
    def scenario(self) -> Scenario:
        """Scenario with the best rule, or with its own if none is better."""
        return self.data.deployment

    @property
    def title(self) -> str:
        return f"Routing rules for {self.model} by {metric_words(self.data.metric)}"

    @property
    def summary(self) -> Summary:
        gain = self.data.gain
        return Summary({"rule": self.best.rule, "gain": gain.ratio, "low": gain.low, "high": gain.high})

    def records(self) -> list[Json]:
        return [{**vars(row), "router": None} for row in self.data.rules]

    def tables(self) -> list[Table]:
        rows: list[tuple[Value, ...]] = [
            (row.rule, row.runs, row.value, None if row.ratio is None else times(row.ratio)) for row in self.data.rules
        ]
        columns = ("rule", "runs", metric_with_unit(self.data.metric), "against yours")
        return [Table("Rules of the search", columns, rows, name="rules")]


def best_rule(
    given: Scenario,
    metric: str | None,
    rules: int,
    seeds: Sequence[int],
    emit: str | None,
    jobs: int | None,
    progress: ProgressCall | None,
) -> RouterResult:
    """Implementation of ``tune_router``."""
    if emit is not None and emit not in ARTEFACTS:
        raise ArgumentError("emit", f"{emit}: no such artefact ({', '.join(ARTEFACTS)})")
    if sum(part.hardware.replicas for _, role, part in pool_scenarios(given) if role != "decode") < 2:
        raise ForerunError("hardware.replicas: 1: there is nothing to route; a fleet of several replicas is needed")
    judged_by = checked_metric(metric or headline_metric(Variant("given", {}, given)))
    with study_workers(jobs) as workers:
        search = _Search(given, judged_by, [seeds[-1] + 1 + n for n in range(SEARCH_SEEDS[-1])],
                         RunPool(workers, progress))  # fmt: skip
        rows = search.rows(rules)
        best = next(row for row in rows if row.rule != search.own)
        pairs = [search.values(one, seeds) for one in (given, search.tried[best.rule])]
        basis = search.basis(given, seeds[0])
    gain = paired_ratio(pairs[0], pairs[1], HIGHER_IS_BETTER[judged_by])
    if gain is None:
        raise ForerunError(f"metric: {judged_by}: a run did not measure it; choose another")
    data = RouterDocument(
        metric=judged_by,
        replications=len(seeds),
        rules=rows,
        best=best,
        gain=gain,
        better=gain.verdict > 0,
        conclusion=_conclusion(search.own, best.rule, gain, judged_by, len(rows), len(seeds)),
        **study_header(given, seeds[0], basis),
    )
    chosen = search.tried[best.rule] if data.better else given
    files = {
        "scenario.yaml": yaml_text(data.scenario),
        "best.yaml": yaml_text(chosen.model_dump(exclude_unset=True, mode="json")),
    }
    if chosen.engine.routing == "scored":
        files["endpoint-picker.yaml"] = endpoint_picker_text(build_run(chosen).fleet.router)
    else:
        words = f"no endpoint-picker.yaml: engine.routing {chosen.engine.routing} is no rule of llm-d; set it to scored"
        data = replace(data, notes=[*data.notes, words])
    if emit is not None:
        data = replace(data, artefact=artefact(emit, chosen))
    return RouterResult(data, files=files)


class _Search:
    """Rules that were tried, and their metric by seed."""

    def __init__(self, given: Scenario, metric: str, seeds: Sequence[int], pool: RunPool) -> None:
        self._given, self._metric, self._seeds, self._pool = given, metric, seeds, pool
        self._rng = np.random.default_rng(seeds[0])
        self.own = rule_words(given)
        self.tried: dict[str, Scenario] = {self.own: given}

    def values(self, scenario: Scenario, seeds: Sequence[int]) -> list[float | None]:
        """Metric of a scenario's runs; None for a run that failed."""
        runs = with_seeds(scenario, seeds, needed_for(self._metric))
        return [metric_values(one)[self._metric] for one in self._pool.documents_if_any(runs)]

    def basis(self, scenario: Scenario, seed: int) -> str:
        """Evidence level of the prices."""
        return weakest(pool.basis for pool in build_run(scenario, seed).pools)

    def rows(self, rules: int) -> list[TriedRule]:
        """Rounds of runs: the first rules on one seed, then variations of the best ones on more."""
        starts = [self._add(*rule) for rule in self._starts()]
        for at in range(20 * rules):
            if len(self.tried) >= rules:
                break
            self._add(*self._varied(starts[at % len(starts)], 2))
        alive, runs = list(self.tried), dict[str, int]()
        for count in SEARCH_SEEDS:
            if runs:
                alive = self._kept(alive, runs[self.own])
                last = count == SEARCH_SEEDS[-1]
                alive += [] if last else [self._add(*self._varied(one, 1)) for one in alive * MOVES]
            alive = list(dict.fromkeys((self.own, *alive)))
            runs |= dict.fromkeys(alive, count)
            self._start(alive, count)
            gains = {rule: self._gain(rule, count) for rule in alive}
            alive.sort(key=lambda rule: -gains[rule])
        rows = [self._row(rule, count) for rule, count in runs.items()]
        return sorted(rows, key=lambda row: (-row.runs, -(row.ratio or 0.0)))

    def _kept(self, rules: Sequence[str], count: int) -> list[str]:
        """The best rules so far, one of those that place every request alike."""
        distinct = {self._gain(rule, count): rule for rule in reversed(rules)}
        return sorted(distinct.values(), key=lambda rule: -self._gain(rule, count))[:KEPT]

    def _start(self, rules: Sequence[str], count: int) -> None:
        """Run all of the rules at once, so that workers share them."""
        seeds, need = self._seeds[:count], needed_for(self._metric)
        documents = self._pool.documents_if_any(
            [run for rule in rules for run in with_seeds(self.tried[rule], seeds, need)]
        )
        if documents[0] is None:
            self._pool.document(with_seeds(self._given, seeds[:1], need)[0], "the scenario's own rule")

    def _gain(self, rule: str, count: int) -> float:
        """Logarithm of a rule's speed-up over the scenario's own; the lowest of all for a rule that failed."""
        ratio = self._row(rule, count).ratio
        return -np.inf if ratio is None else log(ratio)

    def _row(self, rule: str, count: int) -> TriedRule:
        seeds, scenario = self._seeds[:count], self.tried[rule]
        values = self.values(scenario, seeds)
        ratio = paired_ratio(self.values(self._given, seeds), values, HIGHER_IS_BETTER[self._metric])
        measured = [one for one in values if one is not None]
        router = scenario.router.model_dump(mode="json", exclude_unset=True)
        return TriedRule(
            rule=rule,
            routing=scenario.engine.routing,
            router=router,
            runs=count,
            value=fmean(measured) if len(measured) == count else None,
            ratio=None if ratio is None else ratio.ratio,
        )

    def _starts(self) -> Iterator[tuple[str, Json]]:
        """The scenario's own rule and the usual ones, with the scenario's other settings of the router."""
        given = self._given
        if given.engine.routing == "scored":
            yield "scored", given.router.model_dump(mode="json", exclude_unset=True)
        kept = {name: value for name, value in given.router.model_dump(mode="json", exclude_unset=True).items()
                if name not in (*RULE, "scrape_interval_s")}  # fmt: skip
        for start in STARTS:
            scraped = SCRAPED & {one["scorer"] for one in start["scorers"]}
            age = given.router.scrape_interval_s or SCRAPE_S
            yield "scored", kept | deepcopy(start) | ({"scrape_interval_s": age} if scraped else {})

    def _add(self, routing: str, router: Json) -> str:
        """Name of a rule, with its predicted peak rate where it is left out."""
        scenario = self._given.with_values(_settings(routing, router))
        if any(
            one.filter == "prefix-affinity" and not one.peak_prefill_tokens_per_s for one in scenario.router.filters
        ):
            built = build_run(scenario).fleet.router
            scenario = scenario.with_values({"router": built.model_dump(mode="json", exclude_unset=True)})
        name = rule_words(scenario)
        self.tried.setdefault(name, scenario)
        return name

    def _varied(self, rule: str, changes: int) -> tuple[str, Json]:
        """A rule with some of its numbers changed at random."""
        scenario = self.tried[rule]
        router = scenario.router.model_dump(mode="json", exclude_unset=True)
        axes = list(_axes(router)) if scenario.engine.routing == "scored" else []
        for axis in self._rng.permutation(len(axes))[:changes]:
            part, name, values = axes[axis]
            part[name] = values[int(self._rng.integers(len(values)))]
        return scenario.engine.routing, router


def _settings(routing: str, router: Json) -> Json:
    return {"engine.routing": routing, "router": router}


def _axes(router: Json) -> Iterator[tuple[Json, str, list[float]]]:
    """Numbers of a rule that can be varied: the filter or scorer, the field, and its other values."""
    several = len(router.get("scorers", ())) > 1
    for section, kind in (("filters", "filter"), ("scorers", "scorer")):
        for part in router.get(section, ()):
            for path, values in VALUES.items():
                of, _, name = path.partition(".")
                if of == part[kind]:
                    yield part, name, [value for value in values if value != part.get(name)]
            for path, factors in FACTORS.items():
                of, _, name = path.rpartition(".")
                if (section == "filters" and of == part[kind]) or (
                    several and section == "scorers" and of in ("", part[kind])
                ):
                    default = {"weight": 1.0, "threshold_tokens": 4_194_304, "threshold": 128}
                    now = part.get(name) or default[name]
                    yield part, name, [_like(now, factor) for factor in factors]


def _like(value: float, factor: float) -> float:
    """A value times a factor, of the value's type and of three digits."""
    scaled = float(f"{value * factor:.3g}")
    return max(1, round(scaled)) if isinstance(value, int) else scaled


def rule_words(scenario: Scenario) -> str:
    """Name of a scenario's routing rule.

    Only the product of an affinity filter's penalty and rate decides: it is the tokens in flight that break affinity.
    """
    if scenario.engine.routing != "scored":
        return scenario.engine.routing
    router, parts = scenario.router, list[str]()
    for one in router.filters:
        words: str = one.filter
        if one.filter == "prefix-affinity":
            rate = one.peak_prefill_tokens_per_s
            late = f"{number(one.max_ttft_penalty_s, 3)} s" + (f" at {number(rate, 3)} tok/s" if rate else "")
            explored = f", {one.exploration:g} explored" if one.exploration else ""
            words += f" {one.threshold:g}{explored}, {f'until {late}' if one.max_ttft_penalty_s else 'always'}"
        parts.append(words)
    scorers = []
    for scorer in router.scorers:
        given = scorer.model_dump(exclude_defaults=True, exclude={"scorer", "weight"})
        fields = ", ".join(f"{name} {value:g}" for name, value in given.items())
        weight = f"{scorer.weight:g} " if len(router.scorers) > 1 else ""
        scorers.append(f"{weight}{scorer.scorer}{f' ({fields})' if fields else ''}")
    parts += [" + ".join(scorers)] if scorers else []
    parts += [] if router.picker == "max-score" else [router.picker]
    return "; ".join(parts)


def _conclusion(own: str, best: str, gain: Ratio, metric: str, tried: int, pairs: int) -> str:
    """Sentence with the best rule and its gain."""
    ends = "" if gain.low is None or gain.high is None else f" ({times(gain.low)} to {times(gain.high)}, {pairs} pairs)"
    if gain.verdict > 0:
        return f"{best} is better than yours ({own}): {times(gain.ratio)}{ends} in {metric_words(metric)}."
    return (
        f"No rule is better than yours ({own}): the best of {tried} tried, {best}, is {times(gain.ratio)}{ends} "
        f"in {metric_words(metric)}."
    )
