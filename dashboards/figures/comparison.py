"""Figures of a comparison: speedups with intervals, tornado of assumed parameters, speedup over load."""

from __future__ import annotations

from math import log10
from typing import Any, NamedTuple

import plotly.graph_objects as go

from dashboards.figures.theme import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILLION, captioned
from simulator.studies.paired import load_words, metric_words

FOREST_METRICS = (
    "output_throughput",
    "request_goodput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "usd_per_million_output_tokens",
    "energy_joules",
)
VARIANT_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY, GREY)
TORNADO_ROWS = 12
NO_EFFECT = 1e-6
CAPTION = "each assumed parameter alone"


class ForestRow(NamedTuple):
    """One speedup: above 1 is better."""

    variant: str
    metric: str
    ratio: float
    low: float | None
    high: float | None


class ForestData(NamedTuple):
    """Speedups of every variant over the baseline, by metric."""

    rows: tuple[ForestRow, ...]
    baseline: str
    basis: str


class TornadoRow(NamedTuple):
    """The answer at both ends of one assumed parameter."""

    parameter: str
    at_low: float
    at_high: float
    flips: bool


class TornadoData(NamedTuple):
    """How one variant's speedup moves with each assumed parameter, widest first."""

    rows: tuple[TornadoRow, ...]
    variant: str
    metric: str
    ratio: float
    basis: str


class LoadCurve(NamedTuple):
    """Speedups of one variant over load, with the ends of their intervals."""

    variant: str
    loads: tuple[float, ...]
    ratios: tuple[float, ...]
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]


class LoadCurveData(NamedTuple):
    """Speedups of every variant over load, and where they pass 1."""

    curves: tuple[LoadCurve, ...]
    crossings: tuple[float, ...]
    path: str
    metric: str
    basis: str


def forest_data(document: dict[str, Any]) -> ForestData:
    """Speedups of a comparison document in the order of the legend."""
    metrics = tuple(dict.fromkeys([document["metric"], *FOREST_METRICS]))
    rows = [
        ForestRow(variant["name"], metric, cell["ratio"], cell["low"], cell["high"])
        for variant in document["variants"][1:]
        for metric in metrics
        if (cell := variant["speedup"].get(metric)) is not None
    ]
    return ForestData(tuple(rows), document["baseline"], document["basis"])


