"""Capacity page: the cheapest layout that meets an SLO at a load, its headroom, and the effect of load growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import dash_mantine_components as dmc
from dash import Input

from dashboards.app import controls
from dashboards.app.controls import ChoiceField, Component, Number, Pairs, Several, Values
from dashboards.app.job_panel import job_id, job_panel, job_part
from dashboards.app.jobs import FIRST, Task
from dashboards.app.page import Context, Page, Shown, Start, View
from dashboards.app.parts import area, commands_panel, figure_card, remark, rests_on, table_panel, table_stack
from dashboards.app.plans import FIRST_ANSWER, PlanTask
from dashboards.app.served import ServedFolders
from dashboards.app.uploads import checked_size
from dashboards.figures.load import hours_data, hours_figure
from dashboards.figures.studies import (
    AXIS_WORDS,
    PER_CHIP,
    PER_MILLION,
    PER_USER,
    chip_costs_data,
    chip_costs_figure,
    pareto_data,
    pareto_figure,
)
from dashboards.study_report import COMMANDS
from forerun.errors import ForerunError, did_you_mean
from simulator.running.scenario import scenario_from
from simulator.studies.plan.document import PlanResult

RATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GROWTH = (1, 1.5, 2, 3, 4, 6, 8)
NO_LOG = "at one rate, set below"
PRICES = Pairs(
    "prices", "Own prices", says="US dollars an hour by chip; else the catalogue's", example="h100-sxm=2.5,l40s=0.9"
)
CHARTS = {
    f"{AXIS_WORDS[y]} over {AXIS_WORDS[x]}": (x, y)
    for x, y in ((PER_USER, PER_CHIP), (PER_USER, PER_MILLION), (PER_CHIP, PER_MILLION))
}
SIMULATED_REQUESTS = 500
ON_LOG, ON_RATE = ("log", lambda log: log != NO_LOG), ("log", lambda log: log == NO_LOG)


def plan_task(values: Values, served: ServedFolders) -> PlanTask:
    """Task that computes the plan for the values of the controls."""
    chips, rate = tuple(values["chips"]), float(values["rate"]) if values["log"] == NO_LOG else None
    if rate is not None:
        workload = controls.poisson_workload(values, rate, SIMULATED_REQUESTS)
    else:
        columns = controls.COLUMNS.read_pairs(values["columns"])
        workload = {"trace": str(served.log(values["log"]))} | ({"columns": columns} if columns else {})
    data = {"model": values["model"], "hardware": {"chip": chips[0]}, "workload": workload}
    if values["prices"]:
        data["prices"] = {"usd_per_chip_hour": chip_prices(values["prices"], chips)}
    scenario = checked_size(scenario_from(data, "plan"), "plan")
    slo = tuple(f"{values['at']}_{name}_ms={values[name]:g}" for name in ("ttft", "tpot"))
    return PlanTask(scenario, chips, rate, float(values["growth"]), slo)


def chip_prices(text: str, chips: Sequence[str]) -> dict[str, float]:
    """US dollars per chip-hour by chip, parsed from the text of the price control."""
    prices = {}
    for chip, price in PRICES.read_pairs(text).items():
        if chip not in chips:
            raise ForerunError(
                f"{PRICES.label}: '{chip}' is none of the chips to choose from{did_you_mean(chip, chips)}"
            )
        try:
            prices[chip] = float(price)
        except ValueError:
            raise ForerunError(f"{PRICES.label}: {chip}: '{price}' is no number of US dollars an hour") from None
    return prices


def planned_result(context: Context, values: Values) -> tuple[Task, str]:
    wanted = plan_task(values, context.served)
    return wanted, f"plan {wanted.scenario.model} {values['log'] if wanted.rate is None else f'{wanted.rate:g}'}"


def compute(context: Context, values: Values) -> Shown:
    """Tables and figures of the chosen plan."""
    state = job_part(values.get("job"), "state")
    if not values["plan"]:
        return {"lead": remark("No plan yet: set the load and the SLO, and make one."), "basis": rests_on(None)}
    document = context.served.plan(values["plan"])
    result = PlanResult(document)
    notes = [
        *document["notes"],
        f"{document['runs']} simulated runs, {len(document['candidates'])} layouts; Forerun {document['version']}, "
        f"seed {document['seed']}; a prediction, not a measurement.",
    ]
    best = document["best"]
    points, by_hour = pareto_data(document, *CHARTS[values["chart"]]), hours_data(document)
    costs = chip_costs_data(document)
    holding, *others = (table for table in result.tables() if table.name not in COMMANDS)
    return {
        "lead": [note, remark(result.conclusion)]
        if (note := _state_note(state)) is not None
        else remark(result.conclusion),
        "holding": table_panel(holding),
        "flags": commands_panel(f"One replica of {best['layout']}", best["flags"]) if best and best["flags"] else None,
        "others": table_stack(others) if others else None,
        "basis": rests_on(document["basis"], notes),
        "pareto": pareto_figure(points) if points is not None else None,
        "hours": hours_figure(by_hour) if by_hour is not None else None,
        "chips": chip_costs_figure(costs) if costs is not None else None,
    }


def _state_note(state: str | None) -> Component:
    """Note that the shown plan is an old or first answer while a new plan is computed; None in other states."""
    words = {
        "running": "The old plan. The new one is being computed and takes its place.",
        FIRST: f"First answer, from the log's busiest {FIRST_ANSWER['requests']:,} requests; all of it follows.",
    }
    if state not in words:
        return None
    kind = "old-plan" if state == "running" else "first-answer"
    return dmc.Alert(words[state], color="yellow", variant="light", radius="md", className=kind)


PAGE = Page(
    "capacity",
    "Capacity",
    "The fewest chips and the cheapest layout that hold an SLO, and how much head-room they have.",
    [
        ChoiceField("plan", "Plan", options=lambda served: list(served.plans()), placeholder="none made yet"),
        ChoiceField("chart", "Chart", options=tuple(CHARTS), default=next(iter(CHARTS))),
        dmc.Divider(label="Make another"),
        ChoiceField("log", "Traffic", options=lambda served: [NO_LOG, *served.logs()], default=NO_LOG),
        replace(controls.COLUMNS, when=ON_LOG),
        Number("rate", "Load", ON_RATE, stops=RATES, default=16, unit="req/s", low=0.01, high=10_000, whole=False),
        Number("growth", "Growth", stops=GROWTH, default=1, unit="x", low=1, high=100, whole=False),
        ChoiceField("at", "SLO at", options=("p99", "p95", "p90", "p50"), default="p99"),
        controls.TTFT,
        controls.TPOT,
        replace(controls.PROMPT, when=ON_RATE),
        replace(controls.OUTPUT, when=ON_RATE),
        controls.MODEL,
        Several("chips", "Chips to choose from", options=controls.CHIP.options, defaults=("h100-sxm", "a100-sxm-80gb")),
        PRICES,
        dmc.Button("Make the plan", id={"kind": "plan", "page": "capacity"}, fullWidth=True, className="start"),
    ],
    [
        job_panel,
        area("lead"),
        figure_card("chips", 330, "Dollars a month of every chip, from best to worst case"),
        figure_card("pareto", 500, "Throughput per GPU, speed per user or cost of every layout, with the Pareto front"),
        figure_card("hours", 460, "Requests per second and replicas by the hour of the load"),
        *map(area, ("holding", "flags", "others", "basis")),
    ],
    [
        View(
            compute,
            ("plan", "chart"),
            ("lead", "holding", "flags", "others", "basis"),
            ("chips", "pareto", "hours"),
            {"job": Input(job_id("capacity", "done"), "data")},
        )
    ],
    [
        Start(
            "plan",
            ("log", "columns", "model", "chips", "rate", "growth", "at", "ttft", "tpot", "prompt", "output", "prices"),
            planned_result,
            "plan",
        )
    ],
)
