"""Crossovers: speedups over a grid of loads, and the loads at which a speedup crosses 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, inf, log
from types import MappingProxyType
from typing import Any, NamedTuple

from forerun.document import DocumentPart
from forerun.errors import ForerunError
from simulator.running.scenario import Scenario
from simulator.studies.paired import HIGHER_IS_BETTER, Ratio, metric_values, paired_ratio
from simulator.studies.runs import Need, RunPool, SeededRun, needed_for, with_seeds
from simulator.studies.steady_state.span import steady_loop_requests, steady_requests
from simulator.studies.study_file import Range, Values, Variant, apply_settings

REQUEST_RATE = "workload.arrivals.request_rate"
MAX_CONCURRENCY = "workload.arrivals.max_concurrency"
RATE_SCALE = "workload.arrivals.rate_scale"
LOAD_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SERVED_SHARES = (0.03125, 0.125, 0.25, 0.5, 0.75, 0.97)
"""Loads to try, as shares of the highest load that can be served."""
SIDE_RUNS = 3
"""Number of seeds per point of crossover and sensitivity; few suffice, because paired runs have little noise."""
RANGE_POINTS = 7
REFINEMENTS = 4
"""Number of bisections of the interval around a crossing."""
MATERIAL = 1e-3
"""Minimum relative difference at which a variant counts as better or worse."""


@dataclass(frozen=True)
class CurvePoint(Ratio):
    """The speedup of a variant at one load."""

    value: float = field(kw_only=True)


@dataclass(frozen=True)
class Crossing(DocumentPart):
    """Load at which a speedup crosses 1, with the ends of its interval. An end beyond the tried loads is None."""

    variant: str
    value: float
    low: float | None
    high: float | None
    better: str
    """``below`` or ``above``: the side on which the variant pays."""


class ServedLoads(NamedTuple):
    """Highest loads that the baseline and a variant can serve in the long run; infinite if unknown."""

    base: float
    variant: float


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """A variant's speedups in order of load."""

    variant: str
    points: tuple[CurvePoint, ...]
    crossings: tuple[Crossing, ...]


def load_path(scenario: Scenario) -> str | None:
    """Dotted path of the field that sets the load of a scenario; None for bursts."""
    arrivals = scenario.workload.arrivals
    if arrivals is None or arrivals.process == "trace":
        return RATE_SCALE
    if arrivals.process == "closed-loop":
        return MAX_CONCURRENCY
    return REQUEST_RATE if arrivals.request_rate is not None else None


def scenario_load(scenario: Scenario, path: str) -> float | None:
    """Value of a scenario's load field."""
    if path == RATE_SCALE:
        return scenario.workload.arrivals.rate_scale if scenario.workload.arrivals is not None else 1.0
    if scenario.workload.arrivals is None:
        return None
    value = getattr(scenario.workload.arrivals, path.rsplit(".", 1)[-1], None)
    return None if value is None else float(value)


def served_load(scenario: Scenario, path: str) -> float | None:
    """Value of the load field that the scenario's replicas can serve in the long run; None if the field is no rate, or
    the steady state is unknown."""
    if path not in (REQUEST_RATE, RATE_SCALE):
        return None
    from simulator.studies.steady_state.estimate import max_request_rate
    from simulator.studies.steady_state.traffic import population

    try:
        rate = max_request_rate(scenario)
        if path == REQUEST_RATE:
            return rate
        recorded = population(scenario.workload).trace_rate
    except ForerunError:
        return None
    scale = scenario_load(scenario, path) or 1.0
    return None if recorded is None else rate / recorded * scale


def automatic_path(variants: Sequence[Variant]) -> str | None:
    """Load field that all variants share with the same value; None if there is no such field."""
    paths = {load_path(variant.scenario) for variant in variants}
    path = paths.pop() if len(paths) == 1 else None
    if path is None or len({scenario_load(variant.scenario, path) for variant in variants}) > 1:
        return None
    return path


def grid_values(values: Values | None, base: float | None, whole: bool, place: str) -> list[float]:
    """Loads to try, ascending."""
    if isinstance(values, Range):
        low, high = values.low, values.high
        geometric = values.log or low > 0
        steps = [index / (RANGE_POINTS - 1) for index in range(RANGE_POINTS)]
        grid = [low * (high / low) ** s if geometric else low + (high - low) * s for s in steps]
        whole = whole or (values.whole and high > 1)
    elif values is not None:
        if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
            raise ForerunError(f"{place}: a crossover is looked for along numbers")
        grid = [float(value) for value in values]
        whole = whole or all(isinstance(value, int) for value in values)
    elif base is None:
        raise ForerunError(f"{place}: the scenario has no value there to start from; give PATH=LOW..HIGH or values")
    else:
        grid = [base * factor for factor in LOAD_FACTORS]
    rounded = sorted({max(1.0, float(round(value))) if whole else float(value) for value in grid})
    if len(rounded) < 2:
        raise ForerunError(
            f"{place}: a crossover needs two values or more{', whole numbers from 1' * (whole and len(grid) > 1)}"
        )
    return rounded


