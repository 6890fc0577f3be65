"""Start page: the question that each page answers, and the default answer of the what-if page."""

from __future__ import annotations

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash import Input, dcc

from dashboards.app.controls import Values, values_of
from dashboards.app.page import Context, Page, Shown, View
from dashboards.app.pages import what_if
from dashboards.app.parts import area, figure_card, panel


def compute(context: Context, _values: Values) -> Shown:
    """Answer of the what-if page for its default values."""
    values, _ = values_of(list(what_if.FIELDS.values()), None, context.served)
    shown = what_if.compute(context, values)
    title = f"For example: {values['model']} on one {values['chip']} at {values['rate']:g} req/s"
    lead = [dmc.Title(title, order=2, className="card-title", mb="xs"), shown["lead"]]
    return {"lead": lead, "basis": shown["basis"], **what_if.compute_load(context, {what_if.ANSWERED: values})}


def start_page(others: Sequence[Page]) -> Page:
    """Start page with links to ``others``."""
    cards = [
        dcc.Link(panel(other.name, dmc.Text(other.says, size="sm")), href=f"/{other.path}", className="start-link")
        for other in others
    ]
    content = [
        dmc.SimpleGrid(cards, cols={"base": 1, "sm": 2, "lg": 4}, spacing="sm"),
        area("lead"),
        figure_card("load", 560, "Mean TTFT, TPOT and throughput over the load"),
        area("basis"),
    ]
    opened = {"path": Input("url", "pathname")}
    view = View(compute, areas=("lead", "basis"), figures=("load",), others=opened)
    says = "How an LLM service will run before its hardware is rented: what each page answers, and a first answer."
    return Page("start", "Start", says, [], content, [view], title="Forerun")
