"""Cost of every layout of a plan against how near it is to the SLO, and the front of cost and headroom."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go

from dashboards.figures.theme import BLUE, GREY, VERMILLION, captioned

HOLDS, MISSES = "holds the SLO", "misses it"
COLOURS = {HOLDS: BLUE, MISSES: VERMILLION}
HEIGHT = 420
MOST_STRAIN = 10.0
"""Strain beyond which a point is drawn at the edge: far misses say no more than that."""


class ParetoPoint(NamedTuple):
    """One simulated layout."""

    layout: str
    cost: float
    strain: float
    """Binding value over its limit, at most ``MOST_STRAIN``; up to 1 holds."""
    max_rate: float | None
    holds: bool
    on_front: bool


class ParetoData(NamedTuple):
    """Simulated layouts of a plan."""

    points: tuple[ParetoPoint, ...]
    cost_label: str
    request_rate: float | None
    basis: str


def pareto_data(document: dict[str, Any]) -> ParetoData:
    """The points of a ``plan`` document, in the order of their cost."""
    by_price = all(row["usd_per_hour"] is not None for row in document["candidates"] if row["binding"] is not None)
    points = []
    for row in document["candidates"]:
        if row["binding"] is None or row["chips"] is None:
            continue
        strain = MOST_STRAIN if row["strain"] is None else min(row["strain"], MOST_STRAIN)
        cost = row["usd_per_hour"] if by_price else row["chips"]
        holds = row["status"] == "meets"
        points.append(
            ParetoPoint(row["layout"], float(cost), strain, row["max_rate"], holds, row["layout"] in document["pareto"])
        )
    label = "cost, US dollars per hour" if by_price else "chips"
    return ParetoData(
        tuple(sorted(points, key=lambda p: (p.cost, p.strain))),
        label,
        document["request_rate"],
        document["basis"] or "",
    )


def strain_figure(data: ParetoData) -> go.Figure:
    """Cost against the binding value over its limit: below the line a layout holds."""
    figure = go.Figure()
    for name, colour in COLOURS.items():
        points = [p for p in data.points if p.holds == (name == HOLDS)]
        if points:
            figure.add_scatter(
                x=[p.cost for p in points],
                y=[p.strain for p in points],
                mode="markers",
                name=name,
                marker={"color": colour, "size": 11, "symbol": ["star" if p.on_front else "circle" for p in points]},
                customdata=[[p.layout] for p in points],
                hovertemplate="%{customdata[0]}<br>%{y:.2f} of the limit<extra></extra>",
            )
    figure.add_hline(y=1.0, line={"color": GREY, "dash": "dash"}, annotation_text="SLO")
    figure.update_xaxes(title=data.cost_label, rangemode="tozero")
    figure.update_yaxes(title="binding value over its limit", rangemode="tozero")
    return captioned(
        figure, "Cost against the SLO", "each point a simulated layout; below the line it holds", data.basis, HEIGHT
    )


def front_figure(data: ParetoData) -> go.Figure:
    """Cost against the highest rate that holds, with the front that no layout beats in both."""
    points = [p for p in data.points if p.max_rate is not None]
    front = [p for p in points if p.on_front]
    figure = go.Figure()
    if front:
        figure.add_scatter(
            x=[p.cost for p in front],
            y=[p.max_rate for p in front],
            mode="lines",
            name="Pareto front",
            line={"color": GREY, "shape": "hv", "width": 2},
            hoverinfo="skip",
        )
    figure.add_scatter(
        x=[p.cost for p in points],
        y=[p.max_rate for p in points],
        mode="markers",
        name="layout",
        marker={"color": BLUE, "size": 11, "symbol": ["star" if p.on_front else "circle" for p in points]},
        customdata=[[p.layout] for p in points],
        hovertemplate="%{customdata[0]}<br>up to %{y:.3g} req/s<extra></extra>",
    )
    if data.request_rate is not None:
        figure.add_hline(y=data.request_rate, line={"color": GREY, "dash": "dash"}, annotation_text="asked for")
    figure.update_xaxes(title=data.cost_label, rangemode="tozero")
    figure.update_yaxes(title="highest rate that holds, req/s", rangemode="tozero")
    return captioned(figure, "Cost against headroom", "stars: no layout beats them in both", data.basis, HEIGHT)
