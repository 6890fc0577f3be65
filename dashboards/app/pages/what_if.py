"""Page of what-if questions: the analytic model answers at every slider move. A simulated run in the background refines
the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import isnan
from pathlib import Path

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, no_update

from dashboards.app import controls, parts
from dashboards.app.controls import ChoiceField, Number, Several, Values, state_id
from dashboards.app.job_panel import job_id, job_panel
from dashboards.app.jobs import RunTask, Task
from dashboards.app.messages import sentence
from dashboards.app.page import Context, Page, Shown, Start, View
from dashboards.app.parts import area, counted, figure_card, output_id, panel, remark, rests_on, tiles
from dashboards.app.served import SESSION
from dashboards.app.uploads import MOST_RESULTS, checked_size, keep_results, pinned
from dashboards.figures.load import AFTER, BEFORE, METRICS, LoadData, LoadFigure, SimulatedPoint, load_figure
from dashboards.figures.run import BottleneckData, bottleneck_figure
from dashboards.page import Tile, scenario_yaml
from forerun.document import Json
from forerun.errors import ForerunError
from forerun.tables import number
from simulator.running.metrics.document import scenario_document
from simulator.running.metrics.run_folder import SUMMARY_FILE, load_summary
from simulator.running.scenario import scenario_from
from simulator.studies.steady_state.estimate import Estimate, estimate
from simulator.studies.steady_state.ranges import fan_ends, few_requests, ranged_curve, ranged_estimate

RATES = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16)
ALPHAS = tuple(round(0.05 * step, 2) for step in range(6, 20))
LOADS = (0.03, 0.2, 0.4, 0.6, 0.75, 0.87, 0.94, 0.98)
"""Request rates at which a curve is evaluated, as shares of the highest rate."""
RANGED = (0.03, 0.4, 0.87, 0.98)
"""Loads with simulated intervals; those of loads in between are interpolated."""
ANSWERED = "answered"
RESULTS = "measured"


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
MEASURED = Several(
    RESULTS,
    "Measured results",
    (RESULTS, bool),
    options=lambda served: list(served.results()),
    defaults=lambda served: [label for label in served.results() if not label.startswith(SESSION)],
    least=0,
    most=MOST_RESULTS,
)
FIELDS = {control.name: control for control in (*CONTROLS, MEASURED)}
NAMES = tuple(FIELDS)


def what_if_scenario(values: Values) -> Json:
    """Scenario data for the values of the controls."""
    data = controls.deployment(values, workload=controls.poisson_workload(values, values["rate"], values["requests"]))
    data["hardware"]["replicas"] = values["replicas"]
    if draft_options(values["method"]):
        data["speculation"] = controls.speculation_of(values, values["k"], {"alpha": values["alpha"]})
    return data


def deployed(data: Json) -> Json:
    return {name: section for name, section in data.items() if name not in ("workload", RESULTS)}


def with_results(context: Context, values: Values) -> tuple[Json, str]:
    """Scenario data with the chosen benchmark results; without them, and the reason, if they are no evidence.

    Results count as those of the deployment for which they were dropped, or first shown.
    """
    data, labels, served = what_if_scenario(values), values.get(RESULTS), context.served
    if not labels:
        return data, ""
    known, own = pinned(served), deployed(data)
    of, *others = (known.get(label, own) for label in labels)
    full = data | {RESULTS: {"files": [str(served.results()[label]) for label in labels], "deployment": of}}
    try:
        if any(other != of for other in others):
            raise ForerunError(f"{MEASURED.label}: these are of different deployments; remove those of all but one")
        few_requests(full, float(values["rate"]))
    except ForerunError as error:
        return data, sentence(error)
    pinned(served, {label: of for label in labels if label not in known})
    return full, ""


def compute(context: Context, values: Values) -> Shown:
    """The analytic answer, with the simulated run of the same load if there is one."""
    rate, (data, _) = float(values["rate"]), with_results(context, values)
    answer = ranged_estimate(data, rate).answer if RESULTS in data else estimate(scenario_from(data, "what-if"))
    here = next((run for run in simulated_runs(context, data) if _rate(run) == rate), None)
    bounds = {"analytic": answer.bottleneck}
    if here is not None and here["bottleneck"]:
        bounds["simulated"] = here["bottleneck"]
    notes = [
        *answer.notes,
        f"Arrivals are Poisson; lengths are log-normal with a spread (CV) of {controls.LENGTH_CV:g}.",
        "The analytic model knows averages only; percentiles come from the simulated run.",
    ]
    named = {RESULTS: [Path(file).name for file in data[RESULTS]["files"]]} if RESULTS in data else {}
    text = scenario_yaml(data | named)
    copy = dmc.CopyButton(value=text, children="Copy", copiedChildren="Copied", size="compact-xs")
    return {
        "lead": remark(estimate_sentence(answer, rate)),
        "scenario": panel(
            "Scenario", dmc.Group([copy], justify="flex-end"), dmc.Code(text, block=True, className="flags")
        ),
        "basis": rests_on(answer.basis, notes),
        ANSWERED: {name: values.get(name) for name in NAMES},
        "bounds": bottleneck_figure(BottleneckData(bounds, answer.basis)),
    }


def compute_tiles(context: Context, values: Values) -> Shown:
    """Key figures with their intervals, which come from a simulation of a few requests, and what was measured."""
    rate, (data, complaint) = float(values["rate"]), with_results(context, values)
    here = next((run for run in simulated_runs(context, data) if _rate(run) == rate), None)
    answer, factors, learnt, notes = ranged_estimate(data, rate)
    if RESULTS in data and not learnt:
        of = data[RESULTS]["deployment"]
        chips = f"{of['hardware']['tensor_parallel']} x {of['hardware']['chip']}"
        notes = [f"The results are of {of['model']} on {chips}; this deployment is another, and was not measured."]
    words = parts.message(complaint) if complaint else [remark(note) for note in notes]
    return {"tiles": tiles(_tiles(answer, here, {} if answer.saturated else factors)), "learnt": words}


def compute_load(context: Context, values: Values) -> Shown:
    """Curves over the load for the deployment of the latest answer, with intervals, before and after measuring."""
    if not values[ANSWERED]:
        return {}
    # What was answered comes back from the browser, which may say anything.
    answers = controls.checked_fields(FIELDS, {name: values[ANSWERED].get(name) for name in NAMES}, context.served)
    rate, (data, _) = float(answers["rate"]), with_results(context, answers)
    here = ranged_estimate(data, rate)
    curves = [latency_by_load(data, AFTER if here.learnt else "")]
    if "speculation" in data:
        curves.append(latency_by_load(data | {"speculation": None, RESULTS: None}, ranged=False))
    if here.learnt:
        curves.append(latency_by_load(what_if_scenario(answers), BEFORE))
    points = tuple(simulated_point(run) for run in simulated_runs(context, data))
    limits = {f"{name}_ms": float(answers[name]) for name in ("ttft", "tpot")}
    most = here.answer.max_request_rate
    return {"load": load_figure(LoadData(tuple(curves), points, rate, here.answer.basis, most, limits))}


def latency_by_load(data: Json, when: str = "", ranged: bool = True) -> LoadFigure:
    """Analytic mean latencies and throughput of a deployment up to 98 % of its highest rate, with their intervals."""
    rates, means = ranged_curve(data, LOADS, RANGED if ranged else ())
    speculation = data.get("speculation")
    method = speculation["method"] if speculation else "none"
    name = f"{method}, K={speculation['num_speculative_tokens']}" if speculation else "without speculation"
    ttft, tpot, done = means["mean_ttft_s"] * 1e3, means["mean_tpot_s"] * 1e3, means["output_throughput"]
    ends = {field: table[1:].T for field, table in zip(METRICS, (ttft, tpot, done), strict=True)} if ranged else {}
    return LoadFigure(f"{name}{when}", method, rates, ttft[0], tpot[0], done[0], ends, when)


def simulated_runs(context: Context, data: Json) -> list[Json]:
    """Documents of this session's runs of the same deployment and lengths, at any load and number of requests."""
    wanted = _without_load(scenario_document(scenario_from(data, "what-if")))
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


