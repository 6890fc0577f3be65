"""What-if: sliders answered at once by the analytic model; a simulated run in the background refines the answer."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, dcc

from dashboards.app import choices, job_panel
from dashboards.app.context import Context, Page
from dashboards.app.jobs import RunTask
from dashboards.app.parts import (
    at,
    card,
    counted,
    figure_card,
    page_frame,
    remark,
    rests_on,
    select,
    shown_when,
    slider,
    tiles,
    with_controls,
)
from dashboards.app.uploads import confined
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view, told_id
from dashboards.figures.what_if import BoundsData, LoadCurve, LoadData, SimulatedPoint, bounds_figure, load_figure
from dashboards.report_parts import ABSENT, number
from simulator.metrics.document import scenario_document
from simulator.scenario import Scenario, scenario_from
from simulator.studies.steady_state.estimate import Estimate, estimate, max_request_rate

NAME = "what-if"
RATES = (0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16)
ALPHAS = tuple(round(0.05 * step, 2) for step in range(6, 20))
REQUESTS = ("500", "2000", "10000", "50000")
LENGTH_CV = 0.8
"""Spread of prompt and output lengths: log-normal, standard deviation over mean."""
LOADS = (0.03, 0.2, 0.4, 0.6, 0.75, 0.87, 0.94, 0.98)
"""Shares of the highest rate at which a curve is evaluated."""
STEPS = {
    "rate": RATES,
    "prompt": choices.CONTEXTS[:9],
    "output": choices.CONTEXTS[:6],
    "replicas": REPLICAS,
    "k": choices.DRAFT_TOKENS,
    "alpha": ALPHAS,
}
CONTROLS = (
    *("chip", "model", "tp", "replicas", "dtype", "method", "draft", "k", "alpha", "rate", "prompt", "output"),
    "requests",
)
AREAS = ("lead", "tiles", "scenario", "basis")
ANSWERED = "answered"


def layout(params: Params, _context: Context) -> Any:
    """The page."""
    chips, models, methods = choices.chips(), choices.models(), choices.METHODS
    controls = [
        slider(NAME, "rate", "Load", RATES, params.number("rate", 0, 256, 8), "req/s"),
        slider(NAME, "prompt", "Mean prompt", STEPS["prompt"], params.number("prompt", 1, 32768, 512), "tokens"),
        slider(NAME, "output", "Mean output", STEPS["output"], params.number("output", 1, 4096, 256), "tokens"),
        select(NAME, "chip", "Chip", chips, params.choice("chip", chips, choices.DEFAULT_CHIP)),
        select(NAME, "model", "Model", models, params.choice("model", models, choices.DEFAULT_MODEL)),
        select(
            NAME, "tp", "Tensor parallel", choices.TENSOR_PARALLEL, params.choice("tp", choices.TENSOR_PARALLEL, "1")
        ),
        slider(NAME, "replicas", "Replicas", REPLICAS, params.number("replicas", 1, 16, 1)),
        select(NAME, "dtype", "Weights", choices.DTYPES, params.choice("dtype", choices.DTYPES, choices.DTYPES[0])),
        select(NAME, "method", "Speculation", methods, params.choice("method", methods, "none")),
        select(NAME, "draft", "Draft model", models, params.choice("draft", models, "llama-3.2-1b")),
        slider(NAME, "k", "Draft tokens K", choices.DRAFT_TOKENS, params.number("k", 1, 16, 3)),
        slider(NAME, "alpha", "Acceptance rate", ALPHAS, params.number("alpha", 0, 1, 0.7)),
    ]
    simulated = dmc.Group(
        [
            select(
                NAME, "requests", "Requests to simulate", REQUESTS, params.choice("requests", REQUESTS, "2000"), w=180
            ),
            dmc.Button("Simulate this load", id={"kind": "simulate", "page": NAME}),
        ],
        align="flex-end",
    )
    content = [
        dcc.Store(id=told_id(NAME, ANSWERED)),
        message_area(NAME),
        area(NAME, "lead"),
        area(NAME, "tiles"),
        card("", simulated, area(NAME, "started"), job_panel.job_panel(NAME)),
        figure_card(NAME, "load", 560, "Mean TTFT, TPOT and throughput over the load"),
        figure_card(NAME, "bounds", 260, "What limits the engine at this load"),
        area(NAME, "scenario"),
        area(NAME, "basis"),
    ]
    return page_frame(
        "What if",
        "Another chip, model, format, drafter or load: the analytic model answers at once, a simulated run refines it.",
        with_controls(controls, content),
    )


def scenario_data(values: Values) -> dict[str, Any]:
    """The scenario that the controls describe, as plain data."""

    def lengths(name: str) -> dict[str, Any]:
        return {"distribution": "lognormal", "mean": at(STEPS[name], values[name]), "cv": LENGTH_CV}

    data: dict[str, Any] = {
        "model": str(values["model"]),
        "hardware": {
            "chip": str(values["chip"]),
            "tensor_parallel": int(values["tp"]),
            "replicas": int(at(REPLICAS, values["replicas"])),
        },
        "workload": {
            "arrivals": {"process": "poisson", "request_rate": float(at(RATES, values["rate"]))},
            "input_tokens": lengths("prompt"),
            "output_tokens": lengths("output"),
            "num_requests": int(values["requests"]),
        },
    }
    if values["dtype"] != choices.DTYPES[0]:
        data["weights_dtype"] = str(values["dtype"])
    if values["method"] != "none":
        data["speculation"] = {
            "method": str(values["method"]),
            "num_speculative_tokens": int(at(choices.DRAFT_TOKENS, values["k"])),
            "acceptance": {"alpha": at(ALPHAS, values["alpha"])},
        }
        if values["method"] == "draft-model":
            data["speculation"]["draft"] = {"model": str(values["draft"])}
    return data


def compute(context: Context, values: Values) -> Shown:
    """The analytic answer, with the simulated run of the same load where there is one."""
    data = scenario_data(values)
    scenario = scenario_from(data, "what-if")
    rate = float(data["workload"]["arrivals"]["request_rate"])
    answer = estimate(scenario)
    here = next((run for run in simulated_runs(context, scenario) if _rate(run) == rate), None)
    bounds = {"analytic": answer.bottleneck}
    if here is not None and here["bottleneck"]:
        bounds["simulated"] = here["bottleneck"]
    notes = [
        *answer.notes,
        f"Arrivals are Poisson; lengths are log-normal with a spread (CV) of {LENGTH_CV:g}.",
        "The analytic model knows averages only; percentiles come from the simulated run.",
    ]
    shown = {
        "lead": remark(said(answer, rate)),
        "tiles": _tiles(answer, here),
        "scenario": _scenario(data),
        "basis": rests_on(answer.basis, notes),
        ANSWERED: {"scenario": data, "basis": answer.basis},
    }
    return shown, {"bounds": bounds_figure(BoundsData(bounds, answer.basis))}


def compute_load(context: Context, values: Values) -> Shown:
    """The curves over the load, of the deployment that was answered last."""
    if not values[ANSWERED]:
        return {}, {}
    data = confined(values[ANSWERED]["scenario"], context.served, "what-if")
    scenario = scenario_from(data, "what-if")
    plain = {key: value for key, value in data.items() if key != "speculation"}
    wanted = [data, plain] if "speculation" in data else [data]
    curves = tuple(
        load_curve(json.dumps(one | {"workload": {**data["workload"], "arrivals": None}}, sort_keys=True))
        for one in wanted
    )
    points = tuple(simulated_point(run) for run in simulated_runs(context, scenario))
    rate = float(data["workload"]["arrivals"]["request_rate"])
    return {}, {"load": load_figure(LoadData(curves, points, rate, str(values[ANSWERED]["basis"])))}


@lru_cache(maxsize=64)
def load_curve(scenario: str) -> LoadCurve:
    """The analytic means of a deployment, given as JSON without arrivals, up to close below its highest rate."""
    data = json.loads(scenario)
    data["workload"]["arrivals"] = {"process": "poisson", "request_rate": 1.0}
    parsed = scenario_from(data, "what-if")
    most = max_request_rate(parsed)
    answers = [estimate(parsed, request_rate=share * most) for share in LOADS]
    speculation = data.get("speculation")
    method = speculation["method"] if speculation else "none"
    return LoadCurve(
        f"{method}, K={speculation['num_speculative_tokens']}" if speculation else "without speculation",
        method,
        np.array([answer.request_rate for answer in answers]),
        _ms([answer.mean_ttft_s for answer in answers]),
        _ms([answer.mean_tpot_s for answer in answers]),
        np.array([answer.output_throughput for answer in answers]),
    )


def simulated_runs(context: Context, scenario: Scenario) -> list[dict[str, Any]]:
    """Documents of this session's runs of the same deployment and lengths, whatever their load and number."""
    wanted = _without_load(scenario_document(scenario))
    documents = []
    for folder in sorted(context.served.session.glob("*/summary.json")):
        document = _document(str(folder), folder.stat().st_mtime_ns)
        if _without_load(document["scenario"]) == wanted:
            documents.append(document)
    return documents


