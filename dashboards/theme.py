"""Common look of all figures: colours with a meaning, a light and a dark template, captions.

Colours are those of B. Wong, "Points of view: Color blindness", Nature Methods 8 (2011), doi:10.1038/nmeth.1618, which
are distinct for readers with any colour vision; each reads on both backgrounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import cycle
from math import log10
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from forerun.arrays import FloatArray, IntArray

BLUE, ORANGE, GREEN, PINK, VERMILLION, SKY, GREY = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#d55e00",
    "#56b4e9",
    "#8c949e",
)

LIGHT_BLUE = "#2b90d2"
"""``BLUE`` on a dark background, where that alone is dim: its contrast there is 3.3."""

COLOURS = {
    "compute": BLUE,
    "memory": ORANGE,
    "interconnect": GREEN,
    "latency": PINK,
    "host": VERMILLION,
    "idle": GREY,
    "queued": GREY,
    "prefill": BLUE,
    "decode": ORANGE,
    "ttft": BLUE,
    "tpot": VERMILLION,
    "itl": PINK,
    "e2el": GREEN,
    "running": BLUE,
    "waiting": VERMILLION,
    "kv": GREEN,
    "tokens": ORANGE,
    "verify": GREEN,
}
"""Colours by meaning, the same in every figure."""

TIER_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILLION)
"""Colours of memories that hold KV: the chips', then the stores in order."""

METHOD_LINES = {
    "none": (GREY, "solid"),
    "draft-model": (ORANGE, "solid"),
    "ngram": (PINK, "dot"),
    "suffix": (PINK, "dash"),
    "medusa": (PINK, "solid"),
    "eagle": (SKY, "solid"),
    "eagle2": (SKY, "dash"),
    "eagle3": (BLUE, "solid"),
    "mtp": (VERMILLION, "solid"),
    "parallel-draft": (GREEN, "solid"),
}
"""Colour and dash of every speculation method."""


def method_line(method: str) -> tuple[str, str]:
    """Colour and dash of a speculation method; methods without an entry share one look."""
    return METHOD_LINES.get(method, (GREEN, "dot"))


RUN_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY)
"""Colours of compared items, in order."""

LOSS, LITTLE_LOSS, NEUTRAL, LITTLE_GAIN, GAIN = "#e0702a", "#f0b48a", "#f4f4f1", "#a3cfe9", "#4aa3d8"
"""A scale from loss to gain, distinct for any colour vision; dark text is readable on all of it."""
ON_SCALE = "#101418"
"""Text colour on that scale."""


def gain_scale(low: float, neutral: float, high: float) -> list[list[float | str]]:
    """A colour scale from ``low`` (loss) over ``neutral`` to ``high`` (gain); the three ascend."""
    middle = (neutral - low) / (high - low)
    return [
        [0.0, LOSS],
        [middle / 2, LITTLE_LOSS],
        [middle, NEUTRAL],
        [(1 + middle) / 2, LITTLE_GAIN],
        [1.0, GAIN],
    ]


BASIS_WORDS = {
    "datasheet": "datasheet limits, no measurement behind it",
    "calibrated": "fitted on measured kernels of this chip",
    "extrapolated": "shapes outside what was measured",
    "measured": "what was measured itself, nothing predicted",
}

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


@cache
def light_template() -> go.layout.Template:
    """Dark ink on white."""
    return _template(ink="#1f2328", muted="#59636e", paper="#ffffff", grid="#e4e8ec")


@cache
def dark_template() -> go.layout.Template:
    """Light ink on near-black. ``layout.meta`` has the colours that scripts replace, with their lighter variants."""
    template = _template(ink="#e6e9ec", muted="#9da7b1", paper="#161b22", grid="#2b323b")
    return template.update(layout={"meta": {BLUE: LIGHT_BLUE, _channels(BLUE): _channels(LIGHT_BLUE)}})


def _channels(colour: str) -> str:
    """Red, green and blue, as in ``rgba(...)``."""
    return ", ".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))


def _template(ink: str, muted: str, paper: str, grid: str) -> go.layout.Template:
    axis = {
        "gridcolor": grid,
        "linecolor": muted,
        "tickcolor": muted,
        "zerolinecolor": grid,
        "automargin": True,
        "ticks": "outside",
        "ticklen": 4,
        "title": {"standoff": 8, "font": {"size": 12, "color": muted}},
        "tickfont": {"size": 11},
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "colorway": [BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY, GREY],
            "xaxis": axis,
            "yaxis": axis,
            "title": {"x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top"},
            "margin": {"l": 56, "r": 16, "t": 72, "b": 48},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"},
            "hoverlabel": {"font": {"family": FONT}},
            "bargap": 0.25,
        }
    )


