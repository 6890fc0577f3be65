"""Model error of a deployment with measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, log1p
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from simulator.running.build import Build
from simulator.running.metrics.posterior import (
    API_SERVER_MS,
    KINDS,
    FigureRow,
    Posterior,
    Process,
    figure_rows,
    scaled_ends,
)
from simulator.running.metrics.served import (
    SERVED,
    Stratum,
    closed_loop,
    figure_kind,
    most_at_once,
    served_facts,
    serves_arrivals,
    stratum_of,
)
from simulator.running.metrics.statistics import Z90
from simulator.running.metrics.summary import request_latency_ms
from simulator.running.records import Axis, ModelError
from simulator.running.scenario import Scenario
from simulator.serving import RequestRecords

ACCEPTANCE = "acceptance"
"""Axis of how often drafts are accepted, which no measured run of other traffic settles."""
LAYOUT = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "attention_data_parallel")
"""Fields of the hardware that make a layout, beside pools and speculation."""
USUAL_DECODING = 0.8
"""Share of E2E latency after the first token where it is not known."""
MEANS = ("mean_tpot_ms", "mean_ttft_ms", "mean_e2el_ms", "output_throughput")
"""A figure of each kind, whose correlation all figures of the kind share."""
MOST_MOVED = 3.0
"""Largest derivative of a figure that counts: beyond saturation they are no more than a direction."""
NEW, OTHER = -1, -2
"""Numbers of a run that is predicted, and of one that might be measured."""


def conditions_of(build: Build, requests: RequestRecords) -> list[float]:
    """Most requests at once on a replica, and mean input and output tokens."""
    tokens = (float(np.mean(requests.input_tokens)), float(np.mean(requests.output_tokens)))
    return [max(1.0, most_at_once(build, requests)), *tokens]


def run_figures(
    scenario: Scenario, figures: Mapping[str, Any], error: ModelError, run: int = NEW
) -> dict[str, FigureRow]:
    """Rows of the process for the figures of a run that have a kind; ``error`` is that of its model alone."""
    named = {key: value for key, value in figures.items() if isinstance(value, float) and value > 0}
    shared = _row_of_run(scenario, Stratum(**error["stratum"]), error["conditions"])._replace(run=run)
    rows = {}
    for key, value in named.items():
        kind = figure_kind(key)
        if kind is None or key not in error["axes"][-1]["response"]:
            continue
        statistic = key.partition("_")[0] if f"{key.partition('_')[0]}_e2el_ms" in named else "mean"
        e2el, ttft = (named.get(f"{statistic}_{name}_ms") for name in ("e2el", "ttft"))
        sign = -1.0 if kind == "throughput" else 1.0
        prompts, decode = (min(max(sign * one, -1.0), MOST_MOVED) for one in _slopes(error, key))
        host = decode / error["step_ms"]["decode"] + prompts / error["step_ms"]["prompts"]
        first = {"tpot": None, "throughput": e2el if closed_loop(scenario) else None}.get(kind, value)
        delay = 0.0 if not first else log1p(API_SERVER_MS / first)
        moves = (decode, prompts, min(max(host, 0.0), MOST_MOVED), delay)
        decoding = max(0.0, 1.0 - ttft / e2el) if e2el and ttft else USUAL_DECODING
        rows[key] = shared._replace(kind=KINDS.index(kind), decoding=decoding, moves=moves)
    return rows


def _row_of_run(scenario: Scenario, stratum: Stratum, conditions: Sequence[float]) -> FigureRow:
    """Fields that all figures of a run have in common."""
    hardware, speculation = scenario.hardware, scenario.speculation
    drafts = None if speculation is None or speculation.method == "none" else (speculation.method, speculation.depth)
    layout = (*(getattr(hardware, name) for name in LAYOUT), sorted(scenario.pools or ()), drafts)
    return FigureRow(0, USUAL_DECODING, (0.0,) * 4, tuple(map(log, conditions)), str(layout), NEW, stratum.classes)


def measured_shifts(
    posterior: Posterior, scenario: Scenario, build: Build, requests: RequestRecords
) -> dict[str, float]:
    """Factors by kind of figure on predictions of a build that measured runs have moved."""
    stratum = stratum_of(scenario, build, requests)
    means = [float(np.nanmean(request_latency_ms(requests, name))) for name in ("ttft", "e2el")]
    decoding = 1.0 - means[0] / means[1] if means[1] > 0 else USUAL_DECODING
    shared = _row_of_run(scenario, stratum, conditions_of(build, requests))._replace(decoding=decoding)
    shifts = posterior.shift(figure_rows([shared._replace(kind=place) for place in range(len(KINDS))]))
    factors = {kind: exp(float(one)) for kind, one in zip(KINDS, shifts, strict=True)}
    if serves_arrivals(scenario, stratum):
        del factors["throughput"]
    return factors


def _slopes(error: ModelError, metric: str) -> FloatArray:
    """Derivatives of a figure's logarithm by those of the seconds of prompt steps and of the others."""
    total = np.zeros(2)
    for axis in error["axes"]:
        if axis["direction"]:
            low, high = axis["response"].get(metric, (0.0, 0.0))
            total += np.asarray(axis["direction"]) * (high - low) / (2 * Z90 * axis["deviation"])
    return total


