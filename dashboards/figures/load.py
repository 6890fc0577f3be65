"""Figures of a deployment over its load: analytic means, simulated points, and the engine's bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.theme import (
    BLUE,
    COLOURS,
    GREY,
    VERMILLION,
    Look,
    add_fan,
    add_line,
    add_points,
    captioned,
    method_line,
    text_bars,
)
from forerun.arrays import FloatArray
from forerun.document import Json
from simulator.running.metrics.usage import HOURS_PER_MONTH
from traces import RequestTable

TIME_BINS = 120


class LoadFigure(NamedTuple):
    """Steady-state means of one deployment by request rate; NaN if there is no steady state."""

    name: str
    method: str
    request_rate: FloatArray
    ttft_ms: FloatArray
    tpot_ms: FloatArray
    output_tokens_per_s: FloatArray
    ends: Mapping[str, FloatArray] = {}
    """Ends of the intervals of the other fields, as ``fan_ends`` has them; empty if unknown."""
    when: str = ""
    """``BEFORE`` or ``AFTER`` for the two predictions of a deployment that was measured."""


BEFORE, AFTER = " before measuring", " after measuring"


METRICS = {
    "ttft_ms": "mean TTFT (ms)",
    "tpot_ms": "mean TPOT (ms)",
    "output_tokens_per_s": "output tokens/s",
}
"""Fields of curves and points that have a panel, with the title of the panel."""


class SimulatedPoint(NamedTuple):
    """Means of one finished run, from its ``summary.json``."""

    request_rate: float
    ttft_ms: float | None
    tpot_ms: float | None
    output_tokens_per_s: float
    requests: int


class LoadData(NamedTuple):
    """Curves, simulated runs of the first curve's deployment, and the load in question."""

    curves: tuple[LoadFigure, ...]
    simulated: tuple[SimulatedPoint, ...]
    request_rate: float
    basis: str
    capacity: float | None = None
    """Highest request rate that the first curve's deployment can serve."""
    limits: Mapping[str, float] = {}
    """Upper limits of the means, by field name of the curves."""


KNEE = 2.0
"""Mean TTFT at the knee, relative to the mean TTFT of an idle engine."""


def knee(curve: LoadFigure) -> float | None:
    """Request rate at which mean TTFT is ``KNEE`` times its value at the lowest load; None if it stays below."""
    rates, ttft = curve.request_rate, curve.ttft_ms
    known = np.isfinite(ttft)
    if not known.any() or ttft[known][-1] < KNEE * ttft[known][0]:
        return None
    return float(np.interp(KNEE * ttft[known][0], ttft[known], rates[known]))


def highest_within(curve: LoadFigure, limits: Mapping[str, float]) -> float | None:
    """Highest rate of a curve at which every mean is within its limit; None if no rate meets the limits."""
    rates = []
    for metric, limit in limits.items():
        values = getattr(curve, metric)
        known = np.isfinite(values)
        below = np.flatnonzero(values[known] <= limit)
        if not len(below):
            return None
        ends = slice(below[-1], below[-1] + 2)
        rates.append(float(np.interp(limit, values[known][ends], curve.request_rate[known][ends])))
    return min(rates, default=None)


LONG_S = 4 * 3600.0
"""Minimum duration in seconds of a log whose time axis is in hours."""


class TrafficData(NamedTuple):
    """A log of requests: arrivals in equal bins of time, and the shares of requests by length.

    Attributes:
        began_s: time of the first request by the log's clock, in seconds since 1970; None without dates.
        time_s: starts of the bins; empty if the log has no times.
        requests_per_s: mean arrival rate in each bin.
        tokens: lower ends of the bins of length, a quarter of an octave wide.
        lengths: share of the prompts and of the answers in each length bin.
    """

    requests: int
    began_s: float | None
    time_s: FloatArray
    requests_per_s: FloatArray
    tokens: FloatArray
    lengths: Mapping[str, FloatArray]


def traffic_data(requests: RequestTable) -> TrafficData:
    """Bin the arrivals and lengths of a request log."""
    counts, starts = np.zeros(0), np.zeros(1)
    if requests.arrival_s is not None and requests.duration_s > 0:
        counts, starts = np.histogram(requests.arrival_s, TIME_BINS)
    both = {"prompts": requests.input_tokens, "answers": requests.output_tokens}
    octaves = np.ceil(np.log2(max(column.max() for column in both.values()) + 1))
    edges = 2.0 ** np.arange(0, octaves + 0.25, 0.25)
    shares = {name: np.histogram(column, edges)[0] / len(requests) for name, column in both.items()}
    rates = counts / np.diff(starts) if len(counts) else counts
    return TrafficData(len(requests), requests.began_s, starts[:-1], rates, edges[:-1], shares)


