"""The figure of a race: regret of each controller."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go

from forerun.studies import ResultFigure, text_intervals, theme
from forerun_research.race import is_fixed


class RaceData(NamedTuple):
    """Regret of every controller on every pattern, least in the mean first."""

    controllers: tuple[str, ...]
    regret: tuple[tuple[float, ...], ...]
    """Regret by controller and pattern, as shares of the latency of the best fixed K."""
    winner: str
    basis: str


def race_data(document: dict[str, Any]) -> RaceData:
    """The latencies of a race against the best fixed K of each pattern."""
    names = tuple(row["name"] for row in document["controllers"])
    fixed = [name for name in names if is_fixed(name)]
    best = [min(row["latency_s"][name] for name in fixed) for row in document["patterns"]]
    regret = tuple(
        tuple(row["latency_s"][name] / least - 1.0 for row, least in zip(document["patterns"], best, strict=True))
        for name in names
    )
    return RaceData(names, regret, document["winner"], document["basis"])


def race_figure(data: RaceData) -> go.Figure:
    """A box and a dot a pattern for each controller; left of 0 it beats every fixed K."""
    figure = go.Figure()
    for name, values in zip(data.controllers, data.regret, strict=True):
        colour = theme.GREEN if name == data.winner else theme.GREY if is_fixed(name) else theme.BLUE
        figure.add_box(
            x=[100.0 * value for value in values],
            y=[name] * len(values),
            orientation="h",
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            marker={"size": 4, "color": colour},
            line={"color": colour, "width": 1.5},
            name=name,
            hovertemplate="pattern: %{x:.1f} %",
        )
    figure.add_vline(x=0.0, line={"color": theme.GREY, "width": 1.5, "dash": "dot"})
    caption, height = "one dot a traffic pattern; left of 0 beats every fixed K", 220 + 34 * len(data.controllers)
    axes = ("latency over the best fixed K (%)", theme.REVERSED)
    return theme.captioned(figure, "Regret of each controller", caption, data.basis, height, *axes, showlegend=False)


def race_text(data: RaceData) -> str:
    """Least, mean and greatest regret of each controller."""
    rows = [
        (name, min(values), sum(values) / len(values), max(values))
        for name, values in zip(data.controllers, data.regret, strict=True)
    ]
    text = "latency over that of the best fixed K: least, mean and most over the patterns, | = 0\n"
    return text + text_intervals(rows, 0.0)


FIGURES = (ResultFigure("regret", race_data, race_figure, race_text),)
