"""Attention-level speculation: speedup by context and hit rate, sensitivity, what-ifs, and both groups in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.figures.speculation import gain_map
from dashboards.theme import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILLION, FloatArray, add_band, captioned, whiskers
from hwprofiles import weakest
from simulator.speculation.attention_level import (
    Bar,
    ConsistencySet,
    LayerTimes,
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
    """Speedup over TP 8 by context for several hit rates, with the band of the highest."""

    contexts: FloatArray
    hit_rates: tuple[float, ...]
    speedup: FloatArray
    """[hit rates, contexts]."""
    low: FloatArray
    high: FloatArray
    crossover: tuple[float | None, float | None, float | None]
    published: tuple[float, float]
    """Context and speedup."""
    label: str


def context_gain_data(
    parameters: ConsistencySet, reading: Reading = "next-attention", points: int = 60
) -> ContextGainData:
    """The published grid of hit rates over contexts from 1K to 128K, from one parameter set."""
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
    """One line per hit rate; the band spans what other plausible parameters give at the highest."""
    figure = go.Figure()
    best = f"{data.hit_rates[-1]:.1%}"
    words = f"{best} hits, other plausible parameters"
    add_band(figure, data.contexts, data.low, data.high, fillcolor="rgba(140, 148, 158, 0.25)", name=words)
    for rate, row, colour in zip(data.hit_rates, data.speedup, HIT_COLOURS[: len(data.hit_rates)], strict=False):
        figure.add_scatter(
            x=data.contexts,
            y=row,
            mode="lines",
            name=f"{rate:.1%} hits",
            line={"color": colour, "width": 2.5},
            hovertemplate="%{x:,.0f} tokens: %{y:.2f}x",
        )
    figure.add_scatter(
        x=[data.published[0]],
        y=[data.published[1]],
        mode="markers",
        name=f"published maximum, {data.published[1]:g}x",
        marker={"symbol": "diamond-open", "size": 11, "color": GREY, "line": {"width": 2.5}},
        hovertemplate="published: %{y:.2f}x at %{x:,.0f} tokens<extra></extra>",
    )
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1, "dash": "dot"})
    figure.update_xaxes(type="log", title="context (tokens)", **context_ticks(data.contexts[0], data.contexts[-1]))
    figure.update_yaxes(title="speedup over TP 8")
    cross, low, high = data.crossover
    where = (
        "no crossover"
        if cross is None
        else f"pays from {token_grid(cross)} at {best} ({token_grid(low)} to {token_grid(high)})"
    )
    figure = captioned(figure, "TP 4 x SP 2 against TP 8", f"{where}<br>eight n150", data.label, 560)
    return figure.update_layout(margin={"t": 88})


class SensitivityData(NamedTuple):
    """Speedups of a set's named alternatives at one context and hit rate."""

    cases: tuple[SensitivityCase, ...]
    published: float
    label: str
    where: str


def sensitivity_data(
    parameters: ConsistencySet, context_tokens: int, hit_rate: float, reading: Reading = "next-attention"
) -> SensitivityData:
    """The set itself first, then the alternatives from the lowest speedup to the highest."""
    base, *others = sensitivity(parameters, context_tokens, hit_rate, reading)
    return SensitivityData(
        (base, *sorted(others, key=lambda case: case.speedup)),
        float(parameters.published["max_speedup"]),
        parameters.label.split(":")[0],
        f"{token_grid(context_tokens)}, {hit_rate:.1%} hits",
    )


def sensitivity_figure(data: SensitivityData) -> go.Figure:
    """One bar per alternative, from the set's own speedup to the alternative's; the published value as a line."""
    base = data.cases[0]
    rows = list(range(len(data.cases)))
    low = min(case.speedup for case in data.cases)
    high = max(data.published, *(case.speedup for case in data.cases))
    start = low - 0.06 * (high - low)
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=rows,
        width=0.4,
        base=[base.speedup] * len(rows),
        x=[case.speedup - base.speedup for case in data.cases],
        marker={"color": [VERMILLION if case.speedup < base.speedup else GREEN for case in data.cases]},
        customdata=[(case.speedup, case.overhead_reduction, case.name) for case in data.cases],
        hovertemplate="%{customdata[0]:.2f}x, attention overhead cut %{customdata[1]:.1f}x"
        "<extra>%{customdata[2]}</extra>",
        showlegend=False,
    )
    figure.add_scatter(
        x=[case.speedup for case in data.cases],
        y=rows,
        mode="markers",
        marker={"color": BLUE, "size": 8},
        hoverinfo="skip",
        showlegend=False,
    )
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
    figure.update_xaxes(title=title, range=[start, high + 0.05 * (high - low)])
    figure.update_yaxes(range=[len(rows) - 0.5, -0.8], showticklabels=False, ticks="", showgrid=False, zeroline=False)
    caption = f"{low:.2f}x to {max(case.speedup for case in data.cases):.2f}x<br>{data.where}"
    figure = captioned(figure, "Other plausible parameters", caption, data.label, 520)
    return figure.update_layout(margin={"t": 88})


