"""Attention-level speculation: speedup by context and hit rate, sensitivity, what-ifs, and both groups in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.figures.speculation import gain_map
from dashboards.theme import (
    BLUE,
    GREEN,
    GREY,
    INSIDE,
    ORANGE,
    PINK,
    SKY,
    VERMILLION,
    Look,
    add_band,
    add_bars,
    add_line,
    add_points,
    captioned,
    range_with_intervals,
    whiskers,
)
from forerun.arrays import FloatArray
from forerun.document import Json
from hwprofiles import weakest
from simulator.speculation.attention_level import (
    Bar,
    ConsistencySet,
    LayerTimes,
    PassTrace,
    Reading,
    SensitivityCase,
    compare_layouts,
    crossover_range,
    sensitivity,
    simulate_pass,
    speedup_band,
)
from simulator.studies.alspec import Gain

HIT_COLOURS = (SKY, BLUE, GREEN, ORANGE, VERMILLION, PINK)


class ContextGainData(NamedTuple):
    """Speedup over TP 8 by context for several hit rates, with an uncertainty band for the highest hit rate."""

    contexts: FloatArray
    hit_rates: tuple[float, ...]
    speedup: FloatArray
    """Speedup by hit rate and context: [hit rates, contexts]."""
    low: FloatArray
    high: FloatArray
    crossover: tuple[float | None, float | None, float | None]
    published: tuple[float, float]
    """Context in tokens and speedup of the published result."""
    label: str


def context_gain_data(
    parameters: ConsistencySet, reading: Reading = "next-attention", points: int = 60
) -> ContextGainData:
    """Speedups of the published hit rates over contexts from 1K to 128K tokens, from one parameter set."""
    published = parameters.published
    contexts = np.geomspace(published["contexts"][0], published["contexts"][-1], points)
    rates = tuple(published["hit_rates"])
    rows = [compare_layouts(parameters, contexts, rate, reading).speedup for rate in rates]
    low, high = speedup_band(parameters, contexts, rates[-1], reading)
    return ContextGainData(
        contexts,
        rates,
        np.array(rows),
        low,
        high,
        crossover_range(parameters, rates[-1], reading),
        (float(published["context_tokens"]), float(published["max_speedup"])),
        parameters.label.split(":")[0],
    )


def context_gain_figure(data: ContextGainData) -> go.Figure:
    """One line per hit rate; the band is the range of other plausible parameters at the highest hit rate."""
    figure = go.Figure()
    best = f"{data.hit_rates[-1]:.1%}"
    words = f"{best} hits, other plausible parameters"
    add_band(figure, data.contexts, data.low, data.high, fillcolor="rgba(140, 148, 158, 0.25)", name=words)
    for rate, row, colour in zip(data.hit_rates, data.speedup, HIT_COLOURS[: len(data.hit_rates)], strict=False):
        add_line(figure, data.contexts, row, f"{rate:.1%} hits", colour, "%{x:,.0f} tokens: %{y:.2f}x")
    context, speedup = data.published
    marker = {"symbol": "diamond-open", "size": 11, "color": GREY, "line": {"width": 2.5}}
    hover = "published: %{y:.2f}x at %{x:,.0f} tokens<extra></extra>"
    add_points(figure, [context], [speedup], f"published maximum, {speedup:g}x", marker, hover)
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1, "dash": "dot"})
    cross, low, high = data.crossover
    pays = f"pays from {token_grid(cross)} at {best} ({token_grid(low)} to {token_grid(high)})"
    caption = f"{'no crossover' if cross is None else pays}<br>eight n150"
    axis = context_axis(data.contexts[0], data.contexts[-1])
    title, y = "TP 4 x SP 2 against TP 8", "speedup over TP 8"
    return captioned(figure, title, caption, data.label, 560, axis, y, margin={"t": 88})


class SensitivityData(NamedTuple):
    """Speedups of a parameter set and its named alternatives at one context and hit rate."""

    cases: tuple[SensitivityCase, ...]
    published: float
    label: str
    where: str


def sensitivity_data(
    parameters: ConsistencySet, context_tokens: int, hit_rate: float, reading: Reading = "next-attention"
) -> SensitivityData:
    """Compute the speedup of the parameter set, then of its alternatives in ascending order."""
    base, *others = sensitivity(parameters, context_tokens, hit_rate, reading)
    return SensitivityData(
        (base, *sorted(others, key=lambda case: case.speedup)),
        float(parameters.published["max_speedup"]),
        parameters.label.split(":")[0],
        f"{token_grid(context_tokens)}, {hit_rate:.1%} hits",
    )


def sensitivity_figure(data: SensitivityData) -> go.Figure:
    """One bar per alternative, from the set's speedup to the alternative's speedup; the published value is a line."""
    base = data.cases[0]
    rows = list(range(len(data.cases)))
    low = min(case.speedup for case in data.cases)
    high = max(data.published, *(case.speedup for case in data.cases))
    start = low - 0.06 * (high - low)
    figure = go.Figure()
    look: Look = {"width": 0.4, "base": [base.speedup] * len(rows), "showlegend": False}
    look["customdata"] = [(case.speedup, case.overhead_reduction, case.name) for case in data.cases]
    hover = "%{customdata[0]:.2f}x, attention overhead cut %{customdata[1]:.1f}x<extra>%{customdata[2]}</extra>"
    colours = {"color": [VERMILLION if case.speedup < base.speedup else GREEN for case in data.cases]}
    add_bars(figure, [case.speedup - base.speedup for case in data.cases], rows, colours, hover, **look)
    dots = [case.speedup for case in data.cases], rows, None, {"color": BLUE, "size": 8}, None
    add_points(figure, *dots, hoverinfo="skip", showlegend=False)
    figure.add_scatter(
        x=[start] * len(rows),
        y=[row - 0.42 for row in rows],
        mode="text",
        text=[f"{case.speedup:.2f}x  {case.name}" for case in data.cases],
        textposition="middle right",
        textfont={"size": 12},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    figure.add_vline(x=data.published, line={"color": GREY, "width": 1.5, "dash": "dash"})
    title = f"speedup over TP 8 (dashed: published {data.published:g}x)"
    x = {"title": title, "range": [start, high + 0.05 * (high - low)]}
    figure.update_yaxes(range=[len(rows) - 0.5, -0.8], showticklabels=False, ticks="", showgrid=False, zeroline=False)
    caption = f"{low:.2f}x to {max(case.speedup for case in data.cases):.2f}x<br>{data.where}"
    return captioned(figure, "Other plausible parameters", caption, data.label, 520, x, margin={"t": 88})


class GainData(NamedTuple):
    """Speedups of a layout by context, one line per batch size."""

    title: str
    model: str
    gains: tuple[Gain, ...]
    basis: str


def gain_figure(data: GainData) -> go.Figure:
    """Bars span the range of the assumed costs; hollow markers are batches whose KV does not fit.

    The line of the smallest batch is labelled with its break-even context and its largest gain.
    """
    figure = go.Figure()
    batches = sorted({gain.batch for gain in data.gains})
    for batch, colour in zip(batches, HIT_COLOURS, strict=False):
        row = sorted((gain for gain in data.gains if gain.batch == batch), key=lambda gain: gain.context_tokens)
        figure.add_scatter(
            x=[gain.context_tokens for gain in row],
            y=[gain.speedup for gain in row],
            error_y=whiskers([(gain.low, gain.speedup, gain.high) for gain in row], thickness=1.2, width=3),
            mode="lines+markers",
            name=f"batch {batch}",
            line={"color": colour, "width": 2},
            marker={"size": 9, "symbol": ["circle" if gain.fits else "circle-open" for gain in row]},
            customdata=[("" if gain.fits else ", KV does not fit", gain.low, gain.high) for gain in row],
            hovertemplate="%{y:.2f}x (%{customdata[1]:.2f} to %{customdata[2]:.2f})%{customdata[0]}",
        )
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1, "dash": "dot"})
    smallest = [gain for gain in data.gains if gain.batch == batches[0] and gain.fits]
    paying = [gain for gain in smallest if gain.speedup >= PAYS]
    if paying:
        first, best = paying[0], max(paying, key=lambda gain: gain.speedup)
        figure.add_vline(x=first.context_tokens, line={"color": GREEN, "width": 1.5, "dash": "dash"})
        words = f"pays from {token_grid(first.context_tokens)}"
        side = "left" if first is smallest[0] else "right"
        place: Look = {"x": np.log10(first.context_tokens), "xanchor": side, "yref": "paper", "y": 0.9}
        figure.add_annotation(text=words, showarrow=False, **place)
        words = f"<b>{best.speedup:.2f}x at {token_grid(best.context_tokens)}</b>"
        place = {"x": np.log10(best.context_tokens), "y": best.high, "yanchor": "bottom"}
        figure.add_annotation(text=words, showarrow=False, **place)
    contexts = [gain.context_tokens for gain in data.gains]
    hollow = "" if all(gain.fits for gain in data.gains) else "<br>hollow: KV does not fit"
    caption, axis = f"{data.model}{hollow}", context_axis(min(contexts), max(contexts))
    shown = range_with_intervals([(gain.low, gain.speedup, gain.high) for gain in data.gains])
    y = {"title": "speedup", "range": shown}
    return captioned(figure, data.title, caption, data.basis, 500, axis, y, margin={"t": 88})


def token_grid(count: float | None) -> str:
    """Format a number of tokens in K or M; "never" for None."""
    if count is None:
        return "never"
    if count >= 1 << 20:
        return f"{count / (1 << 20):.3g}M"
    return f"{count / 1024:.3g}K" if count >= 1024 else f"{count:.0f}"


def context_axis(low: float, high: float) -> Look:
    """A logarithmic axis of contexts with ticks at powers of two."""
    first, last = int(np.ceil(np.log2(low) - 1e-9)), int(np.floor(np.log2(high) + 1e-9))
    values = [float(1 << power) for power in range(first, last + 1)]
    ticks = {"tickvals": values, "ticktext": [token_grid(value) for value in values]}
    return {"type": "log", "title": "context (tokens)", **ticks}


HIT_RATES = (0.0, 0.25, 0.5, 0.625, 0.75, 0.875, 0.95, 1.0)


class ContextMapData(NamedTuple):
    """``speedup[row, context]`` of two groups over one; NaN if the KV does not fit."""

    rows: tuple[str, ...]
    """Labels of the rows: hit rates or layouts."""
    contexts: tuple[int, ...]
    speedup: FloatArray
    title: str
    caption: str
    basis: str
    low: FloatArray | None = None
    high: FloatArray | None = None
    """Speedups ``low`` and ``high``: with every assumed cost at one end of its range."""


def attention_map_data(
    parameters: ConsistencySet, contexts: Sequence[int], reading: Reading, hit_rates: Sequence[float] = HIT_RATES
) -> ContextMapData:
    """Speedup at every hit rate and context, from one parameter set."""
    axis, rates = np.array(contexts, dtype=np.float64), tuple(f"{rate:.1%}" for rate in hit_rates)
    speedup = np.array([compare_layouts(parameters, axis, rate, reading).speedup for rate in hit_rates])
    title, basis = "TP 4 x SP 2 over TP 8", parameters.label.split(":")[0]
    return ContextMapData(rates, tuple(contexts), speedup, title, f"reading: {reading}", basis)


def attention_map_figure(data: ContextMapData) -> go.Figure:
    """A heat map with the speedup at every hit rate and context; 1 is neutral."""
    figure = _context_map(data, "%{x} tokens, %{y} hits: %{z:.3f} x<extra></extra>")
    return captioned(figure, data.title, data.caption, data.basis, 420, y="hit rate")


def _context_map(data: ContextMapData, hover: str) -> go.Figure:
    contexts = [token_grid(context) for context in data.contexts]
    return gain_map(contexts, data.rows, data.speedup, "speedup", hover).update_xaxes(title="context (tokens)")


PAYS = 1.02
"""Minimum speedup at which a layout counts as paying."""


def atlas_data(cases: Sequence[Json], names: Sequence[str], batch: int, title: str, caption: str) -> ContextMapData:
    """Map with one row per priced case of ``simulator.studies.alspec.atlas_gains``."""
    rows = [{row["context_tokens"]: row for row in case["gains"] if row["batch"] == batch} for case in cases]
    contexts = tuple(sorted(rows[0]))

    speedup, low, high = (
        np.array([[row[at][name] if row[at]["fits"] else np.nan for at in contexts] for row in rows])
        for name in ("speedup", "low", "high")
    )
    basis = weakest(case["basis"] for case in cases)
    return ContextMapData(tuple(names), contexts, speedup, title, caption, basis, low, high)


def region_words(case: Json, batch: int) -> str:
    """Sentence about a layout of the atlas: context from which it pays, and largest gain with its range."""
    rows = [row for row in case["gains"] if row["batch"] == batch and row["fits"]]
    if not rows:
        return "KV does not fit"
    paying = [row["context_tokens"] for row in rows if row["speedup"] >= PAYS]
    best = max(rows, key=lambda row: row["speedup"])
    where = f"pays from {min(paying) // 1024}K tokens of context" if paying else "pays nowhere"
    range_words = f"{best['speedup']:.2f}x ({best['low']:.2f} to {best['high']:.2f})"
    return f"{where}, at most {range_words} at {best['context_tokens'] // 1024}K"


def atlas_figure(data: ContextMapData) -> go.Figure:
    """A heat map with the gain of every layout at every context; 1 is neutral."""
    hover = "%{y}, %{x} tokens: %{z:.3f} x (%{customdata[0]:.2f} to %{customdata[1]:.2f})<extra></extra>"
    ends: Any = (data.low, data.high)
    figure = _context_map(data, hover).update_traces(customdata=np.dstack(ends))
    height = 140 + 24 * len(data.rows)
    return captioned(figure, data.title, data.caption, data.basis, height, y={"autorange": "reversed"})


LANES = ("link", "group 1", "group 0")
WORK_COLOURS = {
    "before attention": SKY,
    "first and last chunk": VERMILLION,
    "exact attention": ORANGE,
    "verification": PINK,
    "after attention": BLUE,
    "skipped launches": GREY,
    "link": GREEN,
}
"""Kinds of work in the order of the legend."""
LABEL_SHARE = 0.19
"""Minimum width of a bar that is labelled, as a share of the figure's width; skipped work has no label."""