def simulated_point(document: dict[str, Any]) -> SimulatedPoint:
    """The means of a run, as in its ``summary.json``."""
    summary = document["summary"]
    return SimulatedPoint(
        _rate(document),
        summary["mean_ttft_ms"],
        summary["mean_tpot_ms"],
        summary["output_throughput"],
        summary["completed"],
    )


def said(answer: Estimate, rate: float) -> str:
    """The answer in one sentence."""
    most = number(answer.max_request_rate, 3)
    chips = counted(answer.chips, "chip")
    if answer.saturated:
        return f"Too much: {chips} can serve at most {most} req/s; at {rate:g} queues grow as long as the load lasts."
    bound = max((name for name in answer.bottleneck if name != "idle"), key=lambda name: answer.bottleneck[name])
    return f"Holds {rate:g} of at most {most} req/s on {chips}; {bound} limits most of the engine's time."


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""

    def make(given: Values) -> job_panel.Asked:
        data = scenario_data(given)
        name = f"{data['model']} on {data['hardware']['chip']} at {data['workload']['arrivals']['request_rate']:g}"
        return RunTask(scenario_from(data, "what-if")), name

    others = {"done": Input(job_panel.job_id(NAME, "done"), "data")}
    shown_when(app, NAME, "draft", "method", lambda method: method == "draft-model")
    for name in ("k", "alpha"):
        shown_when(app, NAME, name, "method", lambda method: method != "none")
    register_view(app, NAME, CONTROLS, AREAS, ("bounds",), partial(compute, context), others, tells=(ANSWERED,))
    answered = {ANSWERED: Input(told_id(NAME, ANSWERED), "data")}
    register_view(app, NAME, (), (), ("load",), partial(compute_load, context), answered, message_at=None)
    job_panel.register_start(app, context, NAME, "simulate", CONTROLS, make)