class GainData(NamedTuple):
    """Speedups of a layout by context, one line per batch size."""

    title: str
    model: str
    gains: tuple[Gain, ...]
    basis: str


def gain_figure(data: GainData) -> go.Figure:
    """Bars span the range of the assumed costs; hollow markers are batches whose KV does not fit."""
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
    contexts = [gain.context_tokens for gain in data.gains]
    figure.update_xaxes(type="log", title="context (tokens)", **context_ticks(min(contexts), max(contexts)))
    figure.update_yaxes(title="speedup")
    caption = f"{data.model}<br>hollow: KV does not fit"
    return captioned(figure, data.title, caption, data.basis, 500).update_layout(margin={"t": 88})


class RateData(NamedTuple):
    """Output tokens per second of one user under several layouts, by context."""

    title: str
    contexts: tuple[int, ...]
    layouts: tuple[str, ...]
    tokens_per_s: FloatArray
    """[layouts, contexts]."""
    basis: str


def rate_figure(data: RateData) -> go.Figure:
    """Grouped bars, one group per context."""
    figure = go.Figure()
    for name, row, colour in zip(data.layouts, data.tokens_per_s, (GREY, SKY, ORANGE, GREEN, BLUE), strict=False):
        figure.add_bar(
            x=[token_grid(context) for context in data.contexts],
            y=row,
            name=name,
            marker={"color": colour},
            text=[f"{value:.0f}" for value in row],
            textposition="outside",
            hovertemplate="%{y:.1f} tokens/s",
        )
    figure.update_xaxes(title="context (tokens)")
    figure.update_yaxes(title="tokens/s of one user")
    return captioned(figure, data.title, "batch 1, by layout", data.basis, 480)


class LeverData(NamedTuple):
    """Speedup and error let through by S and lambda, and what never checking gives at each S."""

    where: str
    window_tokens: tuple[int, ...]
    tolerances: tuple[float, ...]
    speedup: FloatArray
    """[chunk lengths, lambdas]."""
    error: FloatArray
    """Mean relative error over layers of what passes, [chunk lengths, lambdas]."""
    static_speedup: FloatArray
    static_error: FloatArray
    """[chunk lengths]."""


def lever_figure(data: LeverData) -> go.Figure:
    """Speedup against error: a line per S along lambda, exact attention, and attention to both chunks never checked."""
    figure = go.Figure()
    rows = zip(data.window_tokens, data.speedup, data.error, HIT_COLOURS, strict=False)
    for window, speedup, error, colour in rows:
        figure.add_scatter(
            x=error,
            y=speedup,
            mode="lines+markers",
            name=f"S = {window}",
            line={"color": colour, "width": 2.5},
            customdata=data.tolerances,
            hovertemplate="lambda %{customdata}: %{y:.2f}x, error %{x:.1%}",
        )
    figure.add_scatter(
        x=data.static_error,
        y=data.static_speedup,
        mode="markers",
        name="never checked",
        marker={"symbol": "x", "size": 9, "color": GREY},
        customdata=data.window_tokens,
        hovertemplate="S = %{customdata}, never checked: %{y:.2f}x, error %{x:.1%}<extra></extra>",
    )
    figure.add_scatter(
        x=[0.0],
        y=[1.0],
        mode="markers",
        name="exact attention",
        marker={"symbol": "diamond-open", "size": 10, "color": GREY, "line": {"width": 2}},
        hovertemplate="exact: 1x, no error<extra></extra>",
    )
    figure.update_xaxes(title="relative error let through, mean over layers", tickformat=".0%")
    figure.update_yaxes(title="speedup over TP 8")
    return captioned(figure, "Lambda and S", data.where, "extrapolated", 480)