class GanttData(NamedTuple):
    """Work of two groups and their link in two passes: one hits, one misses in its first layer."""

    hit: PassTrace
    miss: PassTrace
    reading: str
    basis: str


def gantt_data(times: LayerTimes, reading: Reading, basis: str) -> GanttData:
    """Simulate two passes of two layers: in one both layers pass, in the other the first layer fails."""
    return GanttData(
        simulate_pass(times, (True, True), reading), simulate_pass(times, (False, True), reading), reading, basis
    )


def gantt_figure(data: GanttData) -> go.Figure:
    """Two panels over time in microseconds: hit above, miss below; hatched work is discarded."""
    panels = {"both layers pass": data.hit, "the first layer fails": data.miss}
    names = [f"{name} · two layers in {one.seconds * 1e6:,.0f} us" for name, one in panels.items()]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=names, vertical_spacing=0.14)
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    width = max(data.hit.seconds, data.miss.seconds)
    shown: set[str] = set()
    for row, one in enumerate(panels.values(), start=1):
        for kind, colour in WORK_COLOURS.items():
            part = [bar for bar in one.bars if work_of(bar) == kind]
            if not part:
                continue
            hatched = {"shape": ["" if bar.kept else "/" for bar in part], "fillmode": "overlay"}
            pattern = hatched | {"fgcolor": "#ffffff", "fgopacity": 0.8}
            marker = {"color": colour, "line": {"width": 0.5, "color": "#101418"}, "pattern": pattern}
            bars: Look = {"base": [bar.start_s * 1e6 for bar in part], "opacity": 1.0, "row": row, "col": 1}
            bars |= {"name": kind, "legendgroup": kind, "showlegend": kind not in shown, **INSIDE}
            bars["text"] = [f"{bar.work.split()[-1]} {bar.layer + 1}" if _wide(bar, width) else "" for bar in part]
            bars["textfont"] = {"color": "#101418" if colour in (SKY, ORANGE, PINK, GREY) else "#ffffff", "size": 11}
            bars["customdata"] = [(bar.work, bar.layer + 1, "" if bar.kept else ", thrown away") for bar in part]
            hover = "%{customdata[0]}, layer %{customdata[1]}%{customdata[2]}: %{x:.1f} us<extra></extra>"
            lengths = [(bar.end_s - bar.start_s) * 1e6 for bar in part]
            add_bars(figure, lengths, [bar.lane for bar in part], marker, hover, **bars)
            shown.add(kind)
    figure.update_xaxes(title="microseconds", row=2, col=1)
    caption = f"two layers; hatched: thrown away<br>{data.reading}"
    axes = ({"range": [0, width * 1.02e6]}, {"categoryorder": "array", "categoryarray": list(LANES)})
    look: Look = {"barmode": "overlay", "bargap": 0.35, "margin": {"t": 118, "b": 96}}
    return captioned(figure, "A hit and a miss", caption, data.basis, 540, *axes, **look)


def _wide(bar: Bar, width_s: float) -> bool:
    return bar.kept and (bar.end_s - bar.start_s) / width_s >= LABEL_SHARE


def work_of(bar: Bar) -> str:
    """The legend entry of a bar."""
    if bar.lane == "link":
        return "link"
    if bar.work.startswith("skip"):
        return "skipped launches"
    named = {
        "pre": "before attention",
        "next pre": "before attention",
        "rest of attention": "exact attention",
        "attention": "exact attention",
        "verify": "verification",
        "synchronise": "link",
    }
    return named.get(bar.work, "after attention" if bar.work.startswith("post") else bar.work)
