"""Runs page: all figures of one run, comparisons with other runs, and scenarios uploaded by the user."""

from __future__ import annotations

from functools import lru_cache

import dash_mantine_components as dmc
import numpy as np
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, dcc, no_update

from dashboards.app import parts
from dashboards.app.controls import ChoiceField, Component, Number, Several, Values, state_id
from dashboards.app.job_panel import job_id, job_panel, job_part
from dashboards.app.messages import sentence
from dashboards.app.page import Context, Page, Shown, View
from dashboards.app.served import ServedFolders
from dashboards.app.uploads import UploadTask, uploaded_text
from dashboards.figures import run as of_run
from dashboards.figures.run import ComparisonData
from dashboards.report import report_html, run_tiles
from forerun.document import Json
from forerun.errors import ForerunError
from forerun.tables import ABSENT, Table, Value, number, pairs
from simulator.running.metrics.run_folder import RunFolder
from simulator.running.metrics.tables import more_run_tables, run_tables

NAME = "runs"
MOST_OTHERS = 17
MOST_RUNS_SHOWN = 100
"""Maximum runs of the served folders that are points of a figure."""
NEIGHBOURS = 24
"""Number of requests shown around a chosen request."""


def buttons(page: str) -> Component:
    """Button that saves the report of the run, and upload of a user's scenario."""
    return dmc.Stack(
        [
            dmc.Button("Save the report", id={"kind": "report", "page": page}, variant="default", size="sm"),
            dcc.Download(id={"kind": "report-file", "page": page}),
            dmc.Divider(label="Run a scenario of your own"),
            parts.upload(page, "Choose a scenario, or drop it here"),
        ],
        gap="sm",
    )


def compute(context: Context, values: Values) -> Shown:
    """Figures of the chosen run's summary; further views read the run's records, which may take longer."""
    if not values["run"]:
        words = "There is no run here yet: forerun run SCENARIO --out DIR makes one, or upload a scenario."
        return {"lead": parts.remark(words), "notes": parts.rests_on(None)}
    run = context.served.run(values["run"])
    document = run.document
    made = f"Forerun {document.get('version')}, seed {document.get('seed')}; a prediction, not a measurement."
    bottleneck = of_run.bottleneck_data(run)
    return {
        "lead": parts.remark(f"{run.name}: {document.get('conclusion', '')}"),
        "tiles": parts.tiles(run_tiles(document)),
        "tables": parts.table_stack((*run_tables(document), *more_run_tables(document))),
        "notes": parts.rests_on(run.basis, [*document.get("notes", ()), made]),
        "bottleneck": of_run.bottleneck_figure(bottleneck) if bottleneck.rows else None,
    }


def compute_steps(context: Context, values: Values) -> Shown:
    return _step_figures(context.served.run(values["run"])) if values["run"] else {}


def compute_requests(context: Context, values: Values) -> Shown:
    """Figures of the requests of the chosen run: latency distributions, and a few requests one by one."""
    if not values["run"]:
        return {}
    run = context.served.run(values["run"])
    count = len(run.requests["arrival_s"])
    around = of_run.slowest(run) if values["request"] is None else values["request"]
    if around is not None and around >= count:
        raise ForerunError(f"request: this run has {count:,} requests, numbered from 0")
    waterfall = of_run.waterfall_data(run, NEIGHBOURS, around)
    return {
        "request": None if around is None else parts.table_panel(request_table(run, around)),
        "latency": _latency_figure(run),
        "waterfall": of_run.waterfall_figure(waterfall) if len(waterfall.row) else None,
    }


def compute_comparison(context: Context, values: Values) -> Shown:
    names = dict.fromkeys((values["run"], *values["others"]))
    if len(names) < 2:
        return {}
    data = of_run.comparison_data({name: context.served.run(name) for name in names}, values["latency"])
    table = parts.table_panel(comparison_table(data))
    return {"changes": table, "change": of_run.change_figure(data), "curves": of_run.curves_figure(data)}


def columns_of(served: ServedFolders) -> list[str]:
    """Columns to choose as axes: those of the first run."""
    label = next(iter(served.runs()), None)
    return [] if label is None else of_run.column_names(served.run(label))


def compute_columns(context: Context, values: Values) -> Shown:
    """Any two columns of the run's requests, or of all runs, against each other."""
    if not values["run"]:
        return {}
    served, axes = context.served, (values["across"], values["up"])
    alone = not any(axis.startswith(of_run.OF_RUNS) for axis in axes)
    names = (values["run"], *values["others"]) if alone else list(served.runs())[:MOST_RUNS_SHOWN]
    return {"columns": of_run.columns_figure({name: served.run(name) for name in names}, *axes)}


@lru_cache(maxsize=8)
def _step_figures(run: RunFolder) -> dict[str, go.Figure]:
    """Figures of the engine steps; reading millions of steps takes seconds."""
    spans = of_run.request_spans(run, of_run.BINS)
    if spans is None:
        return {}
    return {
        "timeline": of_run.timeline_figure(of_run.timeline_data(run, spans=spans)),
        "bounds": of_run.bound_time_figure(of_run.bound_time_data(run, spans=spans)),
    }


@lru_cache(maxsize=8)
def _latency_figure(run: RunFolder) -> go.Figure | None:
    latency = of_run.latency_data(run)
    return of_run.latency_figure(latency) if latency.curves else None