def token_grid(count: float | None) -> str:
    """A number of tokens in K or M; "never" for None."""
    if count is None:
        return "never"
    if count >= 1 << 20:
        return f"{count / (1 << 20):.3g}M"
    return f"{count / 1024:.3g}K" if count >= 1024 else f"{count:.0f}"


def context_ticks(low: float, high: float) -> dict[str, Sequence[float] | Sequence[str]]:
    """Ticks at powers of two (every other one where they would be many)."""
    first, last = int(np.ceil(np.log2(low) - 1e-9)), int(np.floor(np.log2(high) + 1e-9))
    values = [float(1 << power) for power in range(first, last + 1)]
    return {"tickvals": values, "ticktext": [token_grid(value) for value in values]}


HIT_RATES = (0.0, 0.25, 0.5, 0.625, 0.75, 0.875, 0.95, 1.0)


class AttentionMapData(NamedTuple):
    """``speedup[rate, context]`` of two groups over one."""

    contexts: tuple[int, ...]
    hit_rates: tuple[float, ...]
    speedup: FloatArray
    reading: str
    basis: str


def attention_map_data(
    parameters: ConsistencySet, contexts: Sequence[int], reading: Reading, hit_rates: Sequence[float] = HIT_RATES
) -> AttentionMapData:
    """Every hit rate at every context, from one parameter set."""
    axis = np.array(contexts, dtype=np.float64)
    rows = [compare_layouts(parameters, axis, rate, reading).speedup for rate in hit_rates]
    return AttentionMapData(tuple(contexts), tuple(hit_rates), np.array(rows), reading, parameters.label.split(":")[0])


def attention_map_figure(data: AttentionMapData) -> go.Figure:
    """A heat map with the speedup in every cell; 1 is neutral."""
    hover = "%{x} tokens, %{y} hits: %{z:.3f} x<extra></extra>"
    figure = _context_map(data.contexts, [f"{rate:.1%}" for rate in data.hit_rates], data.speedup, hover)
    figure.update_yaxes(title="hit rate")
    return captioned(figure, "TP 4 x SP 2 over TP 8", f"reading: {data.reading}", data.basis, 420)


def _context_map(contexts: Sequence[int], rows: Sequence[str], gain: FloatArray, hover: str) -> go.Figure:
    figure = gain_map([token_grid(context) for context in contexts], rows, gain, "speedup", hover)
    return figure.update_xaxes(title="context (tokens)")


PAYS = 1.02
"""Gain from which on a layout pays."""


class AtlasData(NamedTuple):
    """``speedup[layout, context]`` of two groups over the fastest single one; NaN where the KV does not fit."""

    layouts: tuple[str, ...]
    contexts: tuple[int, ...]
    speedup: FloatArray
    low: FloatArray
    high: FloatArray
    """With every assumed cost at the ends of its range."""
    title: str
    caption: str
    basis: str


def atlas_data(
    cases: Sequence[Mapping[str, Any]], names: Sequence[str], batch: int, title: str, caption: str
) -> AtlasData:
    """The gains of cases that were priced (``simulator.studies.alspec.atlas_gains``), a row each."""
    rows = [{row["context_tokens"]: row for row in case["gains"] if row["batch"] == batch} for case in cases]
    contexts = tuple(sorted(rows[0]))

    def part(name: str) -> FloatArray:
        return np.array([[row[at][name] if row[at]["fits"] else np.nan for at in contexts] for row in rows])

    return AtlasData(
        tuple(names),
        contexts,
        part("speedup"),
        part("low"),
        part("high"),
        title,
        caption,
        weakest(case["basis"] for case in cases),
    )


def region_words(case: Mapping[str, Any], batch: int) -> str:
    """From which context on a layout of the atlas pays, and its largest gain with the range; of those whose KV fits."""
    rows = [row for row in case["gains"] if row["batch"] == batch and row["fits"]]
    if not rows:
        return "KV does not fit"
    paying = [row["context_tokens"] for row in rows if row["speedup"] >= PAYS]
    best = max(rows, key=lambda row: row["speedup"])
    where = f"pays from {min(paying) // 1024}K" if paying else "pays nowhere"
    range_words = f"{best['speedup']:.2f}x ({best['low']:.2f} to {best['high']:.2f})"
    return f"{where}, at most {range_words} at {best['context_tokens'] // 1024}K"


