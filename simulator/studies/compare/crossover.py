"""Where a variant starts or stops to pay as the load grows: the speedup over a grid of loads, and where it passes 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import exp, inf, log
from types import MappingProxyType
from typing import Any

from forerun.dataclass import dataclass
from forerun.errors import ForerunError
from simulator.running.scenario import Scenario
from simulator.studies.paired import HIGHER_IS_BETTER, Ratio, metric_values, paired_ratio
from simulator.studies.runs import RunPool, needed_for, with_seeds
from simulator.studies.study_file import Range, Values, Variant, apply_settings

REQUEST_RATE = "workload.arrivals.request_rate"
MAX_CONCURRENCY = "workload.arrivals.max_concurrency"
RATE_SCALE = "workload.arrivals.rate_scale"
LOAD_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
RANGE_POINTS = 7
REFINEMENTS = 3
"""How often the interval around a crossing is halved."""
MATERIAL = 1e-3
"""Differences below a tenth of a percent do not make a variant better or worse."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The speedup of a variant at one load."""

    value: float
    speedup: Ratio


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a speedup passes 1, with the ends of the interval; None where an end lies outside the loads tried."""

    value: float
    low: float | None
    high: float | None
    better: str
    """``below`` or ``above``: on which side the variant pays."""


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """A variant's speedups in order of load."""

    variant: str
    points: tuple[CurvePoint, ...]
    crossings: tuple[Crossing, ...]

    def document(self) -> dict[str, Any]:
        points = [{"value": point.value, **point.speedup._asdict()} for point in self.points]
        return {"variant": self.variant, "points": points}


def load_path(scenario: Scenario) -> str | None:
    """The field that sets the load of a scenario; None where arrivals come all at once."""
    arrivals = scenario.workload.arrivals
    if arrivals is None or arrivals.process == "trace":
        return RATE_SCALE
    if arrivals.process == "closed-loop":
        return MAX_CONCURRENCY
    return REQUEST_RATE if arrivals.request_rate is not None else None


def scenario_load(scenario: Scenario, path: str) -> float | None:
    """The value at a load path."""
    if path == RATE_SCALE:
        return scenario.workload.arrivals.rate_scale if scenario.workload.arrivals is not None else 1.0
    if scenario.workload.arrivals is None:
        return None
    value = getattr(scenario.workload.arrivals, path.rsplit(".", 1)[-1], None)
    return None if value is None else float(value)


def served_load(scenario: Scenario, path: str) -> float | None:
    """The value at a load path that the scenario's replicas can serve in the long run; None where no rate is offered,
    or no steady state is known."""
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
    """The load field that all variants have in common and at the same value; None where there is none."""
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


def load_curves(
    variants: Sequence[Variant],
    path: str,
    values: Sequence[float],
    metric: str,
    seeds: Sequence[int],
    pool: RunPool,
    served: Mapping[str, float | None] = MappingProxyType({}),
) -> list[LoadCurve]:
    """Speedups of every variant over the first at each value of ``path``, refined around crossings.

    Values at which a run fails are left out, and so are crossings at loads that neither variant of a pair can serve
    (``served``, by variant).
    """
    whole = all(value == round(value) for value in values) and path not in (REQUEST_RATE, RATE_SCALE)
    base, *others = variants
    ratios = _ratios(base, others, path, {variant.name: values for variant in others}, metric, seeds, pool)
    for _ in range(REFINEMENTS if len(seeds) else 0):
        between = {name: _between_verdicts(row, whole) for name, row in ratios.items()}
        wanted = {name: [value for value in middles if value not in ratios[name]] for name, middles in between.items()}
        if not any(wanted.values()):
            break
        for name, row in _ratios(base, others, path, wanted, metric, seeds, pool).items():
            ratios[name] |= row
    curves = []
    for variant in others:
        row = ratios[variant.name]
        points = tuple(CurvePoint(value, ratio) for value in sorted(row) if (ratio := row[value]) is not None)
        pair = [served.get(name) for name in (base.name, variant.name)]
        most = inf if None in pair else max(one for one in pair if one is not None)
        crossings = tuple(crossing for crossing in crossings_of(points) if crossing.value <= most)
        curves.append(LoadCurve(variant.name, points, crossings))
    return curves


