"""Run explorer: one run in all its figures, a second beside it, and scenarios of one's own."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import dash_mantine_components as dmc
import numpy as np
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, dcc, no_update

from dashboards.app import job_panel
from dashboards.app.context import Context, Page
from dashboards.app.jobs import RunTask
from dashboards.app.messages import sentence
from dashboards.app.parts import (
    area_id,
    card,
    columns,
    figure_card,
    message,
    page_frame,
    remark,
    rests_on,
    select,
    state_id,
    table,
    tiles,
    with_controls,
)
from dashboards.app.uploads import LARGEST_UPLOAD_BYTES, uploaded_scenario, uploaded_text
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view
from dashboards.figures.bottleneck import bottleneck_data, bottleneck_figure
from dashboards.figures.bound_time import bound_time_data, bound_time_figure
from dashboards.figures.latency import latency_data, latency_figure
from dashboards.figures.run_pair import ComparisonData, change_figure, comparison_data, curves_figure
from dashboards.figures.timeline import BINS, spans_of, timeline_data, timeline_figure
from dashboards.figures.waterfall import slowest, waterfall_data, waterfall_figure
from dashboards.report import report_html
from dashboards.report_parts import ABSENT, LATENCY_NAMES, STATISTICS, lead_sentence, number, percent
from simulator.errors import ForerunError
from simulator.metrics.run_folder import Run

NAME = "runs"
NOTHING = "none"
LATENCIES = ("ttft", "tpot", "e2el")
AREAS = ("lead", "tiles", "latencies", "notes")
STEP_FIGURES = ("timeline", "bounds")
REQUEST_FIGURES = ("latency", "waterfall")
PAIR_FIGURES = ("change", "curves")
NEIGHBOURS = 24
"""Requests shown around a chosen one."""


def layout(params: Params, context: Context) -> Any:
    """The page."""
    runs = list(context.served.runs())
    asked = params.whole("request", 0, 10**9, -1)
    controls = [
        select(
            NAME,
            "run",
            "Run",
            runs,
            params.choice_or_none("run", runs, runs[0] if runs else None),
            placeholder="no run in the served folders",
        ),
        dmc.NumberInput(
            id=state_id(NAME, "request"),
            label="Single request",
            description="its number in order of arrival; else the longest TTFT",
            value=asked if asked >= 0 else "",
            min=0,
            allowDecimal=False,
            size="sm",
        ),
        select(NAME, "beside", "Compare with", [NOTHING, *runs], params.choice("beside", [NOTHING, *runs], NOTHING)),
        select(NAME, "latency", "Latency compared", LATENCIES, params.choice("latency", LATENCIES, "ttft")),
        dmc.Button("Save the whole report", id={"kind": "report", "page": NAME}, variant="default", size="sm"),
        dcc.Download(id={"kind": "report-file", "page": NAME}),
        dmc.Divider(),
        dmc.Text("Run a scenario of your own", size="sm", fw=500),
        dcc.Upload(
            dmc.Button("Upload a scenario", variant="light", size="sm", fullWidth=True),
            id={"kind": "upload", "page": NAME},
            accept=".yaml,.yml,.json",
            max_size=LARGEST_UPLOAD_BYTES,
        ),
        area(NAME, "uploaded"),
        job_panel.job_panel(NAME),
    ]
    content = [
        message_area(NAME),
        area(NAME, "lead"),
        area(NAME, "tiles"),
        figure_card(NAME, "bottleneck", 230, "What limits the engine, as shares of its time"),
        area(NAME, "latencies"),
        figure_card(NAME, "timeline", 620, "Batch, queue, KV use and output rate over time"),
        columns(
            figure_card(NAME, "latency", 480, "Distribution of TTFT, TPOT and end-to-end latency"),
            figure_card(NAME, "waterfall", 480, "Phases of single requests"),
        ),
        message_area(NAME, "no-request"),
        area(NAME, "request"),
        message_area(NAME, "no-steps"),
        figure_card(NAME, "bounds", 420, "What limits the engine over time"),
        message_area(NAME, "no-pair"),
        columns(
            figure_card(NAME, "change", 420, "Change from one run to the other"),
            figure_card(NAME, "curves", 420, "Latency in both runs"),
        ),
        area(NAME, "changes"),
        area(NAME, "notes"),
    ]
    return page_frame(
        "Run explorer",
        "What happened in a simulated run, and what another run did differently.",
        with_controls(controls, content),
    )


def compute(context: Context, values: Values) -> Shown:
    """What the summary of the chosen run says; the records are for the other views, which may take longer."""
    if not values["run"]:
        raise ForerunError("There is no run here yet: forerun run SCENARIO --out DIR makes one, or upload a scenario.")
    run = context.served.run(str(values["run"]))
    document = run.document
    shown: dict[str, Any] = {
        "lead": remark(f"{run.name}: {lead_sentence(document)}"),
        "tiles": _tiles(document),
        "latencies": card("Latency (ms)", _latencies(document)),
        "notes": rests_on(
            run.basis,
            [
                *document.get("notes", ()),
                f"Forerun {document.get('version')}, seed {document.get('seed')}; a prediction, not a measurement.",
            ],
        ),
    }
    bottleneck = bottleneck_data(run)
    return shown, {"bottleneck": bottleneck_figure(bottleneck) if bottleneck.shares else None}


def compute_steps(context: Context, values: Values) -> Shown:
    """The engine steps of the chosen run over time."""
    return ({}, _step_figures(context.served.run(str(values["run"])))) if values["run"] else ({}, {})


def compute_requests(context: Context, values: Values) -> Shown:
    """The requests of the chosen run: their latencies, and a few of them one by one."""
    if not values["run"]:
        return {}, {}
    run = context.served.run(str(values["run"]))
    asked, count = values["request"], len(run.requests["arrival_s"])
    around = int(asked) if isinstance(asked, int | float) and asked >= 0 else slowest(run)
    if around is not None and around >= count:
        raise ForerunError(f"request: this run has {count:,} requests, numbered from 0")
    waterfall = waterfall_data(run, NEIGHBOURS, around)
    figures = {
        "latency": _latency_figure(run),
        "waterfall": waterfall_figure(waterfall) if len(waterfall.row) else None,
    }
    return {"request": None if around is None else _request(run, around)}, figures


def compute_pair(context: Context, values: Values) -> Shown:
    """The chosen run and the one beside it."""
    if not values["run"] or values["beside"] in (None, NOTHING):
        return {}, {}
    names = (str(values["run"]), str(values["beside"]))
    first, second = (context.served.run(name) for name in names)
    data = comparison_data(first, second, names, str(values["latency"]))
    return {"changes": card("Both runs", _changes(data))}, {
        "change": change_figure(data),
        "curves": curves_figure(data),
    }


@lru_cache(maxsize=8)
def _step_figures(run: Run) -> dict[str, go.Figure]:
    """Figures of the engine steps, which take seconds where there are millions of them."""
    spans = spans_of(run, BINS)
    if spans is None:
        return {}
    return {
        "timeline": timeline_figure(timeline_data(run, spans=spans)),
        "bounds": bound_time_figure(bound_time_data(run, spans=spans)),
    }


@lru_cache(maxsize=8)
def _latency_figure(run: Run) -> go.Figure | None:
    latency = latency_data(run)
    return latency_figure(latency) if latency.curves else None


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""

    def take_upload(contents: str | None, name: str | None) -> tuple[Any, Any]:
        if not contents:
            return no_update, no_update
        try:
            scenario = uploaded_scenario(uploaded_text(contents), name or "scenario", context.served)
            token = context.jobs.start(RunTask(scenario), (name or "scenario").rpartition(".")[0] or "scenario")
        except Exception as error:
            return message(sentence(error)), no_update
        return dmc.Text(f"{name}: accepted, simulating.", size="sm", c="dimmed"), token

    def show_finished(label: str | None, before: str | None) -> tuple[Any, ...]:
        runs = list(context.served.runs())
        if not label or label not in runs:
            return no_update, no_update, no_update, no_update
        beside = [NOTHING, *runs]
        return runs, label, beside, before if before in runs and before != label else NOTHING

    def save_report(clicks: int | None, label: str | None) -> Any:
        if not clicks or label not in context.served.runs():
            return no_update
        name = label.replace("/", "-").replace(" ", "-")
        return {"content": report_html(context.served.run(label)), "filename": f"{name}.html", "type": "text/html"}

    register_view(app, NAME, ("run",), AREAS, ("bottleneck",), partial(compute, context))
    register_view(
        app,
        NAME,
        ("run", "request"),
        ("request",),
        REQUEST_FIGURES,
        partial(compute_requests, context),
        message_at="no-request",
    )
    register_view(app, NAME, ("run",), (), STEP_FIGURES, partial(compute_steps, context), message_at="no-steps")
    register_view(
        app,
        NAME,
        ("run", "beside", "latency"),
        ("changes",),
        PAIR_FIGURES,
        partial(compute_pair, context),
        message_at="no-pair",
    )
    app.callback(
        Output(area_id(NAME, "uploaded"), "children"),
        Output(job_panel.job_id(NAME, "token"), "data"),
        Input({"kind": "upload", "page": NAME}, "contents"),
        State({"kind": "upload", "page": NAME}, "filename"),
        prevent_initial_call=True,
    )(take_upload)
    app.callback(
        Output(state_id(NAME, "run"), "data"),
        Output(state_id(NAME, "run"), "value"),
        Output(state_id(NAME, "beside"), "data"),
        Output(state_id(NAME, "beside"), "value"),
        Input(job_panel.job_id(NAME, "done"), "data"),
        State(state_id(NAME, "run"), "value"),
        prevent_initial_call=True,
    )(show_finished)
    app.callback(
        Output({"kind": "report-file", "page": NAME}, "data"),
        Input({"kind": "report", "page": NAME}, "n_clicks"),
        State(state_id(NAME, "run"), "value"),
        prevent_initial_call=True,
    )(save_report)


def _tiles(document: dict[str, Any]) -> Any:
    summary, kv = document["summary"], document["kv_cache"]
    rows = [
        (
            "Output throughput",
            number(summary["output_throughput"]),
            "tok/s",
            f"{number(summary['request_throughput'])} req/s",
        ),
        *(
            (
                f"p99 {short}",
                number(summary[f"p99_{name}_ms"]),
                "ms",
                f"median {number(summary[f'median_{name}_ms'])} ms",
            )
            for name, short in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E latency"))
        ),
        ("KV cache peak", percent(kv.get("peak_use")), "", f"of {number(kv.get('num_blocks'))} blocks"),
    ]
    cost = document.get("usd_per_million_output_tokens")
    if cost is not None:
        rows.append(("Cost", f"${number(cost, 3)}", "", "per million output tokens"))
    else:
        rows.append(("Bandwidth used", percent(document["utilisation"]["mbu"]), "", "MBU"))
    length = summary.get("spec_decode_acceptance_length")
    if length is not None:
        rate = summary.get("spec_decode_acceptance_rate")
        rows.append(("Acceptance length", number(length, 3), "tokens/step", f"rate {number(rate, 3)} %"))
    hits = kv.get("prefix_hit_rate")
    if hits is not None:
        rows.append(("Prefix cache hits", percent(hits), "", "of the prompt tokens"))
    return tiles(rows)


def _latencies(document: dict[str, Any]) -> Any:
    summary = document["summary"]
    rows = [
        (short, *(number(summary.get(f"{statistic}_{name}_ms")) for statistic in STATISTICS))
        for name, (short, _) in LATENCY_NAMES.items()
        if summary.get(f"mean_{name}_ms") is not None
    ]
    return table(("", *STATISTICS), rows)


def _request(run: Run, row: int) -> Any:
    """What happened to one request."""
    values = {name: float(column[row]) for name, column in run.requests.items()}

    def since(name: str) -> str:
        seconds = values[name] - values["arrival_s"]
        return f"{number(seconds * 1e3)} ms after arrival" if np.isfinite(seconds) else ABSENT

    def ms(name: str) -> str:
        return f"{number(values[name])} ms" if np.isfinite(values[name]) else ABSENT

    rows = [
        ("arrived", f"{number(values['arrival_s'])} s"),
        ("prompt", f"{values['input_tokens']:,.0f} tokens"),
        ("output", f"{values['output_tokens']:,.0f} tokens"),
        ("first scheduled", since("scheduled_s")),
        ("first token (TTFT)", ms("ttft_ms")),
        ("time per output token (TPOT)", ms("tpot_ms")),
        ("finished (E2E latency)", ms("e2el_ms")),
        ("preemptions", f"{values['preemptions']:.0f}"),
    ]
    return card(f"Request {row}", table(("", ""), rows))


def _changes(data: ComparisonData) -> Any:
    rows = [
        (change.label, number(change.first), number(change.second), f"{change.percent:+.1f} %")
        for change in data.changes
    ]
    return table(("", *data.names, "change"), rows)


PAGE = Page("/runs", "Run explorer", layout, register)
