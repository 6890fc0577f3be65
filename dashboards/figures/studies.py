"""Figures of studies: comparisons, capacity plans, sweeps, tunings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import inf, isfinite, log10, nan
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.figures.speculation import gain_map
from dashboards.theme import (
    BLUE,
    GREEN,
    GREY,
    LOAD_WORDS,
    ORANGE,
    PINK,
    REVERSED,
    SKY,
    VERMILLION,
    Look,
    add_bars,
    add_fan,
    add_line,
    add_points,
    add_tiers,
    captioned,
    range_with_intervals,
    text_bars,
    text_intervals,
    whiskers,
)
from forerun.arrays import FloatArray
from forerun.document import Json, read_document
from simulator.running.metrics.conclusion import main_evidence
from simulator.running.metrics.statistics import t_quantile
from simulator.studies.compare.document import NO_EFFECT, CompareDocument, range_words
from simulator.studies.paired import HIGHER_IS_BETTER, LEVEL, load_words, metric_with_unit, metric_words
from simulator.studies.steady_state.ranges import fan_ends
from simulator.studies.study_file import field_words, settings_name, short_names
from simulator.studies.sweep.study import DonePoint, SweepDocument

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
LABEL_LETTERS = 26
"""Maximum letters per line of a parameter's label."""
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
    basis: str | None


class TornadoRow(NamedTuple):
    """Speedup at both ends of the range of one assumed parameter."""

    parameter: str
    at_low: float
    at_high: float
    flips: bool


class TornadoData(NamedTuple):
    """Speedups of one variant at both ends of each assumed parameter, widest first."""

    rows: tuple[TornadoRow, ...]
    variant: str
    metric: str
    ratio: float
    basis: str | None


class RatioCurve(NamedTuple):
    """Speedups of one variant over load, with the ends of their intervals."""

    variant: str
    loads: tuple[float, ...]
    ratios: tuple[float, ...]
    lows: tuple[float | None, ...]
    highs: tuple[float | None, ...]


class LoadCurveData(NamedTuple):
    """Speedups of every variant over load, with the loads at which they cross 1."""

    curves: tuple[RatioCurve, ...]
    crossings: tuple[float, ...]
    path: str
    metric: str
    basis: str | None
    capacity: float | None = None
    """Highest load that a variant or the baseline can serve; None if unknown or if the curves go beyond it."""
    likely: float = nan
    """Length of the likely range over that of the interval, in logarithms."""


def forest_data(document: Json) -> ForestData:
    """Speedups of a comparison document in the order of the legend."""
    data = read_document(CompareDocument, document)
    rows = [
        ForestRow(variant.name, metric, cell.ratio, cell.low, cell.high)
        for variant in data.compared
        for metric in dict.fromkeys([data.metric, *FOREST_METRICS])
        if (cell := variant.speedup.get(metric)) is not None
    ]
    return ForestData(tuple(rows), data.baseline, data.basis)