def traffic_figure(data: TrafficData) -> go.Figure:
    """Requests over time above, lengths below."""
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.2)
    clock, hours = data.began_s is not None, len(data.time_s) > 1 and data.time_s[-1] > LONG_S
    at: Any = data.time_s / (3600 if hours else 1)
    if data.began_s is not None:
        at = (1e3 * (data.began_s + data.time_s)).astype("datetime64[ms]")
    unit = "" if clock else " h" if hours else " s"
    colour, hover = COLOURS["waiting"], f"%{{y:.3g}} req/s from %{{x}}{unit}<extra></extra>"
    look: Look = {
        "line": {"color": colour, "width": 1.5, "shape": "hv"},
        "showlegend": False,
        "row": 1,
        "col": 1,
    }
    add_line(figure, at, data.requests_per_s, "requests", colour, hover, **look)
    for (name, shares), colour in zip(data.lengths.items(), (COLOURS["prefill"], COLOURS["decode"]), strict=True):
        look = {"line": {"color": colour, "width": 2, "shape": "hv"}, "row": 2, "col": 1}
        add_line(figure, data.tokens, shares, name, colour, "%{y:.1%} from %{x:.4s} tokens on", **look)
    figure.update_yaxes(title="requests/s", rangemode="tozero", row=1, col=1)
    since = f"{'hours' if hours else 'seconds'} since the first request"
    figure.update_xaxes(title="time of day of the log" if clock else since, row=1, col=1)
    figure.update_yaxes(title="share of requests", tickformat=".0%", row=2, col=1)
    figure.update_xaxes(title="tokens", type="log", dtick="D2", tickformat="~s", row=2, col=1)
    return captioned(figure, "Traffic", f"{data.requests:,} requests", "measured", 520)


class HoursData(NamedTuple):
    """Load and replicas of a plan by the hour, and their cost compared with a fixed number of replicas."""

    hours: Sequence[Json]
    fixed: int
    costs: Sequence[float]
    """Mean US dollars per hour, autoscaled and fixed; empty without a price."""


def hours_data(document: Json) -> HoursData | None:
    """Replicas by the hour of a plan's document; None if its load has no hours."""
    hours = document["hours"]
    if not hours:
        return None
    priced = hours[0]["usd"] is not None
    costs = [sum(hour[key] for hour in hours) / len(hours) for key in ("usd", "fixed_usd") if priced]
    return HoursData(hours, document["best"]["replicas"], costs)


