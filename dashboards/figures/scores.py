"""Errors of a replay by operation and regime, with the spread of errors and the coverage of intervals."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from dashboards.figures.theme import BLUE, COLOURS, GREY, SKY, captioned
from simulator.replay import ReplayReport


class ScoreBar(NamedTuple):
    """One group of rows; percentages of the measurement."""

    label: str
    regime: str
    rows: int
    median_ape: float
    p90_ape: float
    bias: float
    coverage90: float | None


class ScoresData(NamedTuple):
    """Groups, worst first."""

    bars: tuple[ScoreBar, ...]
    basis: str


def scores_data(report: ReplayReport) -> ScoresData:
    """Every group by operation, format and regime."""
    bars = [
        ScoreBar(
            f"{score.op} {score.dtype}, {score.regime}",
            score.regime,
            score.n,
            score.median_ape,
            score.p90_ape,
            score.bias,
            score.coverage90,
        )
        for score in report.groups
        if score.regime != "all"
    ]
    return ScoresData(tuple(sorted(bars, key=lambda bar: -bar.p90_ape)), report.basis)


def scores_figure(data: ScoresData) -> go.Figure:
    """Bars to the median error in the colour of the regime; whiskers to the 90th percentile."""
    figure = go.Figure()
    for regime in dict.fromkeys(bar.regime for bar in data.bars):
        part = [bar for bar in data.bars if bar.regime == regime]
        figure.add_bar(
            y=[bar.label for bar in part],
            x=[bar.median_ape for bar in part],
            orientation="h",
            name=f"{regime}-bound",
            marker={"color": COLOURS.get(regime, BLUE)},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, bar.p90_ape - bar.median_ape) for bar in part],
                "arrayminus": [0.0] * len(part),
                "color": GREY,
                "thickness": 1.5,
            },
            customdata=[[bar.rows, bar.p90_ape, bar.bias] for bar in part],
            hovertemplate="%{y}: median %{x:.1f} %, p90 %{customdata[1]:.1f} %, bias %{customdata[2]:+.1f} %, "
            "%{customdata[0]:,} rows<extra></extra>",
        )
    order = [bar.label for bar in data.bars]
    figure.update_yaxes(categoryorder="array", categoryarray=order, autorange="reversed", ticks="")
    figure.update_xaxes(title="absolute error (%)", rangemode="tozero")
    height = 160 + 30 * max(3, len(order))
    return captioned(figure, "By operation and regime", "bar: median, whisker: 90th percentile", data.basis, height)


def coverage_figure(data: ScoresData) -> go.Figure:
    """Share of measurements inside the 90 % interval of their prediction, by group; empty where none has one."""
    figure = go.Figure()
    part = [bar for bar in data.bars if bar.coverage90 is not None]
    figure.add_bar(
        y=[bar.label for bar in part],
        x=[bar.coverage90 for bar in part],
        orientation="h",
        marker={"color": SKY},
        customdata=[[bar.rows] for bar in part],
        hovertemplate="%{y}: %{x:.1f} % of %{customdata[0]:,} rows<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=90, line={"color": GREY, "width": 1.5, "dash": "dot"})
    figure.update_yaxes(autorange="reversed", ticks="")
    figure.update_xaxes(title="inside the 90 % interval (%)", range=[0, 100])
    height = 160 + 30 * max(3, len(part))
    return captioned(figure, "Coverage", "90 % would be right", data.basis, height)
