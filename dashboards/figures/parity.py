"""Predicted against measured kernels: the parity plot and the distribution of errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.figures.latency import thinned_distribution
from dashboards.figures.theme import COLOURS, captioned
from simulator.replay import ReplayReport
from simulator.replay.predict import REGIMES

MAX_POINTS = 4000
"""Points of one parity plot; a larger trace is thinned evenly."""


class ParityData(NamedTuple):
    """Measured and predicted seconds with the regime of every point."""

    measured_s: NDArray[np.float64]
    predicted_s: NDArray[np.float64]
    regime: tuple[str, ...]
    rows: int
    mape: float
    basis: str


class ErrorCurve(NamedTuple):
    """``share[i]`` of the rows of ``op`` are off by ``ape[i]`` percent or less."""

    op: str
    ape: NDArray[np.float64]
    share: NDArray[np.float64]


class ErrorData(NamedTuple):
    """One curve per operation."""

    curves: tuple[ErrorCurve, ...]
    rows: int
    basis: str


def parity_data(report: ReplayReport) -> ParityData:
    """At most ``MAX_POINTS`` rows of a replay, evenly chosen."""
    rows = np.unique(np.linspace(0, len(report.table) - 1, MAX_POINTS).round().astype(np.int64))
    return ParityData(
        report.table.measured_s[rows],
        report.prediction.seconds[rows],
        tuple(REGIMES[code] for code in report.prediction.regime[rows]),
        len(report.table),
        report.overall.mape,
        report.basis,
    )


def parity_figure(data: ParityData) -> go.Figure:
    """Points on the diagonal are exact; the dotted lines are 20 % off."""
    figure = go.Figure()
    low = float(min(data.measured_s.min(), data.predicted_s.min())) * 1e6
    high = float(max(data.measured_s.max(), data.predicted_s.max())) * 1e6
    regimes = np.array(data.regime)
    for regime in REGIMES:
        part = regimes == regime
        if part.any():
            figure.add_scattergl(
                x=data.measured_s[part] * 1e6,
                y=data.predicted_s[part] * 1e6,
                mode="markers",
                name=f"{regime}-bound",
                marker={"color": COLOURS[regime], "size": 4, "opacity": 0.55},
                hovertemplate="measured %{x:.4s} us, predicted %{y:.4s} us",
            )
    add_guides(figure, low, high)
    ticks = {"dtick": 1, "tickformat": "~s"} if high > 100 * low else {}
    figure.update_xaxes(type="log", title="measured (us)", **ticks)
    figure.update_yaxes(type="log", title="predicted (us)", **ticks)
    figure.update_layout(legend_itemsizing="constant")
    return captioned(figure, "Parity", f"{data.rows:,} kernels, MAPE {data.mape:.1f} %", data.basis, 560)


def add_guides(figure: go.Figure, low: float, high: float) -> None:
    """The diagonal from ``low`` to ``high``, and the lines 20 % off it."""
    for factor, dash in ((1.0, "solid"), (1.2, "dot"), (1 / 1.2, "dot")):
        figure.add_scatter(
            x=[low, high],
            y=[low * factor, high * factor],
            mode="lines",
            line={"color": COLOURS["idle"], "width": 1, "dash": dash},
            hoverinfo="skip",
            showlegend=False,
        )


def error_data(report: ReplayReport) -> ErrorData:
    """The distribution of absolute percentage errors of every operation."""
    ape = np.abs(report.prediction.seconds / report.table.measured_s - 1.0) * 100.0
    op = report.table.word("op")
    curves = []
    for code, name in enumerate(op.names):
        part = np.sort(ape[op.codes == code])
        if len(part):
            curves.append(ErrorCurve(name, *thinned_distribution(np.maximum(part, 1e-3))))
    return ErrorData(tuple(curves), len(ape), report.basis)


def error_figure(data: ErrorData) -> go.Figure:
    """Cumulative share of rows by error."""
    figure = go.Figure()
    for curve in data.curves:
        figure.add_scatter(
            x=curve.ape,
            y=curve.share * 100,
            mode="lines" if len(curve.ape) > 1 else "markers",
            name=curve.op,
            line={"width": 2.5, "shape": "hv"},
            hovertemplate="%{y:.1f} % of rows within %{x:.3g} %",
        )
    figure.update_xaxes(type="log", title="absolute error (%)", dtick=1)
    figure.update_yaxes(title="share of rows (%)", range=[0, 102])
    return captioned(figure, "Error distribution", f"{data.rows:,} kernels", data.basis, 560)
