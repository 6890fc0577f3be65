"""Page of what-if questions: the analytic model answers at every slider move. A simulated run in the background refines
the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import dash_mantine_components as dmc
import numpy as np
from dash import Input, dcc

from dashboards.app import controls
from dashboards.app.controls import ChoiceField, Number, Values
from dashboards.app.job_panel import job_id, job_panel
from dashboards.app.jobs import RunTask, Task
from dashboards.app.page import Context, Page, Shown, Start, View
from dashboards.app.parts import area, counted, figure_card, output_id, panel, remark, rests_on, tiles
from dashboards.app.uploads import checked_size
from dashboards.figures.load import LoadData, LoadFigure, SimulatedPoint, load_figure
from dashboards.figures.run import BottleneckData, bottleneck_figure
from dashboards.page import Tile, scenario_yaml
from forerun.document import Json
from forerun.tables import number
from simulator.running.metrics.document import scenario_document
from simulator.running.metrics.run_folder import SUMMARY_FILE, load_summary
from simulator.running.run import simulate
from simulator.running.scenario import Scenario, scenario_from
from simulator.studies.steady_state.estimate import Estimate, estimate, max_request_rate

RATES = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16)
ALPHAS = tuple(round(0.05 * step, 2) for step in range(6, 20))
LOADS = (0.03, 0.2, 0.4, 0.6, 0.75, 0.87, 0.94, 0.98)
"""Request rates at which a curve is evaluated, as shares of the highest rate."""
ANSWERED = "answered"
FEW_REQUESTS = 256
"""Number of requests simulated for the intervals of an analytic answer."""


def draft_options(method: object) -> bool:
    return bool(method != "none")


DRAFTS = ("method", draft_options)
CONTROLS = [
    Number("rate", "Load", stops=RATES, default=8, unit="req/s", low=0.001, high=10_000, whole=False),
    controls.PROMPT,
    controls.OUTPUT,
    controls.CHIP,
    controls.MODEL,
    controls.TENSOR_PARALLEL,
    Number("replicas", "Replicas", stops=REPLICAS, default=1, low=1, high=256),
    controls.WEIGHTS,
    ChoiceField("method", "Speculation", options=controls.METHODS, default="none"),
    controls.DRAFT,
    Number("k", "Draft tokens K", DRAFTS, stops=controls.DRAFT_TOKENS, default=3, low=1, high=64),
    Number("alpha", "Acceptance rate", DRAFTS, stops=ALPHAS, default=0.7, low=0.0, high=1.0, whole=False),
    replace(controls.TTFT, label="Limit of mean TTFT"),
    replace(controls.TPOT, label="Limit of mean TPOT"),
    ChoiceField("requests", "Requests to simulate", options=("500", "2000", "10000", "50000"), default="2000"),
]
NAMES = tuple(control.name for control in CONTROLS)


def what_if_scenario(values: Values) -> Json:
    """Scenario data for the values of the controls."""
    data = controls.deployment(values, workload=controls.poisson_workload(values, values["rate"], values["requests"]))
    data["hardware"]["replicas"] = values["replicas"]
    if draft_options(values["method"]):
        data["speculation"] = controls.speculation_of(values, values["k"], {"alpha": values["alpha"]})
    return data


def compute(context: Context, values: Values) -> Shown:
    """The analytic answer, with the simulated run of the same load if there is one."""
    data = what_if_scenario(values)
    scenario = scenario_from(data, "what-if")
    rate = float(values["rate"])
    answer = estimate(scenario)
    here = next((run for run in simulated_runs(context, scenario) if _rate(run) == rate), None)
    bounds = {"analytic": answer.bottleneck}
    if here is not None and here["bottleneck"]:
        bounds["simulated"] = here["bottleneck"]
    notes = [
        *answer.notes,
        f"Arrivals are Poisson; lengths are log-normal with a spread (CV) of {controls.LENGTH_CV:g}.",
        "The analytic model knows averages only; percentiles come from the simulated run.",
    ]
    text = scenario_yaml(data)
    copy = dmc.CopyButton(value=text, children="Copy", copiedChildren="Copied", size="compact-xs")
    return {
        "lead": remark(estimate_sentence(answer, rate)),
        "scenario": panel(
            "Scenario", dmc.Group([copy], justify="flex-end"), dmc.Code(text, block=True, className="flags")
        ),
        "basis": rests_on(answer.basis, notes),
        ANSWERED: {name: values[name] for name in NAMES},
        "bounds": bottleneck_figure(BottleneckData(bounds, answer.basis)),
    }


def compute_tiles(context: Context, values: Values) -> Shown:
    """Key figures with their 90 % intervals; the intervals come from a simulation of a few requests."""
    data = what_if_scenario(values)
    scenario, rate = scenario_from(data, "what-if"), float(values["rate"])
    answer = estimate(scenario)
    here = next((run for run in simulated_runs(context, scenario) if _rate(run) == rate), None)
    few = data | {"workload": data["workload"] | {"num_requests": min(FEW_REQUESTS, int(values["requests"]))}}
    ends = {} if answer.saturated else band_of_run(json.dumps(few, sort_keys=True))
    return {"tiles": tiles(_tiles(answer, here, ends))}


@lru_cache(maxsize=64)
def band_of_run(scenario: str) -> dict[str, tuple[float, float]]:
    """90 % intervals of a scenario (JSON) by metric, as factors on the simulated value."""
    document = simulate(scenario_from(json.loads(scenario), "what-if"), intervals=True, full_step_rows=0).document
    figures = document["summary"]
    return {key: (low / figures[key], high / figures[key]) for key, (low, high) in document["intervals"].items()}


def compute_load(context: Context, values: Values) -> Shown:
    """Curves over the load for the deployment of the latest answer."""
    if not values[ANSWERED]:
        return {}
    # What was answered comes back from the browser, which may say anything.
    fields = {control.name: control for control in CONTROLS}
    answers = {name: values[ANSWERED].get(name) for name in NAMES}
    data = what_if_scenario(controls.checked_fields(fields, answers, context.served))
    scenario = scenario_from(data, "what-if")
    plain = {key: value for key, value in data.items() if key != "speculation"}
    wanted = [data, plain] if "speculation" in data else [data]
    curves = tuple(
        latency_by_load(json.dumps(one | {"workload": {**data["workload"], "arrivals": None}}, sort_keys=True))
        for one in wanted
    )
    points = tuple(simulated_point(run) for run in simulated_runs(context, scenario))
    rate = float(data["workload"]["arrivals"]["request_rate"])
    answer = estimate(scenario)
    limits = {f"{name}_ms": float(answers[name]) for name in ("ttft", "tpot")}
    return {"load": load_figure(LoadData(curves, points, rate, answer.basis, answer.max_request_rate, limits))}


@lru_cache(maxsize=64)
def latency_by_load(scenario: str) -> LoadFigure:
    """Analytic mean latencies and throughput of a deployment (JSON without arrivals) up to 98 % of its highest rate."""
    data = json.loads(scenario)
    data["workload"]["arrivals"] = {"process": "poisson", "request_rate": 1.0}
    parsed = scenario_from(data, "what-if")
    most = max_request_rate(parsed)
    answers = [estimate(parsed, request_rate=share * most) for share in LOADS]
    speculation = data.get("speculation")
    method = speculation["method"] if speculation else "none"
    return LoadFigure(
        f"{method}, K={speculation['num_speculative_tokens']}" if speculation else "without speculation",
        method,
        np.array([answer.request_rate for answer in answers]),
        1e3 * np.array([answer.mean_ttft_s for answer in answers], dtype=np.float64),
        1e3 * np.array([answer.mean_tpot_s for answer in answers], dtype=np.float64),
        np.array([answer.output_throughput for answer in answers]),
    )


def simulated_runs(context: Context, scenario: Scenario) -> list[Json]:
    """Documents of this session's runs of the same deployment and lengths, at any load and number of requests."""
    wanted = _without_load(scenario_document(scenario))
    documents = []
    for path in sorted(context.served.session.glob(f"*/{SUMMARY_FILE}")):
        document = _document(path, path.stat().st_mtime_ns)
        if _without_load(document["scenario"]) == wanted:
            documents.append(document)
    return documents