def forest_figure(data: ForestData) -> go.Figure:
    """A dot with its interval per variant and metric, on a logarithmic axis; right of 1 is better."""
    figure = go.Figure()
    names = list(dict.fromkeys(row.variant for row in data.rows))
    metrics = list(dict.fromkeys(row.metric for row in data.rows))
    for index, name in enumerate(names):
        rows = [row for row in data.rows if row.variant == name]
        offset = 0.0 if len(names) == 1 else 0.5 * (index / (len(names) - 1) - 0.5)
        figure.add_scatter(
            x=[row.ratio for row in rows],
            y=[metrics.index(row.metric) + offset for row in rows],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [0.0 if row.high is None else row.high - row.ratio for row in rows],
                "arrayminus": [0.0 if row.low is None else row.ratio - row.low for row in rows],
                "thickness": 2,
                "width": 4,
            },
            mode="markers",
            name=name,
            marker={"size": 9, "color": VARIANT_COLOURS[index % len(VARIANT_COLOURS)]},
            customdata=[[metric_words(row.metric), _interval(row.low, row.high)] for row in rows],
            hovertemplate="%{customdata[0]}: %{x:.3f} %{customdata[1]}",
        )
    figure.add_vline(x=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log", title="speedup (right of 1 is better)", tickformat=".3~g", nticks=6, tickangle=0)
    figure.update_yaxes(
        tickvals=list(range(len(metrics))),
        ticktext=[metric_words(metric) for metric in metrics],
        range=[len(metrics) - 0.5, -0.5],
        showgrid=False,
    )
    figure.update_layout(showlegend=len(names) > 1, hovermode="closest")
    height = 210 + max(26, 16 * len(names)) * len(metrics)
    return captioned(figure, "Speedup over the baseline", "95 % intervals of paired runs", data.basis, height)


def tornado_data(document: dict[str, Any], variant: str | None = None) -> TornadoData | None:
    """The swings of one variant (default: the one with the largest speedup); None where nothing moves."""
    metric = document["metric"]
    known = {v["name"]: v["speedup"][metric] for v in document["variants"][1:] if v["speedup"][metric] is not None}
    if not known or not document["sensitivity"]:
        return None
    name = variant or max(known, key=lambda key: known[key]["ratio"])
    rows = []
    for row in document["sensitivity"]:
        ends = row["ratios"].get(name)
        if ends is None or ends["at_low"] is None or ends["at_high"] is None:
            continue
        if abs(ends["at_high"] - ends["at_low"]) > NO_EFFECT:
            rows.append(TornadoRow(_labelled(row), ends["at_low"], ends["at_high"], name in row["flips"]))
    rows.sort(key=lambda row: -abs(row.at_high - row.at_low))
    if not rows:
        return None
    return TornadoData(tuple(rows[:TORNADO_ROWS]), name, metric, known[name]["ratio"], document["basis"])


def tornado_figure(data: TornadoData) -> go.Figure:
    """A bar per parameter from the speedup at its low end to that at its high end, around the answer."""
    figure = go.Figure()
    labels = [row.parameter.replace(" ", "<br>", 1) for row in data.rows]
    for name, colour, ends in (
        ("at the low end", SKY, [row.at_low for row in data.rows]),
        ("at the high end", VERMILLION, [row.at_high for row in data.rows]),
    ):
        figure.add_bar(
            y=labels,
            x=[end - data.ratio for end in ends],
            base=data.ratio,
            orientation="h",
            name=name,
            marker={"color": colour},
            customdata=ends,
            hovertemplate="%{y}: %{customdata:.3f}",
        )
    figure.add_vline(x=data.ratio, line={"color": GREY, "width": 1.5})
    if any(row.flips for row in data.rows) or 0.8 < data.ratio < 1.25:
        figure.add_vline(x=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    figure.update_layout(barmode="overlay", hovermode="closest")
    figure.update_xaxes(title=f"speedup of {data.variant}")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return captioned(figure, "What the answer rests on", CAPTION, data.basis, 200 + 36 * len(labels))


def load_curve_data(document: dict[str, Any]) -> LoadCurveData | None:
    """Speedups over load; None where the comparison tried no other load."""
    found = document["load_curves"]
    if found is None or not any(curve["points"] for curve in found["curves"]):
        return None
    curves = tuple(
        LoadCurve(
            curve["variant"],
            tuple(point["value"] for point in curve["points"]),
            tuple(point["ratio"] for point in curve["points"]),
            tuple(point["low"] for point in curve["points"]),
            tuple(point["high"] for point in curve["points"]),
        )
        for curve in found["curves"]
    )
    crossover = document["crossover"]
    crossings = () if crossover is None else tuple(row["value"] for row in crossover["all"])
    return LoadCurveData(curves, crossings, found["path"], found["metric"], document["basis"])


def load_curve_figure(data: LoadCurveData) -> go.Figure:
    """Speedup over load with its interval as a band; above 1 the variant pays."""
    figure = go.Figure()
    positive = all(load > 0 for curve in data.curves for load in curve.loads)
    for index, (name, loads, ratios, lows, highs) in enumerate(data.curves):
        colour = VARIANT_COLOURS[index % len(VARIANT_COLOURS)]
        if all(end is not None for end in (*lows, *highs)):
            figure.add_scatter(
                x=[*loads, *reversed(loads)],
                y=[*highs, *reversed(lows)],
                fill="toself",
                fillcolor=colour,
                opacity=0.18,
                line={"width": 0},
                hoverinfo="skip",
                showlegend=False,
            )
        figure.add_scatter(
            x=loads,
            y=ratios,
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 2.5},
            hovertemplate="%{y:.3f} at %{x:.4g}",
        )
    for crossing in data.crossings:
        figure.add_vline(x=crossing, line={"color": GREY, "width": 1.5, "dash": "dash"})
        figure.add_annotation(
            x=log10(crossing) if positive else crossing,
            y=0.0,
            yref="paper",
            xanchor="right",
            yanchor="bottom",
            textangle=-90,
            showarrow=False,
            text=load_words(data.path, crossing),
            font={"size": 12},
        )
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log" if positive else "linear", title=_axis(data.path), tickformat=".3~g")
    figure.update_yaxes(title=f"speedup of {metric_words(data.metric)}")
    figure.update_layout(hovermode="closest", showlegend=len(data.curves) > 1)
    return captioned(figure, "Speedup over load", "above 1 the variant pays", data.basis, 460)


def _axis(path: str) -> str:
    return {
        "workload.arrivals.request_rate": "request rate (req/s)",
        "workload.arrivals.max_concurrency": "concurrent requests",
        "workload.arrivals.rate_scale": "arrival rate over the trace's own",
    }.get(path, path)


def _labelled(row: dict[str, Any]) -> str:
    name = row["parameter"].removesuffix("_bytes_per_s").removesuffix("_s")
    if row["unit"] == "factor":
        return f"{name} ×{row['low']:g}..×{row['high']:g}"
    return f"{name} {row['low']:g}..{row['high']:g} {row['unit']}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"