def served_grid(base: float | None, served: Mapping[str, float | None]) -> list[float] | None:
    """Loads to try, ascending, up to the highest load that a variant serves; None if it is unknown for any variant.

    The highest load of each variant is included: beyond it, the variant is worse than variants that serve more.
    """
    known = [most for most in served.values() if most is not None]
    if not known or len(known) < len(served):
        return None
    most = max(known)
    own = [] if base is None else [base]
    return sorted({most * share for share in SERVED_SHARES} | {load for load in own + known if load < most})


def load_curves(
    variants: Sequence[Variant],
    path: str,
    values: Sequence[float],
    metric: str,
    seeds: Sequence[int],
    pool: RunPool,
    served: Mapping[str, float | None] = MappingProxyType({}),
    all_values: bool = False,
) -> list[LoadCurve]:
    """Speedups of every variant over the first at each value of ``path``, refined around crossings.

    Every run is long enough to show a steady state, whatever the scenario's number of requests. Omitted are: values at
    which a run fails; loads beyond the first at which no variant keeps up, unless ``all_values``; and crossings at
    loads that neither variant of a pair can serve, according to their runs and to ``served`` (by variant).
    """
    rates = path in (REQUEST_RATE, RATE_SCALE)
    whole = all(value == round(value) for value in values) and not rates
    base, *others = variants
    runs = _SteadyRuns(variants, path, metric, seeds, pool)
    if rates and not all_values:
        values = runs.up_to_overload(values)
    ratios = runs.ratios(base, others, {variant.name: values for variant in others})
    most = {one.name: ServedLoads(*(served.get(name) or inf for name in (base.name, one.name))) for one in others}
    for _ in range(REFINEMENTS if len(seeds) else 0):
        between = {name: _between_verdicts(row, whole, most[name]) for name, row in ratios.items()}
        wanted = {name: [value for value in middles if value not in ratios[name]] for name, middles in between.items()}
        if not any(wanted.values()):
            break
        for name, row in runs.ratios(base, others, wanted).items():
            ratios[name] |= row
    curves = []
    for variant in others:
        row = ratios[variant.name]
        points = tuple(
            CurvePoint(**vars(ratio), value=value) for value in sorted(row) if (ratio := row[value]) is not None
        )
        crossings = tuple(
            crossing
            for crossing in crossings_of(variant.name, points, most[variant.name])
            if crossing.value <= max(most[variant.name]) and runs.served((base, variant), points, crossing.value)
        )
        curves.append(LoadCurve(variant.name, points, crossings))
    return curves


def at_value(scenario: Scenario, path: str, value: float) -> Scenario:
    """Copy of the scenario with one value of the load field; unchanged if it lacks the section of that field."""
    if lacks_section(scenario, path) or (path == RATE_SCALE and value == scenario_load(scenario, path)):
        return scenario
    load = value
    if path == MAX_CONCURRENCY or (path not in (REQUEST_RATE, RATE_SCALE) and value == round(value)):
        load = int(value)
    settings: dict[str, Any] = {path: load}
    if path == RATE_SCALE and scenario.workload.arrivals is None:
        settings = {"workload.arrivals.process": "trace", **settings}
    return apply_settings(scenario, settings, "crossover")


def lacks_section(scenario: Scenario, path: str) -> bool:
    section, dot, _ = path.partition(".")
    return bool(dot) and getattr(scenario, section, section) is None


def crossings_of(variant: str, points: Sequence[CurvePoint], served: ServedLoads | None = None) -> tuple[Crossing, ...]:
    """Loads at which the speedup crosses 1 between two points, by interpolation.

    At a load that one of the two variants cannot serve in the long run, the other variant is surely better, whatever a
    run measures. Interval ends are the loads at which the ends of the speedup's intervals cross 1.
    """
    served = served or ServedLoads(inf, inf)
    decided = [(index, _decision(point.value, point, served)) for index, point in enumerate(points)]
    decided = [(index, verdict) for index, verdict in decided if verdict]
    crossings = []
    for (first, before), (last, after) in pairwise(decided):
        if before == after:
            continue
        section = points[first : last + 1]
        middle = _zero([(p.value, log(p.ratio)) for p in section], after)
        low = high = None
        if all(p.low is not None and p.high is not None for p in section):
            lows = [(p.value, log(p.low or 1.0)) for p in section]
            highs = [(p.value, log(p.high or 1.0)) for p in section]
            low, high = sorted(_zero(ends, after) for ends in (lows, highs))
        crossings.append(Crossing(variant, middle, low, high, "below" if before > 0 else "above"))
    return tuple(crossings)


def _decision(load: float, ratio: Ratio, served: ServedLoads) -> int:
    side = 1 if ratio.ratio > 1.0 else -1
    if abs(log(ratio.ratio)) < MATERIAL:
        return 0
    one_alone = min(served) < load <= max(served)
    return side if one_alone and (served.variant > served.base) == (side > 0) else ratio.verdict


