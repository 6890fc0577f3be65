"""Capacity: the cheapest layout that holds an SLO at a load, its head-room, and how the load may grow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc

from dashboards.app.controls import CHIP, MODEL, OUTPUT, PROMPT, Choice, Number, Several, Values, lengths
from dashboards.app.jobs import Task, Tell, job_panel
from dashboards.app.page import Context, Page, Shown, Start, View
from dashboards.app.parts import area, commands_card, figure_card, remark, rests_on, table_card
from dashboards.app.served import Served
from dashboards.study_report import COMMANDS, study_figures
from simulator.scenario import Scenario, scenario_from
from simulator.studies.plan.document import PlanResult

RATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GROWTH = (1, 1.5, 2, 3, 4, 6, 8)
TTFT_MS = (100, 200, 500, 1000, 2000, 5000, 10000)
TPOT_MS = (5, 10, 15, 20, 30, 40, 60, 80, 100, 200)
REPLICATIONS, FINALISTS, MOST_REPLICAS = 3, 4, 64


@dataclass(frozen=True, slots=True)
class PlanTask:
    """A capacity plan, made in the background."""

    scenario: Scenario
    chips: tuple[str, ...]
    rate: float
    growth: float
    slo: tuple[str, ...]

    def __call__(self, folder: Path, tell: Tell) -> None:
        """Make the plan, and write what ``forerun plan --out`` writes."""
        from simulator.studies.plan.document import plan

        found = plan(
            self.scenario,
            rate=self.rate,
            growth=self.growth,
            slo=self.slo,
            vary={"hardware.chip": self.chips},
            replications=REPLICATIONS,
            finalists=FINALISTS,
            max_replicas=MOST_REPLICAS,
            progress=tell,
        )
        found.save(folder)


def content(page: str, _served: Served) -> list[Any]:
    """The plan: sentence, figures, layouts that hold, launch commands, all others."""
    return [
        job_panel(page),
        area(page, "lead"),
        area(page, "holding"),
        area(page, "flags"),
        figure_card(page, "strain", 420, "Cost of every layout against how near it is to the SLO"),
        figure_card(page, "front", 420, "Cost against the highest load that holds, with the Pareto front"),
        area(page, "others"),
        area(page, "basis"),
    ]


def plan_task(values: Values) -> PlanTask:
    """The plan that the controls ask for."""
    chips, rate = tuple(values["chips"]), float(values["rate"])
    data = {
        "model": values["model"],
        "hardware": {"chip": chips[0]},
        "workload": {
            "arrivals": {"process": "poisson", "request_rate": rate},
            "input_tokens": lengths(values["prompt"]),
            "output_tokens": lengths(values["output"]),
            "num_requests": 500,
        },
    }
    slo = (f"p99_ttft_ms={values['ttft']:g}", f"p99_tpot_ms={values['tpot']:g}")
    return PlanTask(scenario_from(data, "plan"), chips, rate, float(values["growth"]), slo)


def make(_context: Context, values: Values) -> tuple[Task, str]:
    """The background run of the plan."""
    wanted = plan_task(values)
    return wanted, f"plan {wanted.scenario.model} {wanted.rate:g}"


def compute(context: Context, values: Values) -> Shown:
    """Everything about the chosen plan."""
    if not values["plan"]:
        return {"lead": remark("No plan yet: set the load and the SLO, and make one."), "basis": rests_on(None)}, {}
    document = context.served.plan(values["plan"])
    result = PlanResult(document)
    drawn = {figure.name: figure.figure for figure in study_figures(result.kind, document)}
    notes = [
        *document["notes"],
        f"{document['runs']} simulated runs, {len(document['candidates'])} layouts; Forerun {document['version']}, "
        f"seed {document['seed']}; a prediction, not a measurement.",
    ]
    best = document["best"]
    holding, *others = (table for table in result.tables() if table.name not in COMMANDS)
    shown = {
        "lead": remark(result.conclusion),
        "holding": table_card(holding),
        "flags": commands_card(f"One replica of {best['layout']}", best["flags"]) if best and best["flags"] else None,
        "others": dmc.Stack(list(map(table_card, others)), gap="md") if others else None,
        "basis": rests_on(document["basis"], notes),
    }
    return shown, drawn


PAGE = Page(
    "capacity",
    "Capacity",
    "Capacity",
    "The fewest chips and the cheapest layout that hold an SLO, and how much head-room they have.",
    [
        Choice("plan", "Plan", options=lambda served: list(served.plans()), placeholder="none made yet"),
        dmc.Divider(label="Make another"),
        Number("rate", "Load", stops=RATES, default=16, unit="req/s", low=0.01, high=10_000, whole=False),
        Number("growth", "Growth", stops=GROWTH, default=1, unit="x", low=1, high=100, whole=False),
        Number("ttft", "p99 TTFT", stops=TTFT_MS, default=1000, unit="ms", low=1, high=1e6, whole=False),
        Number("tpot", "p99 TPOT", stops=TPOT_MS, default=30, unit="ms", low=0.1, high=1e5, whole=False),
        PROMPT,
        OUTPUT,
        MODEL,
        Several("chips", "Chips to choose from", options=CHIP.options, defaults=("h100-sxm", "a100-sxm-80gb"), most=4),
        dmc.Button("Make the plan", id={"kind": "plan", "page": "capacity"}, fullWidth=True, className="start"),
    ],
    content,
    [View(compute, ("plan",), ("lead", "holding", "flags", "others", "basis"), ("strain", "front"))],
    [
        Start(
            "plan",
            ("model", "chips", "rate", "growth", "ttft", "tpot", "prompt", "output"),
            make,
            "plan",
            lambda served: served.plans(),
        )
    ],
)