LOAD_WORDS = {
    "workload.arrivals.request_rate": "request rate (req/s)",
    "workload.arrivals.max_concurrency": "concurrent requests",
    "workload.arrivals.rate_scale": "arrival rate over the trace's own",
}
"""Axis titles of loads, by field."""
Column = Any
"""Values that Plotly draws: a sequence or an array of numbers, words or times."""
Look = dict[str, Any]
"""Plotly settings of a part of a figure."""
Axis = str | Mapping[str, object]
"""Title of an axis, or its settings."""
REVERSED = {"autorange": "reversed", "showgrid": False}
"""Plotly settings of an axis of names, the first name on top."""


def captioned(
    figure: go.Figure,
    title: str,
    caption: str,
    basis: str | None,
    height: int,
    x: Axis = "",
    y: Axis = "",
    **layout: object,
) -> go.Figure:
    """Set title, a caption that ends with the basis, its height in pixels, axes and light template."""
    text = f"<b>{title}</b><br><span style='font-size:12px'>{caption} · basis: {basis}</span>"
    for update, axis in ((figure.update_xaxes, x), (figure.update_yaxes, y)):
        if axis:
            update({"title": axis} if isinstance(axis, str) else axis)
    heading = {"text": text, "pad": {"t": 26, "l": 16}, "font": {"size": 16}}
    return figure.update_layout(template=light_template(), title=heading, height=height, **layout)


def add_line(
    figure: go.Figure, x: Column, y: Column, name: str, colour: str, hover: str, width: float = 2.5, **more: object
) -> None:
    """Add a line; ``more`` are settings of Plotly's scatter."""
    look: Look = {"mode": "lines", "line": {"color": colour, "width": width}}
    figure.add_scatter(x=x, y=y, name=name, hovertemplate=hover, **(look | more))


def add_tiers(figure: go.Figure, x: Column, shares: Mapping[str, FloatArray], **more: object) -> None:
    """Stack areas of percent, one per tier."""
    for (name, share), colour in zip(shares.items(), cycle(TIER_COLOURS), strict=False):
        look: Look = {"line": {"width": 0, "color": colour}, "fillcolor": colour, "stackgroup": "tiers"}
        figure.add_scatter(x=x, y=share, name=name, mode="lines", hovertemplate="%{y:.1f} %", **(look | more))


def add_points(
    figure: go.Figure,
    x: Column,
    y: Column,
    name: str | None,
    marker: Mapping[str, object],
    hover: str | None,
    **more: object,
) -> None:
    """Add points; ``more`` are settings of Plotly's scatter."""
    figure.add_scatter(x=x, y=y, name=name, mode="markers", marker=marker, hovertemplate=hover, **more)


def add_bars(
    figure: go.Figure, values: Column, names: Column, marker: Mapping[str, object], hover: str | None, **more: object
) -> None:
    """Add horizontal bars; ``more`` are settings of Plotly's bar."""
    figure.add_bar(x=values, y=names, orientation="h", marker=marker, hovertemplate=hover, **more)


INSIDE: Look = {"textposition": "inside", "insidetextanchor": "middle", "constraintext": "none", "textangle": 0}
"""Plotly settings of bars with horizontal text in their middle."""


