"""Capacity: the cheapest layout that holds an SLO at a load, what it leaves in reserve, and how the load may grow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import Dash

from dashboards.app import choices, job_panel
from dashboards.app.context import Context, Page
from dashboards.app.jobs import Tell
from dashboards.app.parts import (
    at,
    card,
    figure_card,
    page_frame,
    remark,
    rests_on,
    select,
    slider,
    state_id,
    table,
    with_controls,
)
from dashboards.app.url_state import Params
from dashboards.app.views import Shown, Values, area, message_area, register_view
from dashboards.figures.pareto import front_figure, pareto_data, strain_figure
from dashboards.report_parts import ABSENT, number
from simulator.metrics.usage import main_bottleneck
from simulator.scenario import Scenario, scenario_from

NAME = "capacity"
RATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GROWTH = (1, 1.5, 2, 3, 4, 6, 8)
TTFT_MS = (100, 200, 500, 1000, 2000, 5000, 10000)
TPOT_MS = (5, 10, 15, 20, 30, 40, 60, 80, 100, 200)
MOST_CHIPS = 4
STEPS = {
    "rate": RATES,
    "growth": GROWTH,
    "ttft": TTFT_MS,
    "tpot": TPOT_MS,
    "prompt": choices.CONTEXTS[:9],
    "output": choices.CONTEXTS[:6],
}
ASKED = ("model", "chips", "rate", "growth", "ttft", "tpot", "prompt", "output")
LENGTH_CV = 0.8
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


def layout(params: Params, context: Context) -> Any:
    """The page."""
    plans, chips, models = list(context.served.plans()), choices.chips(), choices.models()
    chosen = [chip for chip in params.listed("chips") if chip in chips][:MOST_CHIPS]
    controls = [
        select(
            NAME,
            "plan",
            "Plan",
            plans,
            params.choice_or_none("plan", plans, plans[0] if plans else None),
            placeholder="none made yet",
        ),
        dmc.Divider(label="Make another"),
        slider(NAME, "rate", "Load", RATES, params.number("rate", 0, 256, 16), "req/s"),
        slider(NAME, "growth", "Growth", GROWTH, params.number("growth", 1, 8, 1), "times the load"),
        slider(NAME, "ttft", "p99 TTFT", TTFT_MS, params.number("ttft", 1, 1e5, 1000), "ms"),
        slider(NAME, "tpot", "p99 TPOT", TPOT_MS, params.number("tpot", 1, 1e3, 30), "ms"),
        slider(NAME, "prompt", "Mean prompt", STEPS["prompt"], params.number("prompt", 1, 32768, 512), "tokens"),
        slider(NAME, "output", "Mean output", STEPS["output"], params.number("output", 1, 4096, 256), "tokens"),
        select(NAME, "model", "Model", models, params.choice("model", models, choices.DEFAULT_MODEL)),
        dmc.MultiSelect(
            id=state_id(NAME, "chips"),
            label="Chips to choose from",
            data=chips,
            value=chosen or [choices.DEFAULT_CHIP, "a100-sxm-80gb"],
            maxValues=MOST_CHIPS,
            searchable=True,
            size="sm",
        ),
        dmc.Button("Make the plan", id={"kind": "plan", "page": NAME}, fullWidth=True),
        area(NAME, "started"),
        job_panel.job_panel(NAME),
    ]
    content = [
        message_area(NAME),
        area(NAME, "lead"),
        figure_card(NAME, "strain", 420, "Cost of every layout against how near it is to the SLO"),
        figure_card(NAME, "front", 420, "Cost against the highest load that holds, with the Pareto front"),
        area(NAME, "holding"),
        area(NAME, "flags"),
        area(NAME, "others"),
        area(NAME, "basis"),
    ]
    return page_frame(
        "Capacity",
        "The fewest chips and the cheapest layout that hold an SLO, and how much load they have in reserve.",
        with_controls(controls, content),
    )


def task(values: Values) -> PlanTask:
    """The plan that the controls ask for."""

    def lengths(name: str) -> dict[str, Any]:
        return {"distribution": "lognormal", "mean": at(STEPS[name], values[name]), "cv": LENGTH_CV}

    chips = tuple(str(chip) for chip in values["chips"] or ())[:MOST_CHIPS] or (choices.DEFAULT_CHIP,)
    rate = float(at(RATES, values["rate"]))
    data = {
        "model": str(values["model"]),
        "hardware": {"chip": chips[0]},
        "workload": {
            "arrivals": {"process": "poisson", "request_rate": rate},
            "input_tokens": lengths("prompt"),
            "output_tokens": lengths("output"),
            "num_requests": 500,
        },
    }
    slo = (f"p99_ttft_ms={at(TTFT_MS, values['ttft'])}", f"p99_tpot_ms={at(TPOT_MS, values['tpot'])}")
    return PlanTask(scenario_from(data, "plan"), chips, rate, float(at(GROWTH, values["growth"])), slo)


def compute(context: Context, values: Values) -> Shown:
    """Everything about the chosen plan."""
    if not values["plan"]:
        return {"lead": remark("No plan yet: set the load and the SLO, and make one."), "basis": rests_on(None)}, {}
    document = context.served.plan(str(values["plan"]))
    data = pareto_data(document)
    drawn = {}
    if data.points and document["request_rate"] is not None:
        drawn["strain"] = strain_figure(data)
    if any(point.max_rate is not None for point in data.points):
        drawn["front"] = front_figure(data)
    notes = [
        *document["notes"],
        f"{document['runs']} simulated runs, {len(document['candidates'])} layouts; Forerun {document['version']}, "
        f"seed {document['seed']}; a prediction, not a measurement.",
    ]
    shown = {
        "lead": remark(document["conclusion"]),
        "holding": _holding(document),
        "flags": _flags(document),
        "others": _others(document),
        "basis": rests_on(document["basis"], notes),
    }
    return shown, drawn


def register(app: Dash, context: Context) -> None:
    """Add the callbacks."""

    def make(given: Values) -> job_panel.Asked:
        wanted = task(given)
        return wanted, f"plan {wanted.scenario.model} {wanted.rate:g}"

    areas = ("lead", "holding", "flags", "others", "basis")
    register_view(app, NAME, ("plan",), areas, ("strain", "front"), partial(compute, context))
    job_panel.register_start(app, context, NAME, "plan", ASKED, make)
    job_panel.register_finished(app, NAME, "plan", context.served.plans)


def _holding(document: dict[str, Any]) -> Any:
    rows = []
    for row in document["candidates"]:
        if row["status"] == "meets":
            star = " *" if row["layout"] in document["pareto"] else ""
            reserve = ABSENT if row["headroom"] is None else f"{row['headroom']:+.0%}"
            cost = (number(row["usd_per_hour"], 3), number(row["usd_per_million_output_tokens"], 3))
            bound = main_bottleneck(row["bottleneck"]) or ABSENT
            rows.append((row["layout"] + star, number(row["chips"]), *cost, number(row["max_rate"], 3), reserve, bound))
    if not rows:
        return None
    heads = ("layout (* Pareto)", "chips", "$/h", "$/M tokens", "max req/s", "reserve", "bound")
    return card("Layouts that hold the SLO, best first", table(heads, rows))


def _flags(document: dict[str, Any]) -> Any:
    best = document["best"]
    if best is None or best["flags"] is None:
        return None
    parts: list[Any] = []
    for engine, text in best["flags"].items():
        copy = dmc.CopyButton(value=text, children="Copy", size="compact-xs")
        parts.append(dmc.Group([dmc.Text(engine, size="sm", fw=600), copy], justify="space-between"))
        parts.append(dmc.Code(text, block=True, className="flags"))
    return card(f"One replica of {best['layout']}", *parts)


def _others(document: dict[str, Any]) -> Any:
    rows = [
        (row["layout"], row["status"], number(row["chips"]), number(row["usd_per_hour"], 3), row["reason"] or ABSENT)
        for row in document["candidates"]
        if row["status"] != "meets"
    ]
    return (
        card("All others, and why not", table(("layout", "verdict", "chips", "$/h", "reason"), rows)) if rows else None
    )


PAGE = Page("/capacity", "Capacity", layout, register, STEPS)