def at_value(scenario: Scenario, path: str, value: float) -> Scenario:
    """The scenario at one value of the load path; unchanged at its own, or if it lacks the optional section that the
    field is in."""
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


def crossings_of(points: Sequence[CurvePoint]) -> tuple[Crossing, ...]:
    """Where the speedup passes 1 between two loads at which it is surely on either side, by interpolation.

    The ends of the interval are where the ends of the speedup's own intervals pass 1.
    """
    decided = [(index, _decision(point.speedup)) for index, point in enumerate(points)]
    decided = [(index, verdict) for index, verdict in decided if verdict]
    crossings = []
    for (first, before), (last, after) in pairwise(decided):
        if before == after:
            continue
        section = points[first : last + 1]
        middle = _zero([(p.value, log(p.speedup.ratio)) for p in section], after)
        low = high = None
        if all(p.speedup.low is not None and p.speedup.high is not None for p in section):
            lows = [(p.value, log(p.speedup.low or 1.0)) for p in section]
            highs = [(p.value, log(p.speedup.high or 1.0)) for p in section]
            low, high = sorted(_zero(ends, after) for ends in (lows, highs))
        crossings.append(Crossing(middle, low, high, "below" if before > 0 else "above"))
    return tuple(crossings)


def _decision(ratio: Ratio) -> int:
    return 0 if abs(log(ratio.ratio)) < MATERIAL else ratio.verdict


def _zero(section: Sequence[tuple[float, float]], direction: int) -> float:
    """The first zero of a piecewise linear curve (in the logarithm of the load) that passes it in ``direction``."""
    for (x, y), (next_x, next_y) in pairwise(section):
        if y * direction <= 0 < next_y * direction:
            share = -y / (next_y - y)
            return exp(log(x) + share * (log(next_x) - log(x))) if x > 0 else x + share * (next_x - x)
    return section[0][0] if section[0][1] * direction > 0 else section[-1][0]


def _between_verdicts(row: Mapping[float, Ratio | None], whole: bool) -> list[float]:
    """The middle of every pair of neighbouring loads at which the sign of the speedup differs."""
    known = [(value, ratio) for value, ratio in sorted(row.items()) if ratio is not None]
    verdicts = [v for _, ratio in known if (v := _decision(ratio))]
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


def _ratios(
    base: Variant,
    others: Sequence[Variant],
    path: str,
    values: Mapping[str, Sequence[float]],
    metric: str,
    seeds: Sequence[int],
    pool: RunPool,
) -> dict[str, dict[float, Ratio | None]]:
    """Speedups of ``others`` over ``base``, each at the loads that ``values`` has for it."""
    loads = {base.name: sorted({value for of_variant in values.values() for value in of_variant}), **values}
    places = [(variant, value) for variant in (base, *others) for value in loads[variant.name]]
    runs = [with_seeds(at_value(variant.scenario, path, value), seeds, needed_for(metric)) for variant, value in places]
    documents = iter(pool.documents_if_any([run for of_place in runs for run in of_place]))
    measured = {(v.name, value): [metric_values(next(documents))[metric] for _ in seeds] for v, value in places}
    better = HIGHER_IS_BETTER[metric]
    return {
        name: {value: paired_ratio(measured[base.name, value], measured[name, value], better) for value in of_variant}
        for name, of_variant in values.items()
    }


def crossing_rows(curves: Sequence[LoadCurve]) -> list[dict[str, Any]]:
    return [{"variant": curve.variant, **asdict(crossing)} for curve in curves for crossing in curve.crossings]


def nearest_crossing(curves: Sequence[LoadCurve], base: float | None) -> dict[str, Any] | None:
    """The crossing nearest to the scenario's own load."""

    def distance(row: dict[str, Any]) -> float:
        if base is None:
            return 0.0
        return abs(log(row["value"] / base)) if row["value"] > 0 and base > 0 else inf

    return min(crossing_rows(curves), key=distance, default=None)