def whiskers(rows: Sequence[tuple[float | None, float, float | None]], **look: object) -> Look:
    """Plotly's error bars of values from (low end, value, high end); an end that is None has no error bar."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if high is None else high - value for _, value, high in rows],
        "arrayminus": [0.0 if low is None else value - low for low, value, _ in rows],
        **look,
    }


def range_with_intervals(
    rows: Sequence[tuple[float | None, float, float | None]], logarithmic: bool = False
) -> list[float] | None:
    """Range of an axis over values from (low end, value, high end), in powers of ten if it is logarithmic.

    An interval counts up to three times the median length of all intervals, or up to the range of the values if that is
    longer, so that a very wide interval does not flatten the rest. None if no interval is longer than that.
    """
    scale = log10 if logarithmic else float
    ends = [[scale(value if end is None else end) for end in (low, value, high)] for low, value, high in rows]
    values = [value for _, value, _ in ends]
    longest = max(3 * median(high - low for low, _, high in ends), max(values) - min(values)) if ends else 0.0
    if not longest or all(value - low <= longest and high - value <= longest for low, value, high in ends):
        return None
    first = min(max(low, value - longest) for low, value, _ in ends)
    last = max(min(high, value + longest) for _, value, high in ends)
    return [first - 0.04 * (last - first), last + 0.04 * (last - first)]


def add_band(figure: go.Figure, x: Column, low: Column, high: Column, **look: object) -> None:
    """Fill the range from ``low`` to ``high``, columns as long as ``x``."""
    around, ends = np.concatenate((x, np.flip(x))), np.concatenate((high, np.flip(low)))
    figure.add_scatter(x=around, y=ends, mode="lines", fill="toself", line={"width": 0}, hoverinfo="skip", **look)


def add_fan(
    figure: go.Figure, x: Column, ends: Column, colour: str, when: str = "", wide: int = 90, **look: object
) -> None:
    """Add two translucent bands of one colour around a line; all fans of a figure share a legend entry.

    Args:
        x: places of the points.
        ends: row of ``fan_ends`` for each point.
        when: words after the legend entry, for fans of several kinds.
        wide: level of the wider band, percent; that of the other is 50.
    """
    places, table = np.asarray(x, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    rgb = _channels(colour)
    known = np.isfinite(table)
    name = f"{'50 and ' if known[:, 1:3].any() else ''}{wide} % intervals{when}"
    for low, high, opacity in ((0, 3, 0.2), (1, 2, 0.36)):
        rows = known[:, low] & known[:, high]
        if rows.sum() > 1:
            first = all(band.name != name for band in figure.data)
            look |= {"fillcolor": f"rgba({rgb}, {opacity})", "showlegend": first}
            add_band(figure, places[rows], table[rows, low], table[rows, high], name=name, legendgroup=name, **look)


def add_distribution(figure: go.Figure, values: FloatArray, share: FloatArray, **look: object) -> None:
    """Add the share of a sample at or below each value, in percent; a single value is a point."""
    figure.add_scatter(x=values, y=share * 100, mode="lines" if len(values) > 1 else "markers", **look)


def evenly(count: int, most: int) -> IntArray:
    """Indices of at most ``most`` of ``count`` rows, evenly chosen, the first and the last included.

    >>> evenly(5, 3).tolist(), evenly(2, 3).tolist()
    ([0, 2, 4], [0, 1])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


class ResultFigure(NamedTuple):
    """Definition of a figure for all results of one kind."""

    name: str
    data: Callable[[Any], Any]
    """Data of the figure, from a run folder, a replay of kernels, or any other result's document. None if the result
    lacks it."""
    draw: Callable[[Any], go.Figure]
    text: Callable[[Any], str] = str
    """Function that draws the figure in text, for Markdown."""


FigureData = dict[str, tuple[ResultFigure, Any]]
"""Figures of a result by name, with their data, the main figure first."""


def with_data(figures: Iterable[ResultFigure], source: object) -> FigureData:
    """Figures of one result by name, with their data; figures without data are omitted."""
    data = {figure.name: (figure, figure.data(source)) for figure in figures}
    return {name: (figure, one) for name, (figure, one) in data.items() if one is not None and len(one[0])}


TEXT_WIDTH = 56
"""Width of a text figure's axis in characters."""
BAR = 40
"""Length of the longest bar of a text figure in characters."""


def text_bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Bars of text for some values; each row is a label, a value, and text after the bar."""
    longest = max(value for _, value, _ in rows)
    width = max(len(label) for label, *_ in rows)
    bars = [f"{'#' * round(value / longest * BAR):<{BAR + 1}}" for _, value, _ in rows]
    return "\n".join(f"{label:<{width}}  {bar}  {words}" for (label, _, words), bar in zip(rows, bars, strict=True))


def text_intervals(rows: Sequence[tuple[str, float | None, float, float | None]], mark: float, unit: str = "") -> str:
    """Lines of text that show values with intervals on one axis, with a bar at ``mark``.

    Args:
        rows: label, low end, value, high end; ends may be None.
        mark: a value that the axis shows in every line.
        unit: unit after every number.
    """
    known = [mark, *(v for _, low, value, high in rows for v in (low, value, high) if v is not None)]
    least, most = min(known), max(known)
    span = (most - least) or 1.0

    def column(value: float) -> int:
        return round((value - least) / span * (TEXT_WIDTH - 1))

    width = max((len(label) for label, *_ in rows), default=0)
    lines = []
    for label, low, value, high in rows:
        axis = [" "] * TEXT_WIDTH
        axis[column(mark)] = "|"
        if low is not None and high is not None:
            for place in range(column(low), column(high) + 1):
                axis[place] = "-"
        axis[column(value)] = "o"
        lines.append(f"{label:<{width}}  {''.join(axis)}  {value:.3f}{unit}")
    return "\n".join([*lines, f"{'':<{width}}  {least:<{TEXT_WIDTH // 2}.3f}{most:>{TEXT_WIDTH - TEXT_WIDTH // 2}.3f}"])
