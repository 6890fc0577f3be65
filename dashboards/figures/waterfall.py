"""The life of single requests: queued, prefill, decode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.figures.theme import COLOURS, captioned
from simulator.metrics.run_folder import Run

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
    marked: int | None = None
    """Row to point at."""


def waterfall_data(run: Run, most: int = MAX_REQUESTS, around: int | None = None) -> WaterfallData:
    """At most ``most`` completed requests in order of arrival: evenly spaced, or the neighbours of row ``around``."""
    done = np.flatnonzero(np.isfinite(run.requests["finished_s"]) & (run.requests["failed"] == 0))
    if around is None:
        chosen = done[np.unique(np.linspace(0, len(done) - 1, min(len(done), most)).round().astype(np.int64))]
    else:
        first = max(0, min(int(np.searchsorted(done, around)) - most // 2, len(done) - most))
        chosen = done[first : first + most]
    return WaterfallData(
        row=chosen,
        arrival_s=run.requests["arrival_s"][chosen],
        scheduled_s=run.requests["scheduled_s"][chosen],
        first_token_s=run.requests["first_token_s"][chosen],
        finished_s=run.requests["finished_s"][chosen],
        completed=len(done),
        basis=run.basis,
        marked=around if around is not None and around in chosen else None,
    )


def slowest(run: Run) -> int | None:
    """The completed request that waited longest for its first token; None where none completed."""
    ttft = np.where(np.isfinite(run.requests["finished_s"]), run.requests["ttft_ms"], np.nan)
    return int(np.nanargmax(ttft)) if np.isfinite(ttft).any() else None


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
    if data.marked is not None:
        place = int(np.flatnonzero(data.row == data.marked)[0])
        figure.add_hrect(y0=place - 0.5, y1=place + 0.5, fillcolor=COLOURS["tokens"], opacity=0.25, line_width=0)
        figure.add_annotation(
            x=1,
            xref="paper",
            y=place,
            text=f"request {data.marked}",
            showarrow=False,
            xanchor="right",
            yanchor="bottom",
        )
    shown = f"{len(data.row)} of {data.completed:,}" if len(data.row) < data.completed else f"all {data.completed:,}"
    return captioned(figure, "Requests", f"{shown} completed", data.basis, 480)
