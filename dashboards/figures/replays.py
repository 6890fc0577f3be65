"""Figures of predictions against measurements of kernels, benchmarks and engine steps; errors and coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from dashboards.figures.run import thinned_distribution
from dashboards.recorded_errors import ErrorRow, by_predicted
from dashboards.theme import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILLION,
    Look,
    add_bars,
    add_distribution,
    add_points,
    captioned,
    evenly,
    whiskers,
)
from forerun.arrays import FloatArray
from forerun.document import Json
from simulator.replay import ReplayReport
from simulator.replay.predict import REGIMES
from simulator.replay.replay_tables import METRIC_WORDS
from simulator.replay.scores import Score

BASIS_COLOURS = {"calibrated": GREEN, "extrapolated": ORANGE, "datasheet": VERMILLION, "measured": BLUE}
MAX_POINTS = 4000
"""Maximum points of one parity plot; a larger trace is thinned evenly."""


class ParityData(NamedTuple):
    """Measured and predicted seconds, and the regime (limiting resource) of every point."""

    measured_s: FloatArray
    predicted_s: FloatArray
    regime: tuple[str, ...]
    rows: int
    mape: float
    basis: str


class ErrorCurve(NamedTuple):
    """Share ``share[i]`` of the rows of ``op`` have an error of at most ``ape[i]`` percent."""

    op: str
    ape: FloatArray
    share: FloatArray


class ErrorData(NamedTuple):
    """One curve per operation."""

    curves: tuple[ErrorCurve, ...]
    rows: int
    basis: str


def parity_data(report: ReplayReport) -> ParityData:
    """At most ``MAX_POINTS`` rows of a replay, evenly chosen."""
    rows = evenly(len(report.rows), MAX_POINTS)
    return ParityData(
        report.rows.measured_s[rows],
        report.prediction.seconds[rows],
        tuple(REGIMES[code] for code in report.prediction.regime[rows]),
        len(report.rows),
        report.overall.mape,
        report.basis,
    )


def parity_figure(data: ParityData) -> go.Figure:
    """Scatter plot of predicted over measured values; the diagonal is exact, the dotted lines are 20 % off."""
    figure = go.Figure()
    low = float(min(data.measured_s.min(), data.predicted_s.min())) * 1e6
    high = float(max(data.measured_s.max(), data.predicted_s.max())) * 1e6
    regimes = np.array(data.regime)
    for regime in REGIMES:
        part = regimes == regime
        if part.any():
            measured, predicted = data.measured_s[part] * 1e6, data.predicted_s[part] * 1e6
            marker = {"color": COLOURS[regime], "size": 4, "opacity": 0.55}
            hover = "measured %{x:.4s} us, predicted %{y:.4s} us"
            add_points(figure, measured, predicted, f"{regime}-bound", marker, hover)
    axes = _parity_axes(figure, low, high, "us", {"dtick": 1, "tickformat": "~s"} if high > 100 * low else {})
    caption = f"{data.rows:,} kernels, MAPE {data.mape:.1f} %; dotted: 20 % off"
    return captioned(figure, "Parity", caption, data.basis, 560, *axes, legend_itemsizing="constant")


def _parity_axes(figure: go.Figure, low: float, high: float, unit: str, ticks: Json) -> tuple[Json, Json]:
    """Axes of measured and predicted values; draws the diagonal from ``low`` to ``high``, and the lines 20 % off it."""
    for factor, dash in ((1.0, "solid"), (1.2, "dot"), (1 / 1.2, "dot")):
        figure.add_scatter(
            x=[low, high],
            y=[low * factor, high * factor],
            mode="lines",
            line={"color": COLOURS["idle"], "width": 1, "dash": dash},
            hoverinfo="skip",
            showlegend=False,
        )
    x, y = ({"type": "log", "title": f"{what} ({unit})", **ticks} for what in ("measured", "predicted"))
    return x, y


def error_data(report: ReplayReport) -> ErrorData:
    """The distribution of absolute percentage errors of every operation."""
    ape = np.abs(report.prediction.seconds / report.rows.measured_s - 1.0) * 100.0
    op = report.rows.word("op")
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
        look = {"line": {"width": 2.5, "shape": "hv"}, "hovertemplate": "%{y:.1f} % of rows within %{x:.3g} %"}
        add_distribution(figure, curve.ape, curve.share, name=curve.op, **look)
    axes = (
        {"type": "log", "title": "absolute error (%)", "dtick": 1},
        {"title": "share of rows (%)", "range": [0, 102]},
    )
    return captioned(figure, "Error distribution", f"{data.rows:,} kernels", data.basis, 560, *axes)


class ScoresData(NamedTuple):
    """Errors of each group by operation, format and regime, worst first."""

    groups: tuple[Score, ...]
    basis: str

    @property
    def labels(self) -> list[str]:
        return [_label(group) for group in self.groups]


def _label(group: Score) -> str:
    return f"{group.op} {group.dtype}, {group.regime}"


def scores_data(report: ReplayReport) -> ScoresData:
    """Errors of every group of a replay by operation, format and regime."""
    groups = [group for group in report.groups if group.regime != "all"]
    return ScoresData(tuple(sorted(groups, key=lambda group: -group.p90_ape)), report.basis)


def scores_figure(data: ScoresData) -> go.Figure:
    """Bars of the median error in the colour of the regime, with whiskers to the 90th percentile."""
    figure = go.Figure()
    for regime in dict.fromkeys(bar.regime for bar in data.groups):
        part = [bar for bar in data.groups if bar.regime == regime]
        medians, labels = [bar.median_ape for bar in part], [_label(bar) for bar in part]
        ends = [(None, bar.median_ape, max(bar.median_ape, bar.p90_ape)) for bar in part]
        look: Look = {"name": f"{regime}-bound", "error_x": whiskers(ends, color=GREY, thickness=1.5)}
        look["customdata"] = [[bar.n, bar.p90_ape, bar.bias] for bar in part]
        hover = "%{y}: median %{x:.1f} %, p90 %{customdata[1]:.1f} %, bias %{customdata[2]:+.1f} %, "
        hover += "%{customdata[0]:,} rows<extra></extra>"
        add_bars(figure, medians, labels, {"color": COLOURS.get(regime, BLUE)}, hover, **look)
    y = {"categoryorder": "array", "categoryarray": data.labels, "autorange": "reversed", "ticks": ""}
    x, height = {"title": "absolute error (%)", "rangemode": "tozero"}, 160 + 30 * max(3, len(data.groups))
    caption = "bar: median, whisker: 90th percentile"
    return captioned(figure, "By operation and regime", caption, data.basis, height, x, y)


def coverage_figure(data: ScoresData) -> go.Figure:
    """Share of measurements inside the 90 % interval of their prediction, by group; empty if no group has intervals."""
    figure = go.Figure()
    part = [bar for bar in data.groups if bar.coverage90 is not None]
    shares, labels = [bar.coverage90 for bar in part], [_label(bar) for bar in part]
    counts, hover = [[bar.n] for bar in part], "%{y}: %{x:.1f} % of %{customdata[0]:,} rows<extra></extra>"
    add_bars(figure, shares, labels, {"color": SKY}, hover, customdata=counts, showlegend=False)
    figure.add_vline(x=90, line={"color": GREY, "width": 1.5, "dash": "dot"})
    axes = ({"title": "inside the 90 % interval (%)", "range": [0, 100]}, {"autorange": "reversed", "ticks": ""})
    return captioned(figure, "Coverage", "90 % would be right", data.basis, 160 + 30 * max(3, len(part)), *axes)


FEW_POINTS = 100
"""Maximum number of points that are drawn large."""
MOST_GROUPS = 6
"""Number of groups with a separate colour; further groups share one."""
_GROUP_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY)


class ServingParity(NamedTuple):
    """Measured and predicted values of one metric over runs."""

    metric: str
    measured: FloatArray
    predicted: FloatArray
    group: tuple[str, ...]
    name: tuple[str, ...]
    mape: float
    basis: str


def serving_parity_data(document: Json, metric: str) -> ServingParity | None:
    """The runs of a replay document that measured ``metric``; None if fewer than two runs measured it."""
    runs = [run for run in document["runs"] if metric in run["error"]]
    if len(runs) < 2:
        return None
    errors = np.array([run["error"][metric] for run in runs])
    return ServingParity(
        metric,
        np.array([run["measured"][metric] for run in runs]),
        np.array([run["predicted"][metric] for run in runs]),
        tuple(_group(run) for run in runs),
        tuple(run["name"] for run in runs),
        float(np.abs(errors).mean()),
        document["basis"] or "datasheet",
    )


def step_parity_data(document: Json) -> ServingParity | None:
    """Measured and predicted milliseconds of every step, coloured by kind of step; None for a single step."""
    steps = document["steps"]
    if len(steps) < 2:
        return None
    return ServingParity(
        "step_ms",
        np.array([row["measured_s"] for row in steps]) * 1e3,
        np.array([row["predicted_s"] for row in steps]) * 1e3,
        tuple(row["kind"] for row in steps),
        tuple(row["place"].rsplit("/", 1)[-1] for row in steps),
        document["overall"]["mape"],
        document["basis"],
    )


def serving_parity_figure(data: ServingParity) -> go.Figure:
    """Scatter plot of predicted over measured values; the diagonal is exact, the dotted lines are 20 % off."""
    title, unit = METRIC_WORDS[data.metric]
    figure = go.Figure()
    groups = np.array(data.group)
    labels, counts = np.unique(groups, return_counts=True)
    order = [str(label) for label in labels[np.argsort(-counts, kind="stable")]]
    named = order if len(order) <= MOST_GROUPS else order[: MOST_GROUPS - 1]
    parts = [(label, groups == label) for label in named]
    if len(order) > len(named):
        parts.append((f"{len(order) - len(named)} others", ~np.isin(groups, named)))
    names = np.array(data.name)
    for index, (label, part) in enumerate(parts):
        colour = GREY if index >= len(named) else _GROUP_COLOURS[index]
        marker = {"color": colour, "size": 9 if len(data.measured) <= FEW_POINTS else 6, "opacity": 0.8}
        hover = f"%{{text}}<br>measured %{{x:.4g}} {unit}, predicted %{{y:.4g}} {unit}<extra></extra>"
        add_points(figure, data.measured[part], data.predicted[part], label, marker, hover, text=names[part])
    low = float(min(data.measured.min(), data.predicted.min()))
    high = float(max(data.measured.max(), data.predicted.max()))
    ticks: Look = {"tickformat": "~s"}
    if high > 4 * low:
        ticks["dtick"] = 1 if high > 40 * low else "D2"
    axes = _parity_axes(figure, low, high, unit, ticks)
    what = "steps" if data.metric == "step_ms" else "runs"
    caption = f"{len(data.measured):,} {what}, MAPE {data.mape:.1f} %; dotted: 20 % off"
    return captioned(figure, title, caption, data.basis, 520, *axes, legend_itemsizing="constant")


def _group(run: Json) -> str:
    """Engine and tensor parallelism, which separate host errors from interconnect errors."""
    parallel = f"TP {run['tensor_parallel']}" if run["tensor_parallel"] else ""
    return " ".join(word for word in (run["framework"], parallel) if word) or "runs"


def errors_figure(rows: Sequence[ErrorRow]) -> go.Figure:
    """A dot for each comparison, and a bar at the median of each kind of prediction."""
    figure, groups = go.Figure(), by_predicted(rows)
    points = [(words, row.mape, row.basis or "measured", row.name) for words, group in groups.items() for row in group]
    for basis, colour in BASIS_COLOURS.items():
        part = [point for point in points if point[2] == basis]
        if part:
            words, errors, _, names = zip(*part, strict=True)
            marker = {"color": colour, "size": 8, "opacity": 0.65}
            add_points(figure, errors, words, basis, marker, "%{text}: %{x:.1f} %<extra></extra>", text=names)
    middles = [float(np.median([row.mape for row in group])) for group in groups.values()]
    marker = {"symbol": "line-ns-open", "size": 9, "color": GREY, "line": {"width": 3}}
    hover = "half within %{x:.1f} %<extra></extra>"
    add_points(figure, middles, list(groups), "half are below", marker, hover)
    x = {"title": "mean absolute error (%)", "type": "log", "dtick": "D2", "tickformat": "~g"}
    order = {"categoryorder": "array", "categoryarray": list(groups)[::-1]}
    y = {**order, "ticks": "", "automargin": True, "dtick": 1}
    caption, height = f"{len(points):,} comparisons with measurements", 170 + 28 * max(3, len(groups))
    return captioned(figure, "How far off", caption, "by colour", height, x, y)
