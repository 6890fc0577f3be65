"""What bounded the engine over simulated time, averaged in bins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.figures.theme import COLOURS, captioned
from dashboards.figures.timeline import BINS, Spans, spans_of
from simulator.metrics.run_folder import Run
from simulator.metrics.usage import BOUNDS

FloatArray = NDArray[np.float64]


class BoundTimeData(NamedTuple):
    """Shares of engine time per bin, summing to 1 where replicas ran or idled; ``time_s`` is the middle of each bin."""

    time_s: FloatArray
    bin_s: float
    shares: dict[str, FloatArray]
    basis: str


def bound_time_data(run: Run, bins: int = BINS, spans: Spans | None = None) -> BoundTimeData:
    """Seconds by bound of every step, spread over the step, as shares of all replicas' time; the rest is idle."""
    spans = spans or spans_of(run, bins)
    if spans is None:
        return BoundTimeData(np.empty(0), 0.0, {}, run.basis)
    pools = run.document.get("pools")
    replicas = sum(pool["replicas"] for pool in pools) if pools else _replicas(run)
    shares = {bound: spans.rate(run.steps[f"{bound}_s"]) / replicas for bound in BOUNDS}
    shares["idle"] = np.clip(1.0 - sum(shares.values()), 0.0, 1.0)
    return BoundTimeData(spans.middle_s, spans.bin_s, shares, run.basis)


def _replicas(run: Run) -> int:
    return int(run.document["scenario"]["hardware"].get("replicas", 1))


def bound_time_figure(data: BoundTimeData) -> go.Figure:
    """Stacked areas up to 100 %."""
    figure = go.Figure()
    for bound, share in data.shares.items():
        figure.add_scatter(
            x=data.time_s,
            y=share * 100,
            name=bound,
            mode="lines",
            line={"width": 0, "color": COLOURS[bound]},
            fillcolor=COLOURS[bound],
            stackgroup="bounds",
            hovertemplate="%{y:.1f} %",
        )
    figure.update_xaxes(title="simulated seconds")
    figure.update_yaxes(title="share of engine time (%)", range=[0, 100])
    figure.update_layout(hovermode="x unified", legend={"traceorder": "normal"})
    return captioned(figure, "Bottleneck over time", f"means of {data.bin_s:.3g} s", data.basis, 420)
