"""What bounded the engine, as shares of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from dashboards.figures.theme import COLOURS, captioned
from simulator.metrics.run_folder import Run


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
    add_bounds(figure, [""], {bound: [share] for bound, share in data.shares.items()})
    figure.update_yaxes(showticklabels=False, ticks="")
    return captioned(figure, "Bottleneck", "what limits the engine", data.basis, 230)


def add_bounds(figure: go.Figure, names: Sequence[str], shares: Mapping[str, Sequence[float]]) -> None:
    """One bar per name, divided by what limits the engine.

    Args:
        figure: to draw in.
        names: of the bars.
        shares: of engine time, 0 to 1, by bound and then by bar.
    """
    for bound, values in shares.items():
        figure.add_bar(
            y=list(names),
            x=[share * 100 for share in values],
            orientation="h",
            name=bound,
            marker={"color": COLOURS[bound]},
            text=[f"{share:.0%}" if share >= 0.09 else "" for share in values],
            textposition="inside",
            insidetextanchor="middle",
            constraintext="none",
            textangle=0,
            textfont={"color": "#101418" if bound in ("memory", "idle", "latency") else "#ffffff"},
            hovertemplate=f"{bound}: %{{x:.2f}} %<extra></extra>",
        )
    figure.update_layout(barmode="stack", legend={"traceorder": "normal"})
    figure.update_xaxes(title="share of engine time (%)", range=[0, 100], showgrid=False)