def simulated_point(document: Json) -> SimulatedPoint:
    """Means of a run, from its ``summary.json``."""
    summary = document["summary"]
    shown = ("mean_ttft_ms", "mean_tpot_ms", "output_throughput", "completed")
    return SimulatedPoint(_rate(document), *(summary[name] for name in shown))


def estimate_sentence(answer: Estimate, rate: float) -> str:
    most = number(answer.max_request_rate, 3)
    chips = counted(answer.chips, "chip")
    if answer.saturated:
        return f"Too much: {chips} can serve at most {most} req/s; at {rate:g} queues grow as long as the load lasts."
    bound = max((name for name in answer.bottleneck if name != "idle"), key=lambda name: answer.bottleneck[name])
    return f"Holds {rate:g} of at most {most} req/s on {chips}; {bound} limits most of the engine's time."


def make_run(_context: Context, values: Values) -> tuple[Task, str]:
    """Task that simulates the scenario of the controls, and a name for its run."""
    data = what_if_scenario(values)
    name = f"{data['model']} on {data['hardware']['chip']} at {values['rate']:g}"
    return RunTask(checked_size(scenario_from(data, "what-if"), "what-if")), name


@lru_cache(maxsize=64)
def _document(path: Path, _modified_ns: int) -> Json:
    return load_summary(path.parent)


