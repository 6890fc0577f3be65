"""The life of single requests: queued, prefill, decode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.figures.theme import COLOURS, captioned
from dashboards.runs import Run

MAX_REQUESTS = 60
FloatArray = NDArray[np.float64]


class WaterfallData(NamedTuple):
    """Times of chosen requests in seconds; ``row`` is their place in order of arrival."""

    row: NDArray[np.int64]
    arrival_s: FloatArray
    scheduled_s: FloatArray
    first_token_s: FloatArray
    finished_s: FloatArray
    completed: int
    """Completed requests of the whole run."""
    basis: str


def waterfall_data(run: Run, most: int = MAX_REQUESTS) -> WaterfallData:
    """At most ``most`` completed requests, evenly spaced in order of arrival."""
    done = np.flatnonzero(np.isfinite(run.requests["finished_s"]) & (run.requests["failed"] == 0))
    chosen = done[np.unique(np.linspace(0, len(done) - 1, min(len(done), most)).round().astype(np.int64))]
    return WaterfallData(
        row=chosen,
        arrival_s=run.requests["arrival_s"][chosen],
        scheduled_s=run.requests["scheduled_s"][chosen],
        first_token_s=run.requests["first_token_s"][chosen],
        finished_s=run.requests["finished_s"][chosen],
        completed=len(done),
        basis=run.basis,
    )


def waterfall_figure(data: WaterfallData) -> go.Figure:
    """One horizontal bar per request, divided into its phases."""
    phases = [
        ("queued", data.arrival_s, data.scheduled_s),
        ("prefill", data.scheduled_s, data.first_token_s),
        ("decode", data.first_token_s, data.finished_s),
    ]
    figure = go.Figure()
    places = np.arange(len(data.row))
    for name, begin, end in phases:
        figure.add_bar(
            y=places,
            x=end - begin,
            base=begin,
            orientation="h",
            name=name,
            marker={"color": COLOURS[name], "line": {"width": 0}},
            customdata=np.column_stack([data.row, (end - begin) * 1e3]),
            hovertemplate="request %{customdata[0]}: %{customdata[1]:.4~s} ms",
        )
    figure.update_layout(barmode="overlay", bargap=0.2, hovermode="closest")
    figure.update_xaxes(title="simulated seconds")
    figure.update_yaxes(title="request, in order of arrival", autorange="reversed", showticklabels=False, ticks="")
    shown = f"{len(data.row)} of {data.completed:,}" if len(data.row) < data.completed else f"all {data.completed:,}"
    return captioned(figure, "Requests", f"{shown} completed", data.basis, 480)
