"""What bounded the engine, as shares of its time."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from dashboards.figures.theme import COLOURS, captioned
from dashboards.runs import Run


class BottleneckData(NamedTuple):
    """Shares of engine time by bound, in the fixed order of the legend."""

    shares: dict[str, float]
    basis: str


def bottleneck_data(run: Run) -> BottleneckData:
    """The ``bottleneck`` section of a run; empty when nothing ran."""
    return BottleneckData(dict(run.document["bottleneck"] or {}), run.basis)


def bottleneck_figure(data: BottleneckData) -> go.Figure:
    """One stacked bar of 100 %."""
    figure = go.Figure()
    for bound, share in data.shares.items():
        figure.add_bar(
            y=[""],
            x=[share * 100],
            orientation="h",
            name=bound,
            marker={"color": COLOURS[bound]},
            text=[f"{share:.0%}" if share >= 0.09 else ""],
            textposition="inside",
            insidetextanchor="middle",
            constraintext="none",
            textangle=0,
            textfont={"color": "#101418" if bound in ("memory", "idle", "latency") else "#ffffff"},
            hovertemplate=f"{bound}: %{{x:.2f}} %<extra></extra>",
        )
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    figure.update_xaxes(title="share of engine time (%)", range=[0, 100], showgrid=False)
    figure.update_yaxes(showticklabels=False, ticks="")
    return captioned(figure, "Bottleneck", "what limits the engine", data.basis, 230)
