"""Steady-state means with their intervals, before and after measuring: the closed form, and runs of few requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.document import Json
from forerun.errors import ForerunError
from simulator.running.metrics.conclusion import measuring_notes
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.studies.steady_state.estimate import Estimate, estimate, max_request_rate

MEANS = {
    "mean_ttft_s": "mean_ttft_ms",
    "mean_tpot_s": "mean_tpot_ms",
    "mean_e2e_s": "mean_e2el_ms",
    "output_throughput": "output_throughput",
}
"""Keys of a run's summary, by field of ``Estimate``."""
FEW_REQUESTS = 256
"""Number of requests that are simulated for the intervals of a closed form."""


def fan_ends(document: Json, metric: str) -> list[float]:
    """Ends of a metric's intervals in a part of a document: nine in ten, likely, likely, nine in ten; NaN if unknown.

    >>> fan_ends({"intervals": {"mean_tpot_ms": [6.3, 11.8]}}, "mean_tpot_ms")
    [6.3, nan, nan, 11.8]
    """
    wide, likely = ((document.get(name) or {}).get(metric, (nan, nan)) for name in ("intervals", "likely"))
    return [wide[0], *likely, wide[1]]


class Ranged(NamedTuple):
    """Steady-state means with their intervals."""

    answer: Estimate
    factors: dict[str, list[float]]
    """Ends of the intervals over the mean, by key of the summary, in the order of ``fan_ends``."""
    learnt: bool
    """True if measured runs moved the means."""
    notes: list[str]
    """Statements about a measured deployment, or the measurement that would help."""


def capacity_over_prior(data: Json) -> float:
    """Highest load of a scenario with its measured runs over that without them, from runs of few requests at once."""
    if not data.get("measured"):
        return 1.0
    after, before = (few_requests(one)[0]["summary"]["request_throughput"] for one in (data, without_measured(data)))
    return float(after / before)


def without_measured(data: Json) -> Json:
    return {name: section for name, section in data.items() if name != "measured"}


def ranged_estimate(data: Json, request_rate: float) -> Ranged:
    """Steady-state means of a scenario of Poisson arrivals at a load, moved as its measured runs ask for.

    An engine that they make slower is as busy at a lower load. The closed form is that of the load which keeps it as
    busy before measuring; its means change as those of runs of few requests do.
    """
    plain, faster = without_measured(data), capacity_over_prior(data)
    answer = estimate(scenario_from(plain, "scenario"), request_rate=request_rate / faster)
    try:
        (after, notes), (before, _) = few_requests(data, request_rate), few_requests(plain, request_rate / faster)
    except ForerunError:  # a load that runs refuse has a closed form all the same
        return Ranged(answer, {}, False, [])
    moved: Json = {"request_rate": request_rate, "max_request_rate": faster * answer.max_request_rate}
    for field, key in MEANS.items():
        if (mean := getattr(answer, field)) is not None and after["summary"][key] and before["summary"][key]:
            moved[field] = mean * (after["summary"][key] / before["summary"][key])
    factors = {key: [end / after["summary"][key] for end in fan_ends(after, key)] for key in after["intervals"]}
    return Ranged(replace(answer, **moved), factors, "learnt" in (after["model_error"] or {}), notes)


def ranged_curve(
    data: Json, shares: Sequence[float], ranged: Sequence[float]
) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Steady-state means over the load, as measured runs move them.

    Args:
        data: scenario.
        shares: loads as shares of the highest rate, ascending.
        ranged: shares whose intervals are simulated and interpolated between; empty for none, and unmoved means.

    Returns:
        Request rates; and by field of ``Estimate`` rows of the mean and of the four ends of its intervals.
    """
    plain = scenario_from(without_measured(data), "scenario")
    most = max_request_rate(plain)
    answers = {share: estimate(plain, request_rate=share * most) for share in (*shares, *ranged)}
    most *= capacity_over_prior(data)
    known = [(answers[share], ranged_estimate(data, share * most)) for share in ranged]
    means = {}
    for field, key in MEANS.items():
        means[field] = np.array([[getattr(answers[share], field) for share in shares]])
        if known:
            moved = np.array([getattr(one.answer, field) / getattr(before, field) for before, one in known])
            factors = np.array([[1.0, *one.factors.get(key, [nan] * 4)] for _, one in known])
            means[field] = means[field] * [np.interp(shares, ranged, part) for part in moved * factors.T]
    return most * np.array(shares), means


def few_requests(data: Json, request_rate: float | None = None) -> tuple[Json, list[str]]:
    """Document of a run of a scenario's first requests, without a rate all at once, and its notes on measuring."""
    arrivals = {"process": "burst"} if request_rate is None else {"process": "poisson", "request_rate": request_rate}
    requests = min(FEW_REQUESTS, data["workload"]["num_requests"])
    workload = data["workload"] | {"num_requests": requests, "arrivals": arrivals}
    changed_ns = [Path(file).stat().st_mtime_ns for file in data.get("measured", {}).get("files", ())]
    return _run(json.dumps(data | {"workload": workload}, sort_keys=True), tuple(changed_ns))


@lru_cache(maxsize=256)
def _run(scenario: str, _changed_ns: tuple[int, ...]) -> tuple[Json, list[str]]:
    result = simulate(scenario_from(json.loads(scenario), "scenario"), intervals=True, full_step_rows=0)
    error, document = result.model_error, result.document
    learnt = error is not None and "learnt" in error
    return document, measuring_notes(None if learnt else document["next_measurement"], error, result.shifts)