def make_run(context: Context, values: Values) -> tuple[Task, str]:
    """Task that simulates the scenario of the controls, and a name for its run."""
    data, _ = with_results(context, values)
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


def _tiles(answer: Estimate, run: Json | None, factors: Mapping[str, Sequence[float]]) -> list[Tile]:
    """Key figures, each with the intervals of its simulated run, else with those of a run of few requests."""
    summary = run["summary"] if run is not None else {}

    def detail(key: str, value: float | None) -> str:
        if run is not None:
            return f"simulated {number(summary[key])}{band_words(fan_ends(run, key))}"
        ends = [] if value is None else [value * factor for factor in factors.get(key, ())]
        return f"{band_words(ends).strip(', ') or 'no interval'}, not simulated yet"

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


def band_words(ends: Sequence[float]) -> str:
    """Intervals in words, from ``fan_ends``; empty without any."""
    levels = {"likely": ends[1:3], "nine in ten": ends[::3]} if ends else {}
    known = ((name, low, high) for name, (low, high) in levels.items() if not isnan(low))
    return "".join(f", {name} {number(low, 3)}..{number(high, 3)}" for name, low, high in known)


def take_results(app: Dash, context: Context) -> None:
    """Register the callback that keeps dropped benchmark results and chooses them beside those that are chosen."""

    def take(sent: Json | None, *values: object) -> tuple[object, object, object]:
        if not sent:
            return no_update, no_update, no_update
        try:
            served = context.served
            checked = controls.checked_fields(FIELDS, dict(zip(NAMES, values, strict=True)), served)
            data, _ = with_results(context, checked)
            chosen = {"files": [], "deployment": deployed(data)} | data.get(RESULTS, {})
            if chosen["deployment"] != deployed(data):
                raise ForerunError(f"{MEASURED.label}: those here are of another deployment; remove them first")
            labels = keep_results(sent["files"], data | {RESULTS: chosen}, served)
            pinned(served, dict.fromkeys(labels, chosen["deployment"]))
        except Exception as error:
            return parts.message(sentence(error)), no_update, no_update
        return None, list(served.results()), list(dict.fromkeys([*checked[RESULTS], *labels]))

    app.callback(
        Output(parts.area_id("what-if", parts.UPLOADED), "children", allow_duplicate=True),
        Output(state_id("what-if", RESULTS), "data"),
        Output(state_id("what-if", RESULTS), "value"),
        Input(output_id("what-if", parts.UPLOADED), "data"),
        *(State(state_id("what-if", name), "value") for name in NAMES),
        prevent_initial_call=True,
    )(take)


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
        parts.message_area(parts.UPLOADED),
        *map(area, ("lead", "tiles", "learnt")),
        lambda page: parts.upload(page, "A benchmark result of yours: choose it, or drop it here", MOST_RESULTS),
        MEASURED,
        job_panel,
        figure_card("load", 680, "Mean TTFT, TPOT and throughput over the load"),
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
            ("tiles", "learnt"),
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
    more=take_results,
)