def _without_load(document: Json) -> Json:
    workload = {key: value for key, value in document["workload"].items() if key not in ("arrivals", "num_requests")}
    return {**document, "workload": workload}


def _rate(document: Json) -> float:
    return float(document["scenario"]["workload"]["arrivals"].get("request_rate") or 0.0)


def _tiles(answer: Estimate, run: Json | None, ends: Mapping[str, tuple[float, float]]) -> list[Tile]:
    """Key figures, each with the interval of its simulated run, else with the interval of a run of few requests."""
    summary = run["summary"] if run is not None else {}

    def detail(key: str, value: float | None) -> str:
        if run is not None:
            interval = run["intervals"].get(key)
            return f"simulated {number(summary[key])}{band_words(interval)}"
        interval = None if value is None or key not in ends else [value * end for end in ends[key]]
        return f"{band_words(interval).strip(', ') or 'no interval'}, not simulated yet"

    def latency(label: str, seconds: float | None, name: str) -> Tile:
        ms = None if seconds is None else seconds * 1e3
        words = detail(f"mean_{name}_ms", ms) + (f", p99 {number(summary[f'p99_{name}_ms'])} ms" if summary else "")
        return Tile(label, number(ms, 3), "ms", words)

    done = detail("output_throughput", answer.output_throughput)
    return [
        latency("Mean TTFT", answer.mean_ttft_s, "ttft"),
        latency("Mean TPOT", None if answer.saturated else answer.mean_tpot_s, "tpot"),
        latency("Mean E2E latency", answer.mean_e2e_s, "e2el"),
        Tile("Output throughput", number(answer.output_throughput), "tok/s", done),
        Tile("Highest load", number(answer.max_request_rate, 3), "req/s", counted(answer.chips, "chip")),
        Tile("Mean batch", number(answer.batch, 3), "", f"at most {answer.max_batch} per replica"),
    ]


def band_words(ends: Sequence[float] | None) -> str:
    """A 90 % interval in words; empty without one."""
    return "" if ends is None else f", {number(ends[0], 3)} to {number(ends[1], 3)} (90 %)"


PAGE = Page(
    "what-if",
    "What if",
    "Another chip, model, format, drafter or load: the analytic model answers at once, a simulated run refines it.",
    [
        *CONTROLS,
        dmc.Button("Simulate this load", id={"kind": "simulate", "page": "what-if"}, fullWidth=True, className="start"),
    ],
    [
        dcc.Store(id=output_id("what-if", ANSWERED)),
        *map(area, ("lead", "tiles")),
        job_panel,
        figure_card("load", 560, "Mean TTFT, TPOT and throughput over the load"),
        figure_card("bounds", 260, "What limits the engine at this load"),
        *map(area, ("scenario", "basis")),
    ],
    [
        View(
            compute,
            NAMES,
            ("lead", "scenario", "basis"),
            ("bounds",),
            {"done": Input(job_id("what-if", "done"), "data")},
            (ANSWERED,),
        ),
        View(
            compute_tiles,
            NAMES,
            ("tiles",),
            others={"done": Input(job_id("what-if", "done"), "data")},
            message_at=None,
        ),
        View(
            compute_load,
            figures=("load",),
            others={ANSWERED: Input(output_id("what-if", ANSWERED), "data")},
            message_at=None,
        ),
    ],
    [Start("simulate", NAMES, make_run)],
)