@lru_cache(maxsize=64)
def _document(path: str, _modified_ns: int) -> dict[str, Any]:
    with open(path, encoding="utf-8") as stream:
        document: dict[str, Any] = json.load(stream)
    return document


def _without_load(document: dict[str, Any]) -> dict[str, Any]:
    workload = {key: value for key, value in document["workload"].items() if key not in ("arrivals", "num_requests")}
    return {**document, "workload": workload}


def _rate(document: dict[str, Any]) -> float:
    return float(document["scenario"]["workload"]["arrivals"].get("request_rate") or 0.0)


def _ms(seconds: list[float | None]) -> Any:
    return np.array([np.nan if value is None else value * 1e3 for value in seconds])


def _tiles(answer: Estimate, run: dict[str, Any] | None) -> Any:
    summary = run["summary"] if run is not None else {}

    def latency(label: str, seconds: float | None, name: str) -> tuple[str, str, str, str]:
        detail = "not simulated yet"
        if summary:
            detail = f"simulated {number(summary[f'mean_{name}_ms'])}, p99 {number(summary[f'p99_{name}_ms'])} ms"
        return label, ABSENT if seconds is None else number(seconds * 1e3, 3), "ms", detail

    done = f"simulated {number(summary['output_throughput'])}" if summary else "not simulated yet"
    return tiles(
        [
            latency("Mean TTFT", answer.mean_ttft_s, "ttft"),
            latency("Mean TPOT", None if answer.saturated else answer.mean_tpot_s, "tpot"),
            latency("Mean E2E latency", answer.mean_e2e_s, "e2el"),
            ("Output throughput", number(answer.output_throughput), "tok/s", done),
            ("Highest load", number(answer.max_request_rate, 3), "req/s", counted(answer.chips, "chip")),
            ("Mean batch", number(answer.batch, 3), "", f"at most {answer.max_batch} per replica"),
        ]
    )


def _scenario(data: dict[str, Any]) -> Any:
    import yaml

    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=100)
    return card(
        "Scenario",
        dmc.Group([dmc.CopyButton(value=text, children="Copy", size="compact-xs")], justify="flex-end"),
        dmc.Code(text, block=True, className="flags"),
    )


PAGE = Page("/what-if", "What if", layout, register, STEPS)
