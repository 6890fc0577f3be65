"""Distribution of TTFT, TPOT and end-to-end latency over requests."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.figures.theme import COLOURS, captioned
from simulator.metrics.run_folder import Run

NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E latency"}
MAX_POINTS = 400
"""Points of one curve; longer ones keep every quantile step and the whole extreme."""


class LatencyCurve(NamedTuple):
    """An empirical distribution: ``share[i]`` of the requests took ``ms[i]`` or less."""

    name: str
    ms: NDArray[np.float64]
    share: NDArray[np.float64]
    limits: tuple[tuple[float, float], ...]
    """SLO limits on percentiles: (limit in ms, share of requests)."""


class LatencyData(NamedTuple):
    """Curves of every latency that was measured."""

    curves: tuple[LatencyCurve, ...]
    requests: int
    basis: str


def latency_data(run: Run) -> LatencyData:
    """The distributions over the completed requests of ``run``, with the SLO limits of its scenario."""
    slo = run.document["scenario"].get("slo") or {}
    curves = []
    for name in NAMES:
        ms = run.requests[f"{name}_ms"]
        ms = np.sort(ms[np.isfinite(ms)])
        if len(ms):
            curves.append(LatencyCurve(name, *thinned_distribution(ms), percentile_limits(slo, name)))
    return LatencyData(tuple(curves), int(np.isfinite(run.requests["e2el_ms"]).sum()), run.basis)


def thinned_distribution(
    ascending: NDArray[np.float64], points: int = MAX_POINTS
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and the share of the sample at or below each; at most about ``points``, first and last always kept."""
    count = len(ascending)
    rows = np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(np.int64))
    tail = np.arange(max(0, count - points // 8), count)
    rows = np.union1d(rows, tail) if count > points else rows
    return ascending[rows], (rows + 1) / count


def percentile_limits(slo: dict[str, Any], latency: str) -> tuple[tuple[float, float], ...]:
    """Limits such as ``p99_ttft_ms: 500`` on ``latency`` as (500.0, 0.99)."""
    found = []
    for key, limit in slo.items():
        match = re.fullmatch(rf"(?:p(\d+(?:\.\d+)?)|(median))_{latency}_ms", key)
        if match is not None and limit is not None:
            found.append((float(limit), float(match[1] or 50) / 100))
    return tuple(found)


def latency_figure(data: LatencyData) -> go.Figure:
    """Cumulative distributions over a logarithmic axis; diamonds are SLO limits the curve must pass on the left."""
    figure = go.Figure()
    for curve in data.curves:
        figure.add_scatter(
            x=curve.ms,
            y=curve.share * 100,
            mode="lines" if len(curve.ms) > 1 else "markers",
            name=NAMES[curve.name],
            line={"color": COLOURS[curve.name], "width": 2.5, "shape": "hv"},
            hovertemplate="%{y:.1f} % within %{x:.4s} ms",
        )
    for curve in data.curves:
        if curve.limits:
            figure.add_scatter(
                x=[limit for limit, _ in curve.limits],
                y=[share * 100 for _, share in curve.limits],
                mode="markers",
                name=f"SLO {NAMES[curve.name]}",
                marker={"symbol": "diamond-open", "size": 11, "color": COLOURS[curve.name], "line": {"width": 2.5}},
                hovertemplate="limit: %{y} % within %{x} ms",
            )
    figure.update_xaxes(type="log", title="milliseconds", dtick=1, minor={"ticks": "outside", "ticklen": 2})
    figure.update_yaxes(title="share of requests (%)", range=[0, 102])
    figure.update_layout(hovermode="closest")
    return captioned(figure, "Latency", f"{data.requests:,} requests", data.basis, 480)