def request_table(run: RunFolder, row: int) -> Table:
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
    return pairs(f"Request {row}", rows)


def comparison_table(data: ComparisonData) -> Table:
    """Table of every metric in every run, and the change of each later run from the first."""
    header = ["", data.names[0]]
    for name in data.names[1:]:
        header += [name, "change"]
    rows = []
    for metric in data.metrics:
        row: list[Value] = [metric.label, metric.values[0]]
        for value, percent in zip(metric.values[1:], metric.percents, strict=True):
            row += [value, of_run.change_words(percent)]
        rows.append(row)
    return Table(f"Compared with {data.names[0]}", header, rows)


def run_details(app: Dash, context: Context) -> None:
    """Register callbacks for uploads, for the selection of the finished run, and for saving the report of a run."""

    def take_upload(sent: Json | None) -> tuple[object, object]:
        if not sent:
            return no_update, no_update
        try:
            (one,), served = sent["files"], context.served
            file = one["name"]
            task = UploadTask(uploaded_text(one["contents"], file), file, served)
            token = context.jobs.start(task, file.rpartition(".")[0] or "scenario", served.session)
        except Exception as error:
            return parts.message(sentence(error)), no_update
        return dmc.Text(f"{file}: taken, reading and simulating it.", size="sm", className="muted"), token

    def show_finished(done: dict[str, str | None] | None, before: str | None) -> tuple[object, ...]:
        label = job_part(done, "label")
        runs = list(context.served.runs())
        if not label or label not in runs:
            return no_update, no_update, no_update, no_update, no_update
        return runs, label, runs, [before] if before in runs and before != label else [], None

    def save_report(clicks: int | None, label: str | None) -> object:
        served = context.served
        if not clicks or label not in served.runs():
            return no_update
        name = label.replace("/", "-").replace(" ", "-")
        return {"content": report_html(served.run(label)), "filename": f"{name}.html", "type": "text/html"}

    app.callback(
        Output(parts.area_id(NAME, parts.UPLOADED), "children", allow_duplicate=True),
        Output(job_id(NAME, "token"), "data"),
        Input(parts.output_id(NAME, parts.UPLOADED), "data"),
        prevent_initial_call=True,
    )(take_upload)
    app.callback(
        Output(state_id(NAME, "run"), "data"),
        Output(state_id(NAME, "run"), "value"),
        Output(state_id(NAME, "others"), "data"),
        Output(state_id(NAME, "others"), "value"),
        Output(parts.area_id(NAME, parts.UPLOADED), "children", allow_duplicate=True),
        Input(job_id(NAME, "done"), "data"),
        State(state_id(NAME, "run"), "value"),
        prevent_initial_call=True,
    )(show_finished)
    app.callback(
        Output({"kind": "report-file", "page": NAME}, "data"),
        Input({"kind": "report", "page": NAME}, "n_clicks"),
        State(state_id(NAME, "run"), "value"),
        prevent_initial_call=True,
    )(save_report)


PAGE = Page(
    NAME,
    "Runs",
    "What happened in a simulated run, and what other runs did differently.",
    [
        ChoiceField(
            "run", "Run", options=lambda served: list(served.runs()), placeholder="no run in the served folders"
        ),
        Number("request", "Single request", high=1e8, says="its number in order of arrival; else the longest TTFT"),
        Several("others", "Compare with", options=lambda served: list(served.runs()), least=0, most=MOST_OTHERS),
        ChoiceField("latency", "Latency compared", options=("ttft", "tpot", "e2el")),
        ChoiceField("across", "Any column across", options=columns_of, default="input_tokens"),
        ChoiceField("up", "Any column up", options=columns_of, default="ttft_ms"),
        buttons,
    ],
    [
        parts.message_area(parts.UPLOADED),
        job_panel,
        *map(parts.area, ("lead", "tiles")),
        parts.figure_card("bottleneck", 230, "What limits the engine, as shares of its time"),
        parts.figure_card("timeline", 620, "Batch, queue, KV use and output rate over time"),
        parts.side_by_side(
            parts.figure_card("latency", 480, "Distribution of TTFT, TPOT and end-to-end latency"),
            parts.figure_card("waterfall", 480, "Phases of single requests"),
        ),
        parts.message_area("no-request"),
        parts.area("request"),
        parts.message_area("no-steps"),
        parts.figure_card("bounds", 420, "What limits the engine over time"),
        parts.message_area("no-others"),
        parts.side_by_side(
            parts.figure_card("change", 420, "Change from the run to each other one"),
            parts.figure_card("curves", 420, "Latency in every run"),
        ),
        parts.message_area("no-columns"),
        parts.figure_card("columns", 460, "One column over another, a point for each request or run"),
        *map(parts.area, ("changes", "tables", "notes")),
    ],
    [
        View(compute, ("run",), ("lead", "tiles", "tables", "notes"), ("bottleneck",)),
        View(compute_requests, ("run", "request"), ("request",), ("latency", "waterfall"), message_at="no-request"),
        View(compute_steps, ("run",), figures=("timeline", "bounds"), message_at="no-steps"),
        View(
            compute_comparison,
            ("run", "others", "latency"),
            ("changes",),
            ("change", "curves"),
            message_at="no-others",
        ),
        View(compute_columns, ("run", "others", "across", "up"), figures=("columns",), message_at="no-columns"),
    ],
    more=run_details,
)