def hours_figure(data: HoursData) -> go.Figure:
    """Requests per second by the hour above; autoscaled and fixed number of replicas below."""
    clock = data.hours[0]["clock"] is not None
    at = [hour["clock"] if clock else hour["start_s"] / 3600 for hour in data.hours]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    look: Look = {"showlegend": False, "col": 1}
    for row, key in enumerate(("request_rate", "replicas"), start=1):
        figure.add_bar(
            x=at,
            y=[hour[key] for hour in data.hours],
            xperiod=3_600_000,  # milliseconds, on a clock: a bar stands over its hour
            name=("requests/s", "replicas")[row - 1],
            marker={"color": COLOURS["waiting" if row == 1 else "running"]},
            hovertemplate="%{y:.3~g} from %{x}<extra></extra>",
            row=row,
            **look,
        )
    figure.add_hline(y=data.fixed, line={"color": GREY, "width": 2, "dash": "dash"}, row=2, col=1)
    figure.update_yaxes(title="requests/s", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="replicas", rangemode="tozero", dtick=max(1, data.fixed // 4), row=2, col=1)
    figure.update_xaxes(title="time of day of the log" if clock else "hours since the first request", row=2, col=1)
    month = [f", ${usd * HOURS_PER_MONTH:,.0f} a month" for usd in data.costs] or ["", ""]
    caption = f"bars: autoscaled{month[0]}; dashed: {data.fixed} fixed{month[1]}"
    return captioned(figure, "Traffic and replicas by the hour", caption, "predicted", 460)


def hours_text(data: HoursData) -> str:
    rows = [
        (hour["clock"] or f"{hour['start_s'] / 3600:.3g} h", hour["replicas"], str(hour["replicas"]))
        for hour in data.hours
    ]
    return f"replicas by the hour; fixed: {data.fixed}\n" + text_bars(rows)


def load_figure(data: LoadData) -> go.Figure:
    """Three panels over one axis of load; diamonds are simulated, the dotted line is the load in question."""
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    look: Look
    lines: list[Look] = []  # all at once: Plotly takes 7 ms for each line by itself
    words: list[Look] = []
    first = knee(data.curves[0]) if data.curves else None
    within = highest_within(data.curves[0], data.limits) if data.curves else None
    named = ((first, "knee", 1), (data.capacity, "capacity", len(METRICS)))
    marks = [(rate, name, row) for rate, name, row in named if rate is not None]
    for curve in reversed(data.curves):  # the first is drawn over the others
        colour, dash = method_line(curve.method) if curve.when != BEFORE else (GREY, "dot")
        colour = BLUE if curve.when == AFTER and colour == GREY else colour
        look = {"legendgroup": curve.name, "line": {"color": colour, "width": 2.5, "dash": dash}}
        for row, metric in enumerate(METRICS, start=1):
            place = {"showlegend": row == 1, "row": row, "col": 1}
            values, hover = getattr(curve, metric), "%{y:.4s} at %{x:.3g} req/s"
            if metric in curve.ends:
                add_fan(figure, curve.request_rate, curve.ends[metric], colour, curve.when, row=row, col=1)
            add_line(figure, curve.request_rate, values, curve.name, colour, hover, **look, **place)
    for row, (metric, title) in enumerate(METRICS.items(), start=1):
        shown = [point for point in data.simulated if getattr(point, metric) is not None]
        if shown:
            rates, means = zip(*((point.request_rate, getattr(point, metric)) for point in shown), strict=True)
            marker = {"symbol": "diamond", "size": 11, "color": COLOURS["tpot"]}
            look = {"legendgroup": "simulated", "showlegend": row == 1, "row": row, "col": 1}
            look["customdata"] = [[point.requests] for point in shown]
            hover = "simulated: %{y:.4s} at %{x:.3g} req/s, %{customdata[0]:,} requests<extra></extra>"
            add_points(figure, rates, means, "simulated", marker, hover, **look)
        panel = "" if row == 1 else row
        upright = {"type": "line", "y0": 0, "y1": 1, "xref": f"x{panel}", "yref": f"y{panel} domain"}
        dotted = {"color": GREY, "width": 1.5, "dash": "dot"}
        lines.append({**upright, "x0": data.request_rate, "x1": data.request_rate, "line": dotted})
        for rate, name, at_row in marks:
            dashed = {"color": VERMILLION, "width": 1, "dash": "dash"}
            lines.append({**upright, "x0": rate, "x1": rate, "line": dashed})
            if row == at_row:
                at = {"x": rate, "y": 1, "xref": upright["xref"], "yref": upright["yref"], "xanchor": "right"}
                look = {"yanchor": "bottom", "showarrow": False, "font": {"size": 11}}
                words.append({"text": f"{name} {rate:.3g}", **at, **look})
        if metric in data.limits:
            level = {"type": "line", "x0": 0, "x1": 1, "xref": f"x{panel} domain", "yref": f"y{panel}"}
            y = data.limits[metric]
            lines.append({**level, "y0": y, "y1": y, "line": {"color": VERMILLION, "width": 1.5}})
        logarithmic = {"type": "log", "dtick": "D2", "tickformat": "~s"} if row < len(METRICS) else {}
        figure.update_yaxes(title=title, rangemode="tozero", row=row, col=1, **logarithmic)
    figure.update_xaxes(title="requests/s", row=3, col=1)
    caption = "lines: analytic means; diamonds: simulated"
    if data.limits:
        limits = " and ".join(
            f"{METRICS[metric].partition(' (')[0]} <= {ms:g} ms" for metric, ms in data.limits.items()
        )
        caption += f"<br>{limits} {'at no load' if within is None else f'up to {within:.3g} req/s'}"
    marked: Look = {"shapes": lines, "annotations": words, "margin": {"t": 100}}
    return captioned(figure, "Over the load", caption, data.basis, 560, hovermode="closest", **marked)
