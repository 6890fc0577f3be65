"""Measured runs of a deployment as evidence for its other predictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.document import Json
from forerun.errors import ForerunError
from simulator.llm import load_architecture
from simulator.running.build import Build, PoolBuild
from simulator.running.measured_runs import simulate_measured
from simulator.running.metrics.measured_error import run_figures
from simulator.running.metrics.posterior import FigureRow, Learnt, Posterior, Process, figure_rows
from simulator.running.metrics.served import figure_kind, served_facts
from simulator.running.records import RunRecords
from simulator.running.scenario import MeasuredConfig, Scenario, scenario_from
from traces.benchmark_results import MeasuredRun, read_runs

Simulate = Callable[..., RunRecords]
MOST_RUNS = 32
"""Measured runs that one prediction may rest on; each is simulated."""
FIGURES = (
    ("mean_ttft_ms", "median_ttft_ms"),
    ("mean_tpot_ms", "median_tpot_ms", "median_itl_ms"),
    ("mean_e2el_ms", "median_e2el_ms"),
    ("output_throughput", "total_token_throughput"),
)
"""Figures of a measured run that count, each under the first of its metrics."""
ROOM = 1.1
"""Factor by which measured figures may contradict one another, or exceed the limits of a chip."""


class MeasuredEvidence(NamedTuple):
    """Posterior of a deployment, given its measured runs."""

    posterior: Posterior
    deployment: Json
    learnt: dict[str, Learnt]

    def moved(self, build: Build) -> Build:
        """The build with steps, host and API server as the measured runs ask for."""
        decode, prompts, host_ms, api_ms = (one["value"] for one in self.learnt.values())

        def change(pool: PoolBuild) -> PoolBuild:
            limits = replace(pool.limits, api_server_s=max(0.0, pool.limits.api_server_s + api_ms / 1e3))
            return replace(pool, step_factors=(prompts, decode), step_more_s=host_ms / 1e3, limits=limits)

        return build.with_pools(change)


def deployment_of(scenario: Scenario) -> Json:
    """Facts that two scenarios of one deployment have in common: model, formats, engine, and chips of a replica."""
    hardware, engine = scenario.hardware, scenario.engine
    return {
        "model": load_architecture(scenario.model).name,
        "weights_dtype": scenario.weights_dtype,
        "kv_cache_dtype": scenario.kv_cache_dtype,
        "hardware.chip": hardware.chip,
        "chips of a replica": hardware.chips_per_replica,
        "engine.framework": engine.framework,
        "engine.release": engine.release,
        "pools": sorted(scenario.pools or ()),
    }


def evidence_for(scenario: Scenario, simulate: Simulate) -> MeasuredEvidence | None:
    """Posterior of a scenario's measured runs; None if they are of another deployment.

    Raises:
        ForerunError, traces.TraceError: a result that cannot be read or simulated, is of another deployment than
            ``measured.deployment``, or cannot be true.
    """
    assert scenario.measured is not None
    evidence = _evidence(_Call(scenario.measured, simulate))
    return evidence if deployment_of(scenario) == evidence.deployment else None


def other_deployment_note(scenario: Scenario) -> str:
    """Note for a scenario whose measured runs are of another deployment."""
    assert scenario.measured is not None
    differ = _differences(deployment_of(scenario), deployment_of(_base(scenario.measured)))
    return f"no measured run is of this deployment ({', '.join(differ)} measured): it rests on those of others"


def _differences(own: Json, known: Json) -> list[str]:
    return [f"{name} {own[name]}, {known[name]}" for name in known if own[name] != known[name]]


def _base(measured: MeasuredConfig) -> Scenario:
    return scenario_from({**(measured.deployment or {}), "workload": _ANY_LOAD}, "measured.deployment")


class _Call:
    """Arguments of the evidence, compared by the text of the configuration and the state of its files."""

    def __init__(self, measured: MeasuredConfig, simulate: Simulate) -> None:
        self.measured, self.simulate = measured, simulate
        states = [(one, Path(one).stat().st_mtime_ns if Path(one).exists() else 0) for one in sorted(measured.files)]
        self.key = (measured.model_dump_json(include={"deployment"}), tuple(states))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self.key == other.key


@lru_cache(maxsize=16)
def _evidence(call: _Call) -> MeasuredEvidence:
    base = _base(call.measured)
    runs = [run for file in sorted(call.measured.files) for run in read_runs(file)]
    if len(runs) > MOST_RUNS:
        raise ForerunError(
            f"measured: {len(runs)} runs, at most {MOST_RUNS} count; choose those at the loads that matter"
        )
    columns: list[FigureRow] = []
    errors: list[float] = []
    for number, run in enumerate(runs):
        for row, error in _figures_of(call.simulate, run, base, number):
            columns.append(row)
            errors.append(error)
    known = served_facts()["process"]
    posterior = Posterior(Process.of(known), figure_rows(columns), np.array(errors))
    return MeasuredEvidence(posterior, deployment_of(base), posterior.learnt())


_ANY_LOAD: Json = {
    "arrivals": {"process": "closed-loop", "max_concurrency": 8},
    "input_tokens": 512,
    "output_tokens": 128,
    "num_requests": 256,
}
"""Load of a base scenario, which measured runs replace."""


def _figures_of(simulate: Simulate, run: MeasuredRun, base: Scenario, number: int) -> list[tuple[FigureRow, float]]:
    """Rows of the process for the figures of a measured run, and logarithms of measured over predicted."""
    if run.unusable is not None:
        raise ForerunError(f"{run.place}: {run.unusable}")
    result, predicted, _ = simulate_measured(simulate, run, base, intervals=True)
    differ = _differences(deployment_of(result.scenario), deployment_of(base))
    if differ:
        raise ForerunError(f"{run.place}: a run of another deployment: {', '.join(differ)} in the scenario")
    metrics = [next((one for one in names if run.measured.get(one) and predicted.get(one)), None) for names in FIGURES]
    _refuse_impossible(run, result, predicted)
    assert result.model_error is not None
    rows = run_figures(result.scenario, predicted, result.model_error, number)
    signs = {"throughput": -1.0}
    figures = [
        (rows[metric], signs.get(figure_kind(metric) or "", 1.0) * log(run.measured[metric] / predicted[metric]))
        for metric in metrics
        if metric in rows
    ]
    if not figures:
        raise ForerunError(f"{run.place}: measures none of {', '.join(names[0] for names in FIGURES)}")
    return figures


def _refuse_impossible(run: MeasuredRun, result: RunRecords, predicted: Mapping[str, float]) -> None:
    """Refuse figures that contradict one another (Little's law) or the limits of the chip."""
    measured, requests = run.measured, result.requests
    tokens = float(np.mean(requests.output_tokens))
    ttft, tpot = measured.get("mean_ttft_ms"), measured.get("mean_tpot_ms")
    e2el = measured.get("mean_e2el_ms") or (ttft + (tokens - 1) * tpot if ttft and tpot else None)
    rate = measured.get("output_throughput")
    if run.max_concurrency and rate and e2el and rate * e2el / 1e3 / tokens > ROOM * run.max_concurrency:
        streams = rate * e2el / 1e3 / tokens
        raise ForerunError(
            f"{run.place}: {rate:g} output tokens/s of {tokens:.0f} tokens a request at a mean E2E latency of {e2el:g} "
            f"ms are {streams:.1f} requests at once, and max_concurrency is {run.max_concurrency} (Little's law)"
        )
    totals = result.totals
    limits = [totals.flops / totals.peak_flops_per_s, totals.bytes / totals.bandwidth_bytes_per_s]
    light = max(float(one.sum()) for one in limits) / max(1e-9, float(totals.seconds.sum()))
    for metric in ("mean_tpot_ms", "median_tpot_ms"):
        value = measured.get(metric)
        if value and metric in predicted and value * ROOM < light * predicted[metric]:
            raise ForerunError(
                f"{run.place}: {metric} {value:g} is below {light * predicted[metric]:.3g}, the limit of the chip for "
                f"this model and load; state the model, format and chips that were measured"
            )
