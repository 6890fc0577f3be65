"""Figures of speculation: speed-up by K and batch or context, crossover load, acceptance curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from dashboards.theme import (
    BLUE,
    LOAD_WORDS,
    ON_SCALE,
    VERMILLION,
    add_fan,
    add_line,
    add_points,
    captioned,
    gain_scale,
    method_line,
)
from forerun.arrays import FloatArray
from forerun.document import Json
from simulator.speculation import load_curve
from simulator.speculation.curves import Curve
from simulator.speculation.speculation_config import CONFIDENCE_BUDGET
from simulator.studies.steady_state.ranges import fan_ends
from simulator.studies.tune.grid import SpeculationGrid

LEAST_SCALE_ROWS = 4


def gain_map(x: Sequence[Any], y: Sequence[Any], gain: Any, title: str, hover: str) -> go.Figure:
    """Heat map without axis titles, with a colour bar if the map is high enough for its labels.

    Args:
        x, y: labels of the columns and rows.
        gain: speedup per row and column; NaN if there is none.
        title: title of the colour bar.
        hover: Plotly's hover template.
    """
    low, high = min(0.5, float(np.nanmin(gain))), max(1.5, float(np.nanmax(gain)))
    figure = go.Figure(
        go.Heatmap(
            x=x,
            y=y,
            z=gain,
            showscale=len(y) >= LEAST_SCALE_ROWS,
            colorscale=gain_scale(low, 1.0, high),
            zmin=low,
            zmax=high,
            text=[["" if np.isnan(cell) else f"{cell:.2f}" for cell in row] for row in gain],
            texttemplate="%{text}",
            textfont={"size": 11, "color": ON_SCALE},
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": title, "font": {"size": 12}}, "thickness": 12, "tickfont": {"size": 11}},
            hovertemplate=hover,
        )
    )
    figure.update_xaxes(type="category", showgrid=False)
    return figure.update_yaxes(type="category", showgrid=False)


class SpeedupData(NamedTuple):
    """Speedup ``speedup[k, x]`` with ``draft_tokens[k]`` draft tokens at ``values[x]`` of the quantity ``axis``."""

    axis: str
    values: tuple[int, ...]
    draft_tokens: tuple[int, ...]
    speedup: FloatArray
    caption: str
    basis: str


class AcceptanceCurve(NamedTuple):
    """Acceptance length of one published curve by number of draft tokens."""

    name: str
    published: Curve
    draft_tokens: tuple[int, ...]
    length: tuple[float, ...]
    """Acceptance length, bonus token included, from level and decay or as published."""
    measured_tokens: tuple[int, ...]
    measured_length: tuple[float, ...]


class AcceptanceData(NamedTuple):
    """Acceptance curves, and the name of the curve in use."""

    curves: tuple[AcceptanceCurve, ...]
    chosen: str | None


def speedup_by_batch(grid: SpeculationGrid) -> SpeedupData:
    """Speed-up by number of draft tokens K and batch size."""
    caption = f"{grid.method}, context {grid.context_tokens:,} tokens"
    return SpeedupData("batch (sequences)", grid.batches, grid.draft_tokens, grid.by_batch, caption, grid.basis)


def speedup_by_context(grid: SpeculationGrid) -> SpeedupData:
    """Speed-up by number of draft tokens K and context length."""
    caption = f"{grid.method}, batch {grid.batch}"
    return SpeedupData("context (tokens)", grid.contexts, grid.draft_tokens, grid.by_context, caption, grid.basis)


def speedup_figure(data: SpeedupData) -> go.Figure:
    """A heat map with the speed-up in every cell; 1 is neutral."""
    figure = gain_map(
        [f"{value:,}" for value in data.values],
        list(data.draft_tokens),
        data.speedup,
        "speed-up",
        f"K=%{{y}}, {data.axis} %{{x}}: %{{z:.3f}} x<extra></extra>",
    )
    y = {"title": "draft tokens K", "dtick": 1}
    return captioned(figure, "Speed-up of decoding", data.caption, data.basis, 420, data.axis, y)


def crossover_figure(grid: SpeculationGrid) -> go.Figure:
    """Speed-up over the batch by draft tokens; thicker lines are more draft tokens, diamonds mark a speed-up of 1."""
    figure = go.Figure()
    colour = method_line(grid.method)[0]
    count = len(grid.draft_tokens)
    for index, tokens in enumerate(grid.draft_tokens):
        thick = {
            "width": 1.2 + 2.6 * index / max(1, count - 1),
            "opacity": 0.7 + 0.3 * index / max(1, count - 1),
        }
        hover = "batch %{x}: %{y:.3f} x"
        add_line(figure, grid.batches, grid.by_batch[index], f"K={tokens}", colour, hover, **thick)
    crossed = [at for at in grid.crossover_batch if at]
    if crossed:
        marker = {"symbol": "diamond", "size": 10, "color": method_line("mtp")[0]}
        add_points(figure, crossed, [1.0] * len(crossed), "crossover", marker, "pays below a batch of %{x:.0f}")
    figure.add_hline(y=1.0, line={"color": method_line("none")[0], "width": 1, "dash": "dot"})
    x = {"title": "batch (sequences)", "type": "log", "tickvals": list(grid.batches)}
    title, y = "Where it stops paying", "speed-up of decoding"
    return captioned(figure, title, "thicker lines draft more tokens", grid.basis, 420, x, y)


def acceptance_data(names: Sequence[str], most: int, chosen: str | None = None) -> AcceptanceData:
    """Published curves up to ``most`` draft tokens, but never beyond the measured range."""
    return AcceptanceData(tuple(_curve(name, most) for name in names), chosen)


@cache
def _curve(name: str, most: int) -> AcceptanceCurve:
    curve = load_curve(name)
    tokens = tuple(range(1, min(most, curve.positions) + 1))
    lengths = tuple(1.0 + float(curve.survival(k).sum()) for k in tokens)
    measured = {k: length for k, length in (curve.lengths or {}).items() if k <= most}
    if curve.lengths is None and curve.alpha is None:
        measured = dict(zip(tokens, lengths, strict=True))
    return AcceptanceCurve(name, curve, tokens, lengths, tuple(measured), tuple(measured.values()))


def acceptance_figure(data: AcceptanceData) -> go.Figure:
    """Acceptance length by K; lines are level and decay, dots are published figures; the chosen curve is thick."""
    figure = go.Figure()
    for curve in data.curves:
        published = curve.published
        colour, dash = method_line(published.method)
        name = f"<b>{curve.name}</b><br>"
        chosen = curve.name == data.chosen
        opacity = 1.0 if chosen or data.chosen is None else 0.65
        figure.add_scatter(
            x=curve.draft_tokens,
            y=curve.length,
            mode="lines" if len(curve.draft_tokens) > 1 else "markers",
            name=curve.name,
            line={"color": colour, "dash": dash, "width": 4 if chosen else 1.3},
            opacity=opacity,
            legendgroup=curve.name,
            showlegend=chosen,
            hovertemplate=f"{name}{published.target}, {published.task}<br>K=%{{x}}: %{{y:.2f}}<extra></extra>",
        )
        hover = f"{name}published at K=%{{x}}: %{{y:.2f}}<br>{published.source}<extra></extra>"
        marker, name = {"color": colour, "size": 8 if chosen else 4}, f"{curve.name}, published"
        measured = curve.measured_tokens, curve.measured_length, name, marker, hover
        add_points(figure, *measured, showlegend=False, legendgroup=curve.name, opacity=opacity)
    x = {"title": "draft tokens K", "dtick": 1}
    y = {"title": "acceptance length (tokens per verify step)", "rangemode": "tozero"}
    caption = f"{len(data.curves)} curves, bonus token included"
    return captioned(figure, "Acceptance", caption, "published", 420, x, y, hovermode="closest")


class AdaptiveData(NamedTuple):
    """Output tokens per second by load: the best fixed number of draft tokens, and verification by confidence."""

    axis: str
    loads: tuple[float, ...]
    fixed: tuple[float, ...]
    adaptive: tuple[float, ...]
    basis: str
    ends: Mapping[str, Sequence[Sequence[float]]] = {}
    """Ends of the intervals of ``fixed`` and ``adaptive`` at each load, as ``fan_ends`` has them."""


def adaptive_data(document: Json) -> AdaptiveData | None:
    """Data from a comparison document that varied a load and the policy; None for any other comparison."""
    rates: dict[str, dict[float, tuple[float, list[float]]]] = {"fixed": {}, "adaptive": {}}
    axes: set[str] = set()
    for variant in document["variants"]:
        changes = variant.get("set", {})
        policy = changes.get("speculation.policy")
        name = policy.get("name") if isinstance(policy, dict) else policy
        load = [(path, value) for path, value in changes.items() if path.startswith("workload.arrivals.")]
        if name is None or len(load) != 1 or not isinstance(load[0][1], int | float):
            return None
        axes.add(load[0][0])
        side = rates["adaptive" if name == CONFIDENCE_BUDGET else "fixed"]
        one = variant["summary"]["output_throughput"], fan_ends(variant, "output_throughput")
        side[load[0][1]] = max(side.get(load[0][1], one), one)
    loads = tuple(sorted(set(rates["fixed"]) & set(rates["adaptive"])))
    if len(loads) < 2 or len(axes) != 1:
        return None
    fixed, adaptive = (tuple(rates[side][load][0] for load in loads) for side in ("fixed", "adaptive"))
    ends = {side: [row[load][1] for load in loads] for side, row in rates.items()}
    return AdaptiveData(axes.pop(), loads, fixed, adaptive, document["basis"], ends)


def adaptive_figure(data: AdaptiveData) -> go.Figure:
    """Two lines over the load with their intervals: the best fixed K, and adaptive verification."""
    figure = go.Figure()
    for rates, side, name, colour in (
        (data.fixed, "fixed", "best fixed K", BLUE),
        (data.adaptive, "adaptive", "adaptive verification", VERMILLION),
    ):
        if side in data.ends:
            add_fan(figure, data.loads, data.ends[side], colour)
        add_line(figure, data.loads, rates, name, colour, "%{x}: %{y:,.0f} tokens/s")
    ticks = {"tickvals": data.loads, "ticktext": [f"{load:g}" for load in data.loads]}
    x = {"title": LOAD_WORDS.get(data.axis, data.axis), "type": "log", **ticks}
    y = {"title": "output tokens per second", "rangemode": "tozero"}
    caption = f"{len(data.loads)} loads, the same requests"
    return captioned(figure, "Adaptive verification or fixed K", caption, data.basis, 420, x, y)


def adaptive_text(data: AdaptiveData) -> str:
    """Text table of the throughput at each load, with the best fixed K and with adaptive verification."""
    lines = [f"{data.axis:>16} | {'best fixed K':>12} {'adaptive':>12}"]
    rows = zip(data.loads, data.fixed, data.adaptive, strict=True)
    return "\n".join(lines + [f"{load:>16,} | {fixed:>12,.0f} {adaptive:>12,.0f}" for load, fixed, adaptive in rows])