def forest_figure(data: ForestData) -> go.Figure:
    """A dot with its interval per variant and metric, on a logarithmic axis; right of 1 is better."""
    figure = go.Figure()
    names = list(dict.fromkeys(row.variant for row in data.rows))
    metrics = list(dict.fromkeys(row.metric for row in data.rows))
    for index, name in enumerate(names):
        rows = [row for row in data.rows if row.variant == name]
        offset = 0.0 if len(names) == 1 else 0.5 * (index / (len(names) - 1) - 0.5)
        places = [metrics.index(row.metric) + offset for row in rows]
        marker = {"size": 9, "color": VARIANT_COLOURS[index % len(VARIANT_COLOURS)]}
        look: Look = {"error_x": whiskers([(row.low, row.ratio, row.high) for row in rows], thickness=2, width=4)}
        look["customdata"] = [[metric_words(row.metric), _interval(row.low, row.high)] for row in rows]
        hover = "%{customdata[0]}: %{x:.3f} %{customdata[1]}"
        add_points(figure, [row.ratio for row in rows], places, name, marker, hover, **look)
    figure.add_vline(x=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    shown = range_with_intervals([(row.low, row.ratio, row.high) for row in data.rows], logarithmic=True)
    x = {"type": "log", "title": "speedup (right of 1 is better)", "tickformat": ".3~g", "nticks": 6, "tickangle": 0}
    ratios = [1.0, *(row.ratio for row in data.rows)]  # a narrow page has space for few ticks
    x |= {"range": shown, "dtick": "D2" if max(ratios) > 4 * min(ratios) else None}
    ticks = {"tickvals": list(range(len(metrics))), "ticktext": [metric_words(metric) for metric in metrics]}
    y = {**ticks, "range": [len(metrics) - 0.5, -0.5], "showgrid": False}
    look = {"showlegend": len(names) > 1, "hovermode": "closest"}
    height = 210 + max(26, 16 * len(names)) * len(metrics)
    caption = "95 % intervals of paired runs"
    return captioned(figure, "Speedup over the baseline", caption, data.basis, height, x, y, **look)


def forest_text(data: ForestData) -> str:
    """Speedups with their intervals."""
    several = len({row.variant for row in data.rows}) > 1
    rows = [
        (
            f"{row.variant}: {metric_words(row.metric)}" if several else metric_words(row.metric),
            row.low,
            row.ratio,
            row.high,
        )
        for row in data.rows
    ]
    return f"speedup over {data.baseline}, | = 1\n" + text_intervals(rows, 1.0)


class BarsData(NamedTuple):
    """Values by name, each with a flag: within the limit or not."""

    title: str
    caption: str
    unit: str
    bars: Sequence[tuple[str, float, bool]]
    """Name, value, and true if the value is within its limit."""
    basis: str


def rules_data(document: Json) -> BarsData:
    """Speed-up of each rule over the scenario's own, on the seeds of the search."""
    bars = [(row["rule"], float(row["ratio"]), row["ratio"] >= 1.0) for row in document["rules"] if row["ratio"]]
    return BarsData("Rules of the search", "above 1: better than yours", "speed-up", bars, document["basis"])


def thresholds_data(document: Json) -> BarsData:
    """Mean replicas of each autoscaler threshold and each fixed number of replicas, and whether it meets the SLO."""
    bars = [
        (
            f"{row['peak_replicas']} fixed" if row["threshold"] is None else f"threshold {row['threshold']:g}",
            float(row["mean_replicas"]),
            bool(row["holds"]),
        )
        for row in document["candidates"]
    ]
    caption = "green meets the SLO, orange-red misses it"
    return BarsData("Rent of each threshold", caption, "replicas (mean)", bars, document["basis"])


def twin_data(document: Json) -> BarsData:
    """Gap of each metric between a live engine and its simulation, percent."""
    bars = [
        (row["metric"], float(row["gap_percent"]), not row["alarm"])
        for row in document["checks"]
        if row["gap_percent"] is not None
    ]
    return BarsData("Live engine over simulation", "orange-red raises an alarm", "gap (%)", bars, document["basis"])


def importance_data(document: Json) -> BarsData | None:
    """Share of the differences between variants, points or layouts that each setting explains; None with one setting.

    The metric is that of the study; for a plan, the cost or the chips per output token at the best load within the SLO.
    """
    metric, points = document.get("metric"), []
    for row in next(document[key] for key in ("variants", "points", "candidates") if key in document):
        values = dict(row.get("summary") or {})
        for point in row.get("load_points") or ():
            if point["meets_slo"]:
                usd = point["usd_per_million_output_tokens"] or 1 / point["output_tokens_per_s_per_chip"]
                values[metric] = min(usd, values.get(metric, inf))
        if values.get(metric) is not None:
            points.append((row["set"], float(values[metric])))
    shares = explained_shares(points) if points else {}
    if len(shares) < 2 or not any(shares.values()):
        return None
    names = dict(zip(shares, short_names(shares), strict=True))
    ranked = sorted(shares.items(), key=lambda row: -row[1])
    bars = [(names[path].replace("_", " "), 100 * share, True) for path, share in ranked]
    words = metric_words(metric) if metric else "cost per output token within the SLO"
    caption = f"share of the differences in {words} that one setting alone explains, {len(points)} points"
    return BarsData("Which setting matters most", caption, "explained (%)", bars, document["basis"])


class ChipCostData(NamedTuple):
    """Dollars a month of each chip, from best to worst case."""

    rows: tuple[tuple[str, float | None, float, float | None], ...]
    """Chip, cost in the best case, cost, cost in the worst case."""
    evidence: tuple[str, ...]
    basis: str | None


def chip_costs_data(document: Json) -> ChipCostData | None:
    """Monthly cost of every chip of a plan on which a layout meets the SLO; None without prices."""
    known = [row for row in document.get("by_chip") or () if row["usd_per_month"] is not None]
    ends = [row["usd_per_month_range"] or (None, None) for row in known]
    rows = tuple((row["chip"], low, row["usd_per_month"], high) for row, (low, high) in zip(known, ends, strict=True))
    return (
        ChipCostData(rows, tuple(main_evidence(row["evidence"]) for row in known), document["basis"]) if rows else None
    )


EVIDENCE = {"calibrated": GREEN, "extrapolated": ORANGE, "datasheet": VERMILLION}
EVIDENCE_TO_A_BUYER = {
    "calibrated": "measured on this chip",
    "extrapolated": "measured on this chip, but not at these sizes",
    "datasheet": "never measured on this chip",
}


def chip_costs_figure(data: ChipCostData) -> go.Figure:
    """A bar per chip in the colour of its evidence, with a whisker from best to worst case."""
    figure = go.Figure()
    for evidence in dict.fromkeys(data.evidence):
        rows = [row for row, own in zip(data.rows, data.evidence, strict=True) if own == evidence]
        look: Look = {
            "error_x": whiskers([row[1:] for row in rows], thickness=2, width=6),
            "name": EVIDENCE_TO_A_BUYER[evidence],
        }
        look |= {"text": [f"${row[2]:,.0f}" for row in rows], "textposition": "inside", "insidetextanchor": "start"}
        add_bars(figure, [row[2] for row in rows], [row[0] for row in rows], {"color": EVIDENCE[evidence]},
                 "%{y}: $%{x:,.0f} a month", showlegend=True, textangle=0, **look)  # fmt: skip
    caption = "bar: predicted; whisker: best to worst case of the model's own error, nine in ten; colour: evidence"
    order: Look = {"categoryorder": "array", "categoryarray": [row[0] for row in data.rows], **REVERSED}
    axes = ({"title": "US dollars a month", "rangemode": "tozero", "tickprefix": "$"}, order)
    return captioned(figure, "Cost of each chip", caption, data.basis, 200 + 44 * len(data.rows), *axes)


def chip_costs_text(data: ChipCostData) -> str:
    """Monthly cost of each chip with its best and worst case."""
    return "US dollars a month, best to worst case, | = 0\n" + text_intervals(data.rows, 0.0)


def bars_figure(data: BarsData) -> go.Figure:
    """A horizontal bar per name."""
    names, values, good = zip(*data.bars, strict=True) if data.bars else ((), (), ())
    colours = [GREEN if within else VERMILLION for within in good]
    figure = go.Figure()
    add_bars(figure, values, names, {"color": colours}, None)
    return captioned(figure, data.title, data.caption, data.basis, 200 + 26 * len(names), data.unit, REVERSED)


def bars_text(data: BarsData) -> str:
    width = max((len(name) for name, *_ in data.bars), default=0)
    lines = [f"{name:<{width}}  {value:8.2f}{'' if good else '  !'}" for name, value, good in data.bars]
    return "\n".join([f"{data.unit}; ! = {'misses the SLO' if 'SLO' in data.caption else 'alarm'}", *lines])


def tornado_data(document: Json) -> TornadoData | None:
    """Sensitivities of the variant that the conclusion names; None if no parameter changes its speedup."""
    data = read_document(CompareDocument, document)
    if not data.contenders:
        return None
    (variant, speedup), rows = data.contenders[0], []
    for row in data.sensitivity:
        if abs(row.change(variant.name)) > NO_EFFECT:
            words, ends = f"{row.says}, {range_words(row)}", row.ratios[variant.name]
            rows.append(TornadoRow(words, ends.at_low or 0.0, ends.at_high or 0.0, variant.name in row.flips))
    rows.sort(key=lambda row: -abs(row.at_high - row.at_low))
    if not rows:
        return None
    return TornadoData(tuple(rows[:TORNADO_ROWS]), variant.name, data.metric, speedup.ratio, data.basis)


def tornado_figure(data: TornadoData) -> go.Figure:
    """One bar per parameter, between the speedups at its low and high end, around the main result."""
    figure = go.Figure()
    labels = ["<br>".join(wrap(row.parameter, LABEL_LETTERS)) for row in data.rows]
    for end, colour in (("low", SKY), ("high", VERMILLION)):
        speedups = [getattr(row, f"at_{end}") for row in data.rows]
        bars, hover = [speedup - data.ratio for speedup in speedups], "%{y}: %{customdata:.3f}"
        look: Look = {"base": data.ratio, "name": f"at the {end} end", "customdata": speedups}
        add_bars(figure, bars, labels, {"color": colour}, hover, **look)
    figure.add_vline(x=data.ratio, line={"color": GREY, "width": 1.5})
    if any(row.flips for row in data.rows) or 0.8 < data.ratio < 1.25:
        figure.add_vline(x=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    axes, look = (f"speedup of {data.variant}", REVERSED), {"barmode": "overlay", "hovermode": "closest"}
    return captioned(figure, "What the answer rests on", CAPTION, data.basis, 200 + 50 * len(labels), *axes, **look)


def tornado_text(data: TornadoData) -> str:
    """Speedup over the range of each assumed parameter."""
    rows = [
        (row.parameter, min(row.at_low, row.at_high), data.ratio, max(row.at_low, row.at_high)) for row in data.rows
    ]
    return f"{data.variant}: speedup over the range of each assumed parameter\n" + text_intervals(rows, data.ratio)


def load_curve_data(document: Json) -> LoadCurveData | None:
    """Speedups over the loads that can be served; None if the comparison has a single load."""
    data = read_document(CompareDocument, document)
    if data.load_curves is None or not any(curve.points for curve in data.load_curves.curves):
        return None
    crossings = () if data.crossover is None else tuple(row.value for row in data.crossover.all)
    names = (data.baseline, *(curve.variant for curve in data.load_curves.curves))
    capacity = max((most for name in names if (most := data.most(name)) is not None), default=inf)
    within = [[point for point in curve.points if point.value <= capacity] for curve in data.load_curves.curves]
    if max(crossings, default=0.0) > capacity or max(map(len, within)) < 2:
        within, capacity = [curve.points for curve in data.load_curves.curves], inf
    curves = tuple(
        RatioCurve(curve.variant, *zip(*((p.value, p.ratio, p.low, p.high) for p in points), strict=True))
        for curve, points in zip(data.load_curves.curves, within, strict=True)
        if points
    )
    at_most, several = capacity if isfinite(capacity) else None, data.replications - 1
    likely = t_quantile(several, 0.5) / t_quantile(several, LEVEL) if several > 0 else nan
    return LoadCurveData(curves, crossings, data.load_curves.path, data.metric, data.basis, at_most, likely)


def load_curve_figure(data: LoadCurveData) -> go.Figure:
    """Lines of speedup over load with their intervals as a fan; above 1 the variant pays."""
    figure = go.Figure()
    positive = all(load > 0 for curve in data.curves for load in curve.loads)
    for index, (name, loads, ratios, lows, highs) in enumerate(data.curves):
        colour = VARIANT_COLOURS[index % len(VARIANT_COLOURS)]
        wide = np.array([lows, highs], dtype=np.float64)
        likely = ratios * (wide / ratios) ** data.likely
        add_fan(figure, loads, np.column_stack((wide[0], *likely, wide[1])), colour, wide=round(100 * LEVEL))
        add_line(figure, loads, ratios, name, colour, "%{y:.3f} at %{x:.4g}", mode="lines+markers")
    marked = [(load, load_words(data.path, load), "bottom", GREY) for load in data.crossings]
    if data.capacity is not None:
        marked.append((data.capacity, f"capacity {load_words(data.path, data.capacity)}", "top", VERMILLION))
    for load, words, end, colour in marked:
        figure.add_vline(x=load, line={"color": colour, "width": 1.5, "dash": "dash"})
        at = {"x": log10(load) if positive else load, "y": float(end == "top"), "yref": "paper", "yanchor": "bottom"}
        figure.add_annotation(text=words, xanchor="right", showarrow=False, font={"size": 11}, **at)
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    all_loads = [load for curve in data.curves for load in curve.loads]
    decades = positive and max(all_loads) > 10 * min(all_loads)
    title = LOAD_WORDS.get(data.path, data.path)
    x: Look = {"type": "log" if positive else "linear", "title": title, "tickformat": ".3~g"}
    if data.capacity is not None:
        ends = (min(all_loads), data.capacity)
        x["range"] = [log10(end) for end in ends] if positive else ends
    rows = [row for curve in data.curves for row in zip(curve.lows, curve.ratios, curve.highs, strict=True)]
    y = {"title": f"speedup of {metric_words(data.metric)}", "range": range_with_intervals(rows)}
    axes = (x | {"dtick": "D2" if decades else None}, y)
    legend: Look = {"hovermode": "closest", "showlegend": len(figure.data) > 1}
    return captioned(figure, "Speedup over load", "above 1 the variant pays", data.basis, 460, *axes, **legend)


def load_curve_text(data: LoadCurveData) -> str:
    """Speedup of each variant by load."""
    parts = []
    for name, loads, ratios, lows, highs in data.curves:
        rows = [
            (load_words(data.path, load), low, ratio, high)
            for load, low, ratio, high in zip(loads, lows, ratios, highs, strict=True)
        ]
        parts.append(f"{name}: speedup over load, | = 1\n" + text_intervals(rows, 1.0))
    return "\n\n".join(parts)


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


HOLDS, MISSES = "meets the SLO", "misses it"
PER_CHIP, PER_USER, PER_MILLION = (
    "output_tokens_per_s_per_chip",
    "output_tokens_per_s_per_user",
    "usd_per_million_output_tokens",
)
AXIS_WORDS = {PER_CHIP: "tokens/s per GPU", PER_USER: "tokens/s per user", PER_MILLION: "$ per million output tokens"}
SHORT_WORDS = {PER_CHIP: "throughput", PER_USER: "speed", PER_MILLION: "cost"}
GROUP_COLOURS = (BLUE, VERMILLION, GREEN, PINK, SKY, GREY)
"""Colours of groups of layouts; orange is reserved for the answer."""


class LayoutPoint(NamedTuple):
    """A layout simulated at one load."""

    layout: str
    group: str
    """Group by colour: chip, parallelism and method; replicas and token budget do not matter."""
    request_rate: float
    x: float
    y: float
    meets: bool
    on_front: bool
    """True if no other point of its group is better on both axes (Pareto front)."""
    answer: bool
    """True if the point is the best layout at the planned load."""


class ParetoData(NamedTuple):
    """Simulated layouts of a plan over two metrics: throughput per GPU, speed per user or cost per token."""

    points: tuple[LayoutPoint, ...]
    x: str
    y: str
    basis: str


LEAST_POINTS = 3
"""Minimum points of a plane of two metrics; fewer say less than the table."""


def pareto_data(document: Json, x: str = PER_USER, y: str = PER_CHIP) -> ParetoData | None:
    """Every simulated load of a ``plan`` document's layouts; None with fewer than ``LEAST_POINTS``."""
    home, best = document["scenario"]["hardware"]["chip"], document["best"] or {"layout": None}
    rows = [
        (candidate, point)
        for candidate in document["candidates"]
        for point in candidate.get("load_points") or ()
        if point[x] is not None and point[y] is not None
    ]
    if len(rows) < LEAST_POINTS:
        return None
    planned = document["request_rate"] or best.get("max_rate") or 0.0
    own = [point for candidate, point in rows if candidate["layout"] == best["layout"]]
    answer = min(own, key=lambda p: abs(p["request_rate"] - planned), default=None)
    names = [candidate["layout"] for candidate in document["candidates"]]
    groups = _groups({c["layout"]: c["set"].get("hardware.chip", home) for c, _ in rows})
    cost = -1 if y == PER_MILLION else 1
    highest = dict.fromkeys(groups.values(), -inf)
    front = []
    for candidate, point in sorted(rows, key=lambda row: (-row[1][x], -cost * row[1][y])):
        group = groups[candidate["layout"]]
        if cost * point[y] > highest[group]:
            highest[group] = cost * point[y]
            front.append(id(point))
    points = tuple(
        LayoutPoint(
            candidate["layout"],
            groups[candidate["layout"]],
            point["request_rate"],
            point[x],
            point[y],
            point["meets_slo"],
            id(point) in front,
            point is answer,
        )
        for candidate, point in sorted(rows, key=lambda row: (names.index(row[0]["layout"]), row[1]["request_rate"]))
    )
    return ParetoData(points, x, y, document["basis"] or "")


def _groups(chips: Mapping[str, str]) -> dict[str, str]:
    """Group of each layout: name without replicas and token budget, or only chips if there are too many groups."""
    names = {}
    for layout in chips:
        first, *others = layout.split(", ")
        names[layout] = ", ".join(
            [re.sub(r"^\d+ x ", "", first), *(p for p in others if not p.endswith("-token steps"))]
        )
    return names if len(set(names.values())) <= len(GROUP_COLOURS) else dict(chips)


def pareto_figure(data: ParetoData) -> go.Figure:
    """Pareto front of each group of layouts as a line, its other points faint, and the answer as a star."""
    figure = go.Figure()
    colours = dict(zip(dict.fromkeys(p.group for p in data.points), cycle(GROUP_COLOURS), strict=False))
    hover = (
        f"<b>%{{customdata[0]}}</b><br>%{{customdata[1]:.3g}} req/s: %{{customdata[2]}}<br>%{{y:.3~g}} "
        f"{AXIS_WORDS[data.y]}<br>%{{x:.3~g}} {AXIS_WORDS[data.x]}<extra></extra>"
    )

    def add(points: Sequence[LayoutPoint], name: str, colour: str, more: Look, **look: object) -> None:
        symbols = ["circle" if p.meets else "circle-open" for p in points]
        marker = {"color": colour, "size": 8, "symbol": symbols} | more
        shown = [[p.layout, p.request_rate, HOLDS if p.meets else MISSES] for p in points]
        add_points(figure, [p.x for p in points], [p.y for p in points], name, marker, hover, customdata=shown, **look)

    for group, colour in colours.items():
        own = sorted((p for p in data.points if p.group == group), key=lambda p: p.x)
        add([p for p in own if not p.on_front], group, colour, {"size": 6, "opacity": 0.55}, legendgroup=group,
            showlegend=False)  # fmt: skip
        add([p for p in own if p.on_front], group, colour, {}, line={"color": colour, "width": 2}, legendgroup=group)
        figure.data[-1].mode = "lines+markers"
    for point in (p for p in data.points if p.answer):
        name = f"the answer: {point.layout}".replace(", ", ",<br>", 1)
        add([point], name, ORANGE, {"size": 18, "symbol": "star", "line": {"color": GREY, "width": 1}})
    axes = [{"title": AXIS_WORDS[name], "rangemode": "tozero"} for name in (data.x, data.y)]
    title = f"{SHORT_WORDS[data.y]} over {SHORT_WORDS[data.x]}".capitalize()
    caption = f"lines: the best of each chip and method over its loads; filled: {HOLDS}"
    look: Look = {"hovermode": "closest", "showlegend": True}
    return captioned(figure, title, caption, data.basis, 500, *axes, **look)


def pareto_text(data: ParetoData) -> str:
    """Both metrics of every layout at its highest simulated load that meets the SLO, else at its highest load."""
    last = {p.layout: p for p in data.points} | {p.layout: p for p in data.points if p.meets}
    heads = [AXIS_WORDS[name] for name in (data.y, data.x)]
    width = max(map(len, last))
    lines = [f"{'':<{width}}  {'req/s':>8}  {heads[0]:>{len(heads[0])}}  {heads[1]}"]
    for name, p in last.items():
        values = "  ".join(f"{value:{len(head)}.3f}" for head, value in zip(heads, (p.y, p.x), strict=True))
        lines.append(f"{name:<{width}}  {p.request_rate:8.3g}  {values}{'' if p.meets else '  misses the SLO'}")
    return "\n".join(lines)


TEXT_ROWS = 20
"""Maximum points of a sweep in text."""
MOST_FIELDS = 6
"""Maximum fields that get a panel; the fields with the largest effect on the metric come first."""


class SweepPanel(NamedTuple):
    """Points of a sweep over one field."""

    path: str
    values: tuple[Any, ...]
    """Values of the field: numbers, or texts for other types."""
    metric: tuple[float, ...]
    names: tuple[str, ...]
    lines: Sequence[tuple[str, Sequence[int]]] = ()
    """Name of each line and its points, which differ in this field alone, in its order. Lines of one name differ in
    settings that matter less."""


MOST_TICKS = 8
"""Maximum number of values of a swept field with one tick each."""
WIDE = 50.0
"""Ratio of the largest to the smallest value of a metric from which its axis is logarithmic."""


class SweepData(NamedTuple):
    """Panels of a sweep and its best point."""

    panels: tuple[SweepPanel, ...]
    points: tuple[tuple[str, float], ...]
    """Name and metric of every point that has the metric."""
    best: int
    metric: str
    basis: str | None
    ends: FloatArray
    """Ends of the metric's intervals at each point, as ``fan_ends`` has them."""


def sweep_data(document: Json) -> SweepData | None:
    """The finished points of a ``sweep`` document by field; None if no point has the metric."""
    data = read_document(SweepDocument, document)
    known = [(point, value) for point in data.done if (value := point.value(data.metric)) is not None]
    if not known:
        return None
    paths = list(dict.fromkeys(path for point, _ in known for path in point.set))
    panels = []
    for path in paths:
        rows = [(point.set[path], value, point.name) for point, value in known if path in point.set]
        values = [row[0] for row in rows]
        if len({repr(value) for value in values}) < 2 and len(paths) > 1:
            continue
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        shown = tuple(values) if numeric else tuple(str(value) for value in values)
        lines = _lines(path, known) if len(rows) == len(known) and len(set(map(repr, values))) > 1 else ()
        panels.append(SweepPanel(path, shown, tuple(r[1] for r in rows), tuple(r[2] for r in rows), lines))
    sections = {path for point, _ in known for path, value in point.set.items() if isinstance(value, Mapping)}
    panels = [panel for panel in panels if panel.path not in sections] or panels  # texts too long for an axis
    share = explained_shares([(point.set, value) for point, value in known])
    panels.sort(key=lambda panel: (panel.path not in LOAD_WORDS, -share.get(panel.path, 0.0)))
    order = [value for _, value in known]
    best = order.index(max(order) if HIGHER_IS_BETTER[data.metric] else min(order))
    points = tuple((point.name, value) for point, value in known)
    ends = np.array([fan_ends(vars(point), data.metric) for point, _ in known])
    return SweepData(tuple(panels[:MOST_FIELDS]), points, best, data.metric, data.basis, ends)


def _lines(path: str, known: Sequence[tuple[DonePoint, float]]) -> list[tuple[str, list[int]]]:
    """Points along a field by their other settings; empty if no two points differ in the field alone.

    A line is named by all of the other settings, or by the one that explains most if the names are too many.
    """
    lines: dict[str, list[int]] = {}
    order = list(range(len(known)))
    if all(isinstance(point.set[path], int | float) for point, _ in known):
        order.sort(key=lambda index: known[index][0].set[path])
    for index in order:
        others = {name: value for name, value in known[index][0].set.items() if name != path}
        lines.setdefault(settings_name(others) if others else "", []).append(index)
    drawn = [(name, line) for name, line in lines.items() if len(line) > 1]
    if len(drawn) > len(VARIANT_COLOURS):
        share = explained_shares([(point.set, value) for point, value in known])
        most = max((name for name in share if name != path), key=share.__getitem__)
        drawn = [(settings_name({most: known[line[0]][0].set.get(most)}), line) for _, line in drawn]
    return drawn if len({name for name, _ in drawn}) <= len(VARIANT_COLOURS) else []


def sweep_figure(data: SweepData) -> go.Figure:
    """One panel per field, with the best point marked; lines with their intervals over a load."""
    count, names = len(data.panels), dict[str, int]()
    figure = make_subplots(rows=count, cols=1, vertical_spacing=0.22 / count if count > 1 else 0.0)
    for row, panel in enumerate(data.panels, start=1):
        place: Look = {"row": row, "col": 1}
        colours = [BLUE] * len(panel.values)
        for name, line in panel.lines:
            first = name not in names
            names |= {name: names.get(name, len(names))}
            colour = VARIANT_COLOURS[names[name] % len(VARIANT_COLOURS)]
            x, y = ([column[at] for at in line] for column in (panel.values, panel.metric))
            if not isinstance(x[0], str):
                add_fan(figure, x, data.ends[line], colour, **place)
            look: Look = {"legendgroup": name, "showlegend": bool(name) and first}
            add_line(figure, x, y, name, colour, "%{y:.4g} at %{x}", 1.5, **look, **place)
            colours = [colour if at in line else old for at, old in enumerate(colours)]
        marker: Look = {"color": colours, "size": 8, "opacity": 0.75}
        hover = "%{text}: %{y:.4g}<extra></extra>"
        add_points(figure, panel.values, panel.metric, None, marker, hover, text=panel.names, showlegend=False, **place)
        if len(panel.values) > data.best:
            best = [panel.values[data.best]], [panel.metric[data.best]]
            marker = {"color": VERMILLION, "size": 13, "symbol": "circle-open", "line": {"width": 2.5}}
            add_points(figure, *best, "best", marker, None, hoverinfo="skip", showlegend=row == 1, **place)
        numbers = [value for value in panel.values if not isinstance(value, str)]
        wide = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= 10
        few = {"tickvals": sorted(set(numbers))} if 0 < len(set(numbers)) <= MOST_TICKS else {}
        kind = "log" if wide else None
        figure.update_xaxes(title=field_words(panel.path), type=kind, row=row, col=1, **few)
        spread = min(panel.metric) > 0 and max(panel.metric) / min(panel.metric) >= WIDE
        scale = {"type": "log"} if spread else {"rangemode": "tozero"}
        figure.update_yaxes(title=metric_with_unit(data.metric), row=row, col=1, **scale)
    caption = f"{len(data.panels[0].values) if data.panels else 0} points"
    return captioned(figure, "Points by field", caption, data.basis, 170 + 280 * max(1, count))


def points_text(data: SweepData) -> str:
    """Text table of the best points of a sweep."""
    best_first = sorted(data.points, key=lambda row: -row[1] if HIGHER_IS_BETTER[data.metric] else row[1])
    rows = [(name, None, value, None) for name, value in best_first[:TEXT_ROWS]]
    return f"{metric_words(data.metric)}, best first, | = 0\n" + text_intervals(rows, 0.0)


class KvTierData(NamedTuple):
    """Curve over the size of a KV store: bytes, shares in percent, milliseconds."""

    sizes: tuple[float, ...]
    hits: Mapping[str, FloatArray]
    lru: FloatArray
    """Hit rates of one LRU cache as large as all tiers; NaN where they are not known."""
    ttft_ms: FloatArray
    name: str
    enough: float | None
    most: float | None
    basis: str | None


def kv_tier_data(document: Json) -> KvTierData | None:
    """The ``kv_tier`` section of a ``sweep`` document; None without it."""
    data = read_document(SweepDocument, document)
    if (curve := data.kv_tier) is None:
        return None
    rows = curve.sizes

    def percents(values: Iterable[float | None]) -> FloatArray:
        return 100.0 * np.array(list(values), dtype=np.float64)

    return KvTierData(
        sizes=tuple(one.bytes for one in rows),
        hits={name: percents(one.hit_rate_by_tier[name] for one in rows) for name in rows[0].hit_rate_by_tier},
        lru=percents(one.lru_hit_rate for one in rows),
        ttft_ms=np.array([one.mean_ttft_ms for one in rows], dtype=np.float64),
        name=curve.name,
        enough=curve.enough_bytes,
        most=None if curve.most_hit_rate is None else 100.0 * curve.most_hit_rate,
        basis=data.basis,
    )


def kv_tier_figure(data: KvTierData) -> go.Figure:
    """Stacked hit rates and mean TTFT over the size of a store, with the size beyond which nothing is gained."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.6, 0.4])
    gb = [size / 1e9 for size in data.sizes]
    add_tiers(figure, gb, data.hits, row=1, col=1)
    dashed: Look = {"line": {"color": GREY, "width": 2, "dash": "dash"}, "row": 1, "col": 1}
    add_line(figure, gb, data.lru, "one LRU cache of all tiers", GREY, "%{y:.1f} %", **dashed)
    if data.most is not None:
        dotted: Look = {"line": {"color": VERMILLION, "width": 2, "dash": "dot"}, "row": 1, "col": 1}
        add_line(figure, gb, [data.most] * len(gb), "without limit", VERMILLION, "%{y:.1f} %", **dotted)
    plain: Look = {"mode": "lines+markers", "showlegend": False, "row": 2, "col": 1}
    add_line(figure, gb, data.ttft_ms, "mean TTFT", BLUE, "%{y:.4s} ms", **plain)
    if data.enough is not None:
        figure.add_vline(x=data.enough / 1e9, line={"color": GREY, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log", tickvals=gb, row=1, col=1)
    figure.update_xaxes(type="log", tickvals=gb, title=f"size of {data.name} (GB)", row=2, col=1)
    figure.update_yaxes(title="prompt tokens (%)", range=[0, 100], row=1, col=1)
    figure.update_yaxes(title="mean TTFT (ms)", rangemode="tozero", row=2, col=1)
    caption = "prompt tokens by the memory that they came from; dotted line: nothing is gained beyond"
    look: Look = {"hovermode": "x unified", "legend": {"traceorder": "normal"}}
    return captioned(figure, f"Size of {data.name}", caption, data.basis, 560, **look)


def kv_tier_text(data: KvTierData) -> str:
    """Bars of text of the hit rate by size."""
    total = np.sum(list(data.hits.values()), axis=0)
    return text_bars([(f"{size / 1e9:g} GB", hit, f"{hit:.1f} %") for size, hit in zip(data.sizes, total, strict=True)])


def explained_shares(points: Sequence[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Share of the metric's variance between the values of each setting that varies.

    More than ten numbers count as ten equal ranges.

    >>> explained_shares([({"a": 1, "b": 1}, 1.0), ({"a": 1, "b": 2}, 2.0), ({"a": 2, "b": 1}, 4.0),
    ...                   ({"a": 2, "b": 2}, 5.0)])
    {'a': 0.9, 'b': 0.1}
    """
    metric = np.array([value for _, value in points])
    total, shares = float(((metric - metric.mean()) ** 2).sum()), {}
    for path in dict.fromkeys(path for setting, _ in points for path in setting):
        values = [setting.get(path) for setting, _ in points]
        numbers = [value for value in values if isinstance(value, int | float)]
        if len(set(numbers)) > 10:
            low, width = min(numbers), (max(numbers) - min(numbers)) / 10
            values = [value if value is None else min(9, int((value - low) / width)) for value in values]
        marks = np.array([repr(value) for value in values])
        groups = [metric[marks == mark] for mark in dict.fromkeys(marks.tolist())]
        between = sum(len(group) * (group.mean() - metric.mean()) ** 2 for group in groups)
        if len({repr(setting[path]) for setting, _ in points if path in setting}) > 1:
            shares[path] = round(float(between) / total, 6) if total else 0.0
    return shares


class TuningData(NamedTuple):
    """Cells of a ``tune`` document by context and batch."""

    cells: dict[int, list[Json]]
    method: str
    basis: str

    @property
    def batches(self) -> list[str]:
        return [f"{cell['judged_at']['batch']:,}" for cell in next(iter(self.cells.values()))]

    @property
    def drafts(self) -> list[list[str]]:
        """Draft tokens or tree shape of each cell."""
        return [[cell["draft"].replace("tree of ", "T") for cell in row] for row in self.cells.values()]

    @property
    def speedup(self) -> list[list[float]]:
        """Speed-up of the best way to draft in each cell."""
        return [[cell["if_on"]["speedup"] for cell in row] for row in self.cells.values()]


def tuning_data(document: Json) -> TuningData | None:
    """Map of a ``tune`` document; None for a document about a single machine."""
    if "machine" in document:
        return None
    rows: dict[int, list[Json]] = {}
    for cell in document["table"]:
        rows.setdefault(cell["judged_at"]["context"], []).append(cell)
    return TuningData(rows, document["method"], document["basis"])


def _hover(cell: Json) -> str:
    on = cell["if_on"]
    ends = f"{on['speedup']:.3f} x ({on['low']:.2f} to {on['high']:.2f}) with {on['num_speculative_tokens']} drafted"
    batch, context = (f"{low:,} to {high:,}" for low, high in (cell["batch"], cell["context"]))
    return f"batch {batch}, context {context}<br>{ends}"


def tuning_figure(data: TuningData) -> go.Figure:
    """Heat map of the draft tokens and the speed-up of the best way to draft; 1 is neutral."""
    words = [
        [
            f"<b>{draft.removeprefix('K=')}</b><br>{cell['if_on']['speedup']:.2f}{'' if cell['fits_kv_cache'] else '*'}"
            for draft, cell in zip(*row, strict=True)
        ]
        for row in zip(data.drafts, data.cells.values(), strict=True)
    ]
    contexts, hover = (
        [f"{context:,}" for context in data.cells],
        [list(map(_hover, row)) for row in data.cells.values()],
    )
    figure = gain_map(data.batches, contexts, data.speedup, "", "%{customdata}<extra></extra>")
    figure.update_traces(text=words, textfont_size=10, customdata=hover, showscale=False)
    caption, height = f"{data.method}: draft tokens, speed-up", 160 + 64 * max(3, len(contexts))
    axes = ("batch (sequences)", "context (tokens)")
    return captioned(figure, "What to draft", caption, data.basis, height, *axes)


def tuning_text(data: TuningData) -> str:
    """Draft tokens as a grid of text, contexts down and batches across."""
    lines = [f"{'context':>9} | " + " ".join(f"{text:>10}" for text in data.batches)]
    for context, drafts, speedups in zip(data.cells, data.drafts, data.speedup, strict=True):
        words = [f"{draft} {speedup:.2f}" for draft, speedup in zip(drafts, speedups, strict=True)]
        lines.append(f"{context:>9,} | " + " ".join(f"{text:>10}" for text in words))
    return "\n".join(lines)


class DraftingData(NamedTuple):
    """Tokens per second by draft tokens on one machine, a line for each confidence threshold (or number of streams)."""

    lines: dict[str, list[Json]]
    """Rows of the document by the line's name."""
    basis: str


def drafting_data(document: Json) -> DraftingData | None:
    """Rates of a ``tune`` document about a machine, starting with no drafting; None for any other document."""
    if "machine" not in document:
        return None
    several = len({row["batch"][0] for row in document["table"]}) > 1
    lines: dict[str, list[Json]] = {}
    plain: dict[int, Json] = {}
    for row in document["table"]:
        streams = row["batch"][0]
        if not row["num_speculative_tokens"]:
            plain[streams] = row
            continue
        threshold = f"p-min {row['p_min']:g}" if row["p_min"] else "no threshold"
        name = f"{threshold}, {streams} stream{'s' if streams > 1 else ''}" if several else threshold
        lines.setdefault(name, [plain[streams]]).append(row)
    return DraftingData(lines, document["basis"])


def drafting_figure(data: DraftingData) -> go.Figure:
    """Decode rates over the maximum draft length, with 90 % intervals."""
    figure = go.Figure()
    for (name, rows), colour in zip(data.lines.items(), cycle(VARIANT_COLOURS), strict=False):
        tokens, rates = ([row[key] for row in rows] for key in ("num_speculative_tokens", "tokens_per_s"))
        add_fan(figure, tokens, [[row["tokens_per_s_low"], nan, nan, row["tokens_per_s_high"]] for row in rows], colour)
        add_line(figure, tokens, rates, name, colour, "%{y:.4g} at %{x}", mode="lines+markers")
    axes = ({"title": "longest draft (n-max)", "dtick": 1}, {"title": "tokens per second", "rangemode": "tozero"})
    return captioned(figure, "What drafting brings", "decode rates", data.basis, 420, *axes)


def drafting_text(data: DraftingData) -> str:
    return "\n".join(
        f"{name}: " + ", ".join(f"{row['num_speculative_tokens']}: {row['tokens_per_s']:.1f}" for row in rows)
        for name, rows in data.lines.items()
    )