def _zero(section: Sequence[tuple[float, float]], direction: int) -> float:
    """First zero crossing in ``direction`` of a piecewise linear curve over the logarithm of the load."""
    for (x, y), (next_x, next_y) in pairwise(section):
        if y * direction <= 0 < next_y * direction:
            share = -y / (next_y - y)
            return exp(log(x) + share * (log(next_x) - log(x))) if x > 0 else x + share * (next_x - x)
    return section[0][0] if section[0][1] * direction > 0 else section[-1][0]


def _between_verdicts(row: Mapping[float, Ratio | None], whole: bool, served: ServedLoads) -> list[float]:
    """Midpoint of every pair of neighbouring loads between which the speedup crosses 1."""
    known = [(value, ratio) for value, ratio in sorted(row.items()) if ratio is not None]
    verdicts = [v for value, ratio in known if (v := _decision(value, ratio, served))]
    if len(set(verdicts)) < 2:
        return []
    middles = []
    for (x, first), (next_x, second) in pairwise(known):
        if (first.ratio > 1.0) != (second.ratio > 1.0):
            middle = exp((log(x) + log(next_x)) / 2) if x > 0 else (x + next_x) / 2
            middle = float(round(middle)) if whole else middle
            if min(abs(middle - x), abs(next_x - middle)) > (0.5 if whole else 0.0):
                middles.append(middle)
    return middles


class _SteadyRuns:
    """Runs of variants at loads, each long enough to show a steady state."""

    def __init__(
        self, variants: Sequence[Variant], path: str, metric: str, seeds: Sequence[int], pool: RunPool
    ) -> None:
        self._variants, self._path, self._metric, self._seeds, self._pool = variants, path, metric, seeds, pool
        self._loads: dict[tuple[str, float], Scenario] = {}

    def up_to_overload(self, values: Sequence[float]) -> list[float]:
        """Values up to the first at which no variant keeps up with its arrivals."""
        tried = []
        for value in values:
            tried.append(value)
            if not self._keeps_up(self._variants, value):
                break
        return tried

    def served(self, pair: Sequence[Variant], points: Sequence[CurvePoint], value: float) -> bool:
        """True if either variant of a pair keeps up with the highest tried load up to ``value``."""
        tried = [point.value for point in points if point.value <= value]
        return not tried or self._keeps_up(pair, tried[-1])

    def _keeps_up(self, variants: Sequence[Variant], value: float) -> bool:
        runs = [SeededRun(self._at(one, value), self._seeds[0], need=self._need) for one in variants]
        documents = [one for one in self._pool.documents_if_any(runs) if one is not None]
        return not documents or any(one["load"]["keeps_up"] is not False for one in documents)

    def ratios(
        self, base: Variant, others: Sequence[Variant], values: Mapping[str, Sequence[float]]
    ) -> dict[str, dict[float, Ratio | None]]:
        """Speedups of ``others`` over ``base``, each at its loads in ``values``."""
        loads = {base.name: sorted({value for of_variant in values.values() for value in of_variant}), **values}
        places = [(variant, value) for variant in (base, *others) for value in loads[variant.name]]
        runs = [with_seeds(self._at(variant, value), self._seeds, self._need) for variant, value in places]
        documents = iter(self._pool.documents_if_any([run for of_place in runs for run in of_place]))
        measured = {
            (v.name, value): [metric_values(next(documents))[self._metric] for _ in self._seeds] for v, value in places
        }
        better = HIGHER_IS_BETTER[self._metric]
        return {
            name: {value: paired_ratio(measured[base.name, value], measured[name, value], better) for value in row}
            for name, row in values.items()
        }

    @property
    def _need(self) -> Need:
        return needed_for(self._metric)

    def _at(self, variant: Variant, value: float) -> Scenario:
        """Scenario of a variant at a load, with the largest number of requests that any variant needs."""
        if (variant.name, value) not in self._loads:
            loaded = [at_value(one.scenario, self._path, value) for one in self._variants]
            requests = [steady for one in loaded if (steady := _steady_requests(one)) is not None]
            count = {"workload.num_requests": max(requests)} if requests else {}
            for one, scenario in zip(self._variants, loaded, strict=True):
                self._loads[one.name, value] = scenario.with_values(count) if count else scenario
        return self._loads[variant.name, value]


def _steady_requests(scenario: Scenario) -> int | None:
    """Number of requests of a run that shows the steady state of a scenario; None if a trace, a profile or a burst
    determines it."""
    arrivals = scenario.workload.arrivals
    if arrivals is None or arrivals.profile is not None or scenario.workload.trace is not None:
        return None
    if arrivals.max_concurrency is not None:
        return steady_loop_requests(arrivals.max_concurrency)
    return None if arrivals.request_rate is None else steady_requests(scenario, arrivals.request_rate)


def nearest_crossing(crossings: Iterable[Crossing], base: float | None) -> Crossing | None:
    """Crossing nearest to the scenario's own load ``base``; None without crossings."""

    def distance(crossing: Crossing) -> float:
        if base is None:
            return 0.0
        return abs(log(crossing.value / base)) if crossing.value > 0 and base > 0 else inf

    return min(crossings, key=distance, default=None)
