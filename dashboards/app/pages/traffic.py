"""Traffic page: arrivals and lengths of a request log, and links from the log to a capacity plan."""

from __future__ import annotations

import shlex
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, no_update

from dashboards.app import parts
from dashboards.app.controls import COLUMNS, ChoiceField, Component, Values, state_id
from dashboards.app.messages import sentence
from dashboards.app.page import Context, Page, Shown, View
from dashboards.app.uploads import MOST_REQUESTS, keep_log
from dashboards.figures.load import traffic_data, traffic_figure
from forerun.document import Json
from forerun.errors import ForerunError
from forerun.tables import duration, number
from simulator.workload.workload_tables import statistics_tables
from traces import RequestStatistics, RequestTable, TraceError, describe_requests, read_requests
from traces.requests.detect import open_trace

NAME = "traffic"
GIVEN = "log"
SLO = ("p99_ttft_ms=1000", "p99_tpot_ms=30")
"""SLO of the command shown on the page."""


def taker(page: str) -> Component:
    words = "A log of your own (CSV, JSONL): choose it, or drop it here"
    return dmc.Stack([parts.upload(page, words), dmc.Divider(label="What is shown")])


@lru_cache(maxsize=2)
def _read(path: Path, _modified_ns: int, names: str) -> tuple[RequestTable, RequestStatistics]:
    mapping = COLUMNS.read_pairs(names) or None
    # A line of other formats may stand for any number of requests.
    if not (trace := open_trace(path, "auto", mapping)).streams:
        raise TraceError(
            f"{path}: is of format {trace.layout.name}; a table of one request a line is shown here, forerun workloads "
            f"show reads the others."
        )
    requests = read_requests(path, limit=MOST_REQUESTS, columns=mapping)
    return requests, describe_requests(requests)


def compute(context: Context, values: Values) -> Shown:
    """Statistics and figure of the chosen log."""
    path = context.served.log(values[GIVEN])
    try:
        requests, statistics = _read(path, path.stat().st_mtime_ns, values["columns"])
    except TraceError as error:
        raise ForerunError(f"{error} Here: '{COLUMNS.label}' beside this, written {COLUMNS.example}.") from None
    notes = list(statistics.notes)
    if statistics.requests >= MOST_REQUESTS:
        notes.append(f"Only the first {MOST_REQUESTS:,} requests are read here; forerun workloads show reads all.")
    words = ["forerun", "plan", Path(values[GIVEN]).name, *(word for limit in SLO for word in ("--slo", limit))]
    words += ["--map", values["columns"]] if values["columns"] else []
    return {
        "lead": parts.remark(trace_sentence(statistics)),
        "onward": dmc.Group(
            [dcc.Link(text, href=href, className="onward") for text, href in onward(values, statistics)]
        ),
        "tables": parts.in_columns(*(parts.table_panel(one) for one in statistics_tables(statistics))),
        "command": parts.commands_panel("The same in a terminal", {"plan": shlex.join(words)}),
        "basis": parts.rests_on("measured", notes),
        "traffic": traffic_figure(traffic_data(requests)),
    }


def trace_sentence(statistics: RequestStatistics) -> str:
    sizes = (
        f"prompts of {number(statistics.input_tokens.mean)} and answers of "
        f"{number(statistics.output_tokens.mean)} tokens on average"
    )
    arrivals = statistics.arrivals
    if arrivals is None or arrivals.mean_rps is None:
        return f"{statistics.requests:,} requests that say nothing of when they came; {sizes}."
    peaks = [
        f", {value:.1f} times that in its busiest {w} s" for w, value in list(arrivals.peak_over_mean.items())[-1:]
    ]
    span = f"{statistics.requests:,} requests in {duration(arrivals.span_s)}"
    return f"{span}: {number(arrivals.mean_rps, 3)} req/s{''.join(peaks)}; {sizes}."


def onward(values: Values, statistics: RequestStatistics) -> list[tuple[str, str]]:
    """Links to further pages, as texts and addresses."""
    known = {"columns": values["columns"]} if values["columns"] else {}
    links = [("Plan capacity for this log", f"/capacity?{urlencode({GIVEN: values[GIVEN], **known})}")]
    if statistics.arrivals is not None and statistics.arrivals.mean_rps is not None:
        rate = min(max(statistics.arrivals.mean_rps, 0.001), 1e4)
        means = {"prompt": statistics.input_tokens.mean, "output": statistics.output_tokens.mean}
        query = {"rate": f"{rate:.3g}", **{name: max(1, round(mean)) for name, mean in means.items()}}
        links.append(("Ask what-if at its means", f"/what-if?{urlencode(query)}"))
    return links


def trace_details(app: Dash, context: Context) -> None:
    def take(sent: Json | None) -> tuple[object, object, object]:
        if not sent:
            return no_update, no_update, no_update
        try:
            served = context.served
            (file,) = sent["files"]
            label = keep_log(file["contents"], file["name"], served)
        except Exception as error:
            return parts.message(sentence(error)), no_update, no_update
        return None, list(served.logs()), label

    app.callback(
        Output(parts.area_id(NAME, parts.UPLOADED), "children", allow_duplicate=True),
        Output(state_id(NAME, GIVEN), "data"),
        Output(state_id(NAME, GIVEN), "value"),
        Input(parts.output_id(NAME, parts.UPLOADED), "data"),
        prevent_initial_call=True,
    )(take)


PAGE = Page(
    NAME,
    "Your traffic",
    "What a log of your own requests looks like, and what would serve it.",
    [taker, ChoiceField(GIVEN, "Log of requests", options=lambda served: list(served.logs())), COLUMNS],
    [
        parts.message_area(parts.UPLOADED),
        parts.area("lead"),
        parts.area("onward"),
        parts.figure_card("traffic", 520, "Requests over time, and lengths of prompts and answers"),
        *map(parts.area, ("tables", "command", "basis")),
    ],
    [View(compute, (GIVEN, "columns"), ("lead", "onward", "tables", "command", "basis"), ("traffic",))],
    more=trace_details,
)