def widths_after_measuring(scenario: Scenario, figures: Mapping[str, Any], error: ModelError) -> dict[str, float]:
    """Widths of the 90 % intervals of a run's means after one measured run of its load."""
    rows = {key: row for key, row in run_figures(scenario, figures, error).items() if key in MEANS}
    if not rows:
        return {}
    known, new = served_facts()["process"], figure_rows(list(rows.values()))
    measured = figure_rows([row._replace(run=OTHER) for row in rows.values()])
    forecast = Posterior.expected(Process.of(known), measured).forecast(new)
    widths = {}
    for (key, row), deviation in zip(rows.items(), forecast.deviation.tolist(), strict=True):
        ends = scaled_ends(known["ends"][KINDS[row.kind]], forecast.degrees)
        widths[key] = exp((ends[-1] - ends[0]) * deviation)
    return widths


def informed(error: ModelError, posterior: Posterior, scenario: Scenario, figures: Mapping[str, Any]) -> ModelError:
    """The error that is left once runs of the deployment were measured. What they say about kernels and host replaces
    the errors of both; how often drafts are accepted stays as it was."""
    rows = run_figures(scenario, figures, error)
    forecast, known = posterior.forecast(figure_rows(list(rows.values()))), served_facts()["process"]["ends"]
    response = {key: [0.0] * 4 for key in error["axes"][-1]["response"]}
    arriving = serves_arrivals(scenario, Stratum(**error["stratum"]))
    for (key, row), deviation in zip(rows.items(), forecast.deviation, strict=True):
        kind = KINDS[row.kind]
        if kind != "throughput" or not arriving:
            ends = [float(end * deviation) for end in scaled_ends(known[kind], forecast.degrees)]
            response[key] = [-end for end in ends] if kind == "throughput" else ends
    rate = response.get("output_throughput", [])
    if any(rate):
        response["duration"] = [-end for end in rate]
    else:
        response.pop("duration", None)  # arrivals and the last answers make it
    means = [place for place, key in enumerate(rows) if key in MEANS]
    joint = np.linalg.cholesky(forecast.correlation[np.ix_(means, means)])
    weights = {str(figure_kind(list(rows)[place])): row.tolist() for place, row in zip(means, joint, strict=True)}
    served = Axis(name=f"{SERVED} measured", deviation=1.0, direction=[], response=response, joint=weights)
    kept = [axis for axis in error["axes"] if axis["name"] == ACCEPTANCE]
    words = f"intervals rest on {posterior.runs} measured run{'s' * (posterior.runs > 1)} of this deployment"
    return {**error, "axes": [*kept, served], "served": words, "learnt": posterior.learnt()}