def atlas_figure(data: AtlasData) -> go.Figure:
    """A heat map with the gain of every layout at every context; 1 is neutral."""
    hover = "%{y}, %{x} tokens: %{z:.3f} x (%{customdata[0]:.2f} to %{customdata[1]:.2f})<extra></extra>"
    figure = _context_map(data.contexts, data.layouts, data.speedup, hover)
    figure.update_traces(customdata=np.dstack((data.low, data.high)))
    figure.update_yaxes(autorange="reversed")
    return captioned(figure, data.title, data.caption, data.basis, 140 + 24 * len(data.layouts))


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
"""Bars of at least this share of the width carry their name, if they are kept."""


class GanttData(NamedTuple):
    """What two groups and their link did, for a pass that hits and for one that misses its first layer."""

    hit: tuple[Bar, ...]
    miss: tuple[Bar, ...]
    hit_s: float
    miss_s: float
    reading: str
    basis: str


def gantt_data(times: LayerTimes, reading: Reading, basis: str) -> GanttData:
    """Two layers each: both pass; and the first fails, the second passes."""
    hit, miss = (simulate_pass(times, outcomes, reading) for outcomes in ((True, True), (False, True)))
    return GanttData(hit.bars, miss.bars, hit.seconds, miss.seconds, reading, basis)


def gantt_figure(data: GanttData) -> go.Figure:
    """Hit above, miss below, on one axis of microseconds; hatched work is thrown away."""
    names = [f"{name} · two layers in {seconds * 1e6:,.0f} us" for name, seconds in panels(data)]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=names, vertical_spacing=0.14)
    figure.update_annotations(x=0, xanchor="left", font_size=13)
    width = max(data.hit_s, data.miss_s)
    shown: set[str] = set()
    for row, bars in enumerate((data.hit, data.miss), start=1):
        for kind, colour in WORK_COLOURS.items():
            part = [bar for bar in bars if work_of(bar) == kind]
            if not part:
                continue
            figure.add_bar(
                row=row,
                col=1,
                orientation="h",
                y=[bar.lane for bar in part],
                base=[bar.start_s * 1e6 for bar in part],
                x=[(bar.end_s - bar.start_s) * 1e6 for bar in part],
                name=kind,
                legendgroup=kind,
                showlegend=kind not in shown,
                marker={
                    "color": colour,
                    "line": {"width": 0.5, "color": "#101418"},
                    "pattern": {
                        "shape": ["" if bar.kept else "/" for bar in part],
                        "fillmode": "overlay",
                        "fgcolor": "#ffffff",
                        "fgopacity": 0.8,
                    },
                },
                opacity=1.0,
                text=[f"{bar.work.split()[-1]} {bar.layer + 1}" if wide(bar, width) else "" for bar in part],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="none",
                textfont={"color": "#101418" if colour in (SKY, ORANGE, PINK, GREY) else "#ffffff", "size": 11},
                customdata=[(bar.work, bar.layer + 1, "" if bar.kept else ", thrown away") for bar in part],
                hovertemplate="%{customdata[0]}, layer %{customdata[1]}%{customdata[2]}: %{x:.1f} us<extra></extra>",
            )
            shown.add(kind)
    figure.update_layout(barmode="overlay", bargap=0.35)
    figure.update_xaxes(range=[0, width * 1.02e6])
    figure.update_xaxes(title="microseconds", row=2, col=1)
    figure.update_yaxes(categoryorder="array", categoryarray=list(LANES))
    caption = f"two layers; hatched: thrown away<br>{data.reading}"
    figure = captioned(figure, "A hit and a miss", caption, data.basis, 540)
    return figure.update_layout(margin={"t": 118, "b": 96})


def panels(data: GanttData) -> tuple[tuple[str, float], tuple[str, float]]:
    """Name and length of the two panels."""
    return (("both layers pass", data.hit_s), ("the first layer fails", data.miss_s))


def wide(bar: Bar, width_s: float) -> bool:
    """Whether a bar is long enough to carry its name."""
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
