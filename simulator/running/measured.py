"""Measured runs of a deployment as evidence for its other predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from simulator.running.measured_runs import ROOM, contradiction, simulate_measured, unstated_load, with_implied_load
from simulator.running.metrics.measured_error import run_figures
from simulator.running.metrics.posterior import FigureRow, Learnt, Posterior, Process, figure_rows
from simulator.running.metrics.served import figure_kind, served_facts
from simulator.running.metrics.uncertainty import MOST_SURE, SURPRISED, intervals_of
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


class MeasuredEvidence(NamedTuple):
    """Posterior of a deployment, given its measured runs."""

    posterior: Posterior
    deployment: Json
    learnt: dict[str, Learnt]
    notes: tuple[str, ...]
    """Remarks on what the results do not state."""
    surprise: str
    """Measured figure furthest outside its nine in ten before any measurement, in words; empty where all lie inside."""

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


def other_deployment_note(scenario: Scenario, simulate: Simulate) -> str:
    """Note for a scenario whose measured runs are of another deployment."""
    assert scenario.measured is not None
    evidence = _evidence(_Call(scenario.measured, simulate))
    differ = ", ".join(_differences(deployment_of(scenario), evidence.deployment))
    words = f"no measured run is of this deployment ({differ} measured): it rests on those of others"
    if not evidence.surprise:
        return words
    most = f"so that limits are met with {100 * MOST_SURE:.0f} % probability at most"
    return f"{words}; {evidence.surprise}{SURPRISED}, {most}"


def is_surprised(scenario: Scenario, simulate: Simulate) -> bool:
    """True if a figure of the scenario's measured runs lies outside its nine in ten before any measurement."""
    assert scenario.measured is not None
    return bool(_evidence(_Call(scenario.measured, simulate)).surprise)


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
    own = {_figures_key(run): run for run in reversed(runs)}
    again = len(runs) - len(own)
    several = "s repeat others and count" if again > 1 else " repeats another and counts"
    notes = [f"measured: {again} run{several} once"] if again else []
    columns: list[FigureRow] = []
    errors: list[float] = []
    surprises: list[tuple[float, str]] = []
    for number, run in enumerate(reversed(own.values())):
        loaded = with_implied_load(run)
        if loaded.unusable is None and (missing := unstated_load(loaded)):
            raise ForerunError(f"{run.place}: states no {' and no '.join(missing).replace('_', ' ')}")
        notes += [*_taken_as(run, base), *loaded.notes[len(run.notes) :]]
        rows, off = _figures_of(call.simulate, loaded, base, number)
        surprises += off
        for row, error in rows:
            columns.append(row)
            errors.append(error)
    known = served_facts()["process"]
    posterior = Posterior(Process.of(known), figure_rows(columns), np.array(errors))
    surprise = max(surprises, default=(0.0, ""))[1]
    return MeasuredEvidence(posterior, deployment_of(base), posterior.learnt(), tuple(dict.fromkeys(notes)), surprise)


def _figures_key(run: MeasuredRun) -> tuple[object, ...]:
    """Key of a run by what it measured: two results that agree in every figure are one run."""
    return (run.configuration, run.max_concurrency, run.request_rate, tuple(sorted(run.measured.items())))


def _taken_as(run: MeasuredRun, base: Scenario) -> Iterator[str]:
    """Note on a result that names no model or no chip, which is taken to be of the scenario's deployment."""
    lacks = [name for name, value in (("model", run.model), ("chip", run.chip)) if value is None]
    if run.model is None:
        facts = deployment_of(base)
        yield (
            f"{run.place}: states no {' and no '.join(lacks)}: taken as a run of {facts['model']} on "
            f"{facts['chips of a replica']} x {facts['hardware.chip']}"
        )


_ANY_LOAD: Json = {
    "arrivals": {"process": "closed-loop", "max_concurrency": 8},
    "input_tokens": 512,
    "output_tokens": 128,
    "num_requests": 256,
}
"""Load of a base scenario, which measured runs replace."""


def _figures_of(
    simulate: Simulate, run: MeasuredRun, base: Scenario, number: int
) -> tuple[list[tuple[FigureRow, float]], list[tuple[float, str]]]:
    """Rows of the process for the figures of a measured run with logarithms of measured over predicted. Then figures
    outside their nine in ten, in words, with how far off they are."""
    if run.unusable is not None:
        raise ForerunError(f"{run.place}: {run.unusable}")
    result, predicted, _ = simulate_measured(simulate, run, base, intervals=True)
    differ = _differences(deployment_of(result.scenario), deployment_of(base))
    if differ:
        raise ForerunError(f"{run.place}: a run of another deployment: {', '.join(differ)} in the scenario")
    metrics = [next((one for one in names if run.measured.get(one) and predicted.get(one)), None) for names in FIGURES]
    _refuse_impossible(run, result, predicted)
    assert result.model_error is not None
    stated = result.model_error["stated"]
    rows = run_figures(result.scenario, predicted, result.model_error, number)
    signs = {"throughput": -1.0}
    figures = [
        (rows[metric], signs.get(figure_kind(metric) or "", 1.0) * log(run.measured[metric] / predicted[metric]))
        for metric in metrics
        if metric in rows
    ]
    if not figures:
        raise ForerunError(f"{run.place}: measures none of {', '.join(names[0] for names in FIGURES)}")
    known = {metric: predicted[metric] for metric in metrics if metric in rows}
    ends = intervals_of(known, result.model_error, result.model_error["sampling"])
    off = []
    for key, (low, high) in ends.items():
        ratio = run.measured[key] / known[key]
        if stated and key.endswith("_ms") and not low <= run.measured[key] <= high:
            off.append((abs(log(ratio)), f"the measured run's {key.split('_')[1].upper()} is {ratio:.2g}x"))
    return figures, off


def _refuse_impossible(run: MeasuredRun, result: RunRecords, predicted: Mapping[str, float]) -> None:
    """Refuse figures that contradict one another (Little's law) or the limits of the chip."""
    measured = run.measured
    if words := contradiction(run, float(np.mean(result.requests.output_tokens))):
        raise ForerunError(f"{run.place}: {words}")
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
