"""Figures of runs: bottlenecks, latencies, batch and queue over time, single requests, comparisons of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.theme import (
    BLUE,
    COLOURS,
    GREY,
    INSIDE,
    RUN_COLOURS,
    TIER_COLOURS,
    Look,
    add_bars,
    add_distribution,
    add_line,
    add_points,
    add_tiers,
    captioned,
    evenly,
)
from forerun.arrays import FloatArray, IntArray
from forerun.document import Json
from hwprofiles import weakest
from simulator.running.metrics.run_folder import RunFolder
from simulator.running.metrics.usage import BOUNDS
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.studies.paired import metric_words
from simulator.studies.steady_state.ranges import MEANS, fan_ends


class BottleneckData(NamedTuple):
    """Shares of engine time by bound, one row per source of the shares; a single source has an empty name."""

    rows: Mapping[str, Mapping[str, float]]
    basis: str


def bottleneck_data(run: RunFolder) -> BottleneckData:
    """The ``bottleneck`` section of a run; empty if no step ran."""
    shares = run.document["bottleneck"]
    return BottleneckData({"": shares} if shares else {}, run.basis)


def bottleneck_figure(data: BottleneckData) -> go.Figure:
    """One stacked bar of 100 % per row of ``data``."""
    figure, names = go.Figure(), list(data.rows)
    for bound in dict.fromkeys(bound for shares in data.rows.values() for bound in shares):
        values = [shares.get(bound, 0.0) for shares in data.rows.values()]
        ink = {"color": "#101418" if bound in ("memory", "idle", "latency") else "#ffffff"}
        text = [f"{share:.0%}" if share >= 0.09 else "" for share in values]
        marker, hover = {"color": COLOURS[bound]}, f"{bound}: %{{x:.2f}} %<extra></extra>"
        percents = [share * 100 for share in values]
        add_bars(figure, percents, names, marker, hover, name=bound, text=text, textfont=ink, **INSIDE)
    look: Look = {"barmode": "stack", "legend": {"traceorder": "normal"}}
    x = {"title": "share of engine time (%)", "range": [0, 100], "showgrid": False}
    y: Look = {"ticks": "", "autorange": "reversed"}
    caption, height = "what limits the engine at this load", 260
    if names == [""]:
        caption, height, y = "what limits the engine", 230, {"showticklabels": False, "ticks": ""}
    return captioned(figure, "Bottleneck", caption, data.basis, height, x, y, **look)


NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E latency"}
WITHIN = "%{y:.1f} % within %{x:.4s} ms"
MILLISECONDS: Json = {"type": "log", "title": "milliseconds", "dtick": 1}
REQUEST_SHARE = {"title": "share of requests (%)", "range": [0, 102]}
MOST_CURVE_POINTS = 400
"""Approximate maximum of points of one curve; longer curves are thinned, except for their highest values."""


class LatencyCurve(NamedTuple):
    """An empirical distribution: ``share[i]`` of the requests took ``ms[i]`` or less."""

    name: str
    ms: FloatArray
    share: FloatArray
    limits: tuple[tuple[float, float], ...]
    """SLO limits on percentiles: (limit in ms, share of requests)."""


class LatencyData(NamedTuple):
    """Distribution curves of every latency metric of a run."""

    curves: tuple[LatencyCurve, ...]
    requests: int
    basis: str


def latency_data(run: RunFolder) -> LatencyData:
    """The distributions over the completed requests of ``run``, with the SLO limits of its scenario."""
    slo = run.document["scenario"].get("slo") or {}
    curves = []
    for name in NAMES:
        ms = run.requests[f"{name}_ms"]
        ms = np.sort(ms[np.isfinite(ms)])
        if len(ms):
            curves.append(LatencyCurve(name, *thinned_distribution(ms), percentile_limits(slo, name)))
    return LatencyData(tuple(curves), int(np.isfinite(run.requests["e2el_ms"]).sum()), run.basis)


def thinned_distribution(ascending: FloatArray, points: int = MOST_CURVE_POINTS) -> tuple[FloatArray, FloatArray]:
    """Values, and the share of the sample at or below each value; about ``points`` at most, with both ends."""
    count = len(ascending)
    rows = evenly(count, points)
    tail = np.arange(max(0, count - points // 8), count)
    rows = np.union1d(rows, tail) if count > points else rows
    return ascending[rows], (rows + 1) / count


def percentile_limits(slo: Json, latency: str) -> tuple[tuple[float, float], ...]:
    """Percentile limits on ``latency`` in an SLO: ``p99_ttft_ms: 500`` gives (500.0, 0.99)."""
    limits = []
    for key, limit in slo.items():
        match = re.fullmatch(rf"(?:p(\d+(?:\.\d+)?)|(median))_{latency}_ms", key)
        if match is not None and limit is not None:
            limits.append((float(limit), float(match[1] or 50) / 100))
    return tuple(limits)


def latency_figure(data: LatencyData) -> go.Figure:
    """Cumulative distributions over a logarithmic axis; a curve meets an SLO limit if it passes left of its diamond."""
    figure = go.Figure()
    for curve in data.curves:
        line = {"color": COLOURS[curve.name], "width": 2.5, "shape": "hv"}
        add_distribution(figure, curve.ms, curve.share, name=NAMES[curve.name], line=line, hovertemplate=WITHIN)
    for curve in data.curves:
        if curve.limits:
            limits, shares = [limit for limit, _ in curve.limits], [share * 100 for _, share in curve.limits]
            marker = {"symbol": "diamond-open", "size": 11, "color": COLOURS[curve.name], "line": {"width": 2.5}}
            add_points(figure, limits, shares, f"SLO {NAMES[curve.name]}", marker, "limit: %{y} % within %{x} ms")
    axes = (MILLISECONDS | {"minor": {"ticks": "outside", "ticklen": 2}}, REQUEST_SHARE)
    return captioned(figure, "Latency", f"{data.requests:,} requests", data.basis, 480, *axes, hovermode="closest")


BINS = 300


class MeasuringData(NamedTuple):
    """Ends of the intervals of a run's means before and after measuring, over their predictions before."""

    before: Mapping[str, Sequence[float]]
    after: Mapping[str, Sequence[float]]
    basis: str


def measuring_data(run: RunFolder) -> MeasuringData | None:
    """Changes of a run's means by measured runs, by a simulation without them; None without such runs."""
    document = run.document
    if "learnt" not in (document.get("model_error") or {}):
        return None
    plain = scenario_from({**document["scenario"], "measured": None}, "scenario")
    before = simulate(plain, document["seed"], intervals=True, full_step_rows=0).document
    known = {key: before["summary"][key] for key in MEANS.values() if key in before["intervals"]}
    ends = [{key: [end / known[key] for end in fan_ends(one, key)] for key in known} for one in (before, document)]
    return MeasuringData(ends[0], ends[1], run.basis)


def measuring_figure(data: MeasuringData) -> go.Figure:
    """Intervals of each mean before measuring in grey, behind those after it in colour."""
    figure, names = go.Figure(), list(map(metric_words, data.before))
    for ends, when, colour, width in ((data.before, "before", GREY, 26), (data.after, "after", BLUE, 14)):
        for low, high, opacity in ((0, 3, 0.3), (1, 2, 0.55)):
            ranges = [value for one in ends.values() for value in (one[low], one[high], None)]
            places = [name for name in names for _ in range(3)]
            look: Look = {"line": {"color": colour, "width": width}, "legendgroup": when, "showlegend": not low}
            words = f"50 and 90 % intervals {when} measuring"
            add_line(figure, ranges, places, words, colour, "%{y}: %{x:.2f}x", opacity=opacity, **look)
    x = {"type": "log", "title": "over the prediction before measuring", "tickangle": 0, "nticks": 5}
    y = {"range": [len(names) - 0.4, -0.6], "showgrid": False}
    return captioned(figure, "Measured", "by benchmark results", data.basis, 330, x, y, hovermode="closest")


class TimelineData(NamedTuple):
    """Means over bins of equal length; ``time_s`` is the middle of each bin. Sums over all replicas."""

    time_s: FloatArray
    bin_s: float
    running: FloatArray
    waiting: FloatArray
    kv_use: FloatArray | None
    """Share of all KV blocks in use; None if the capacity is unknown."""
    output_tokens_per_s: FloatArray
    basis: str


def timeline_data(run: RunFolder, bins: int = BINS, spans: Spans | None = None) -> TimelineData:
    """Average the engine steps of ``run`` over ``bins`` equal parts of its time."""
    steps = run.steps
    spans = spans or request_spans(run, bins)
    if spans is None:
        empty = np.empty(0)
        return TimelineData(empty, 0.0, empty, empty, None, empty, run.basis)
    one_kind = {"num_blocks": run.document["kv_cache"].get("num_blocks") or 0, "replicas": _replicas(run)}
    blocks = sum(kind["num_blocks"] * kind["replicas"] for kind in run.document.get("pools") or [one_kind])
    return TimelineData(
        time_s=spans.middle_s,
        bin_s=spans.bin_s,
        running=spans.mean(steps["running"]),
        waiting=spans.mean(steps["waiting"]),
        kv_use=spans.mean(steps["kv_blocks"]) / blocks if blocks else None,
        output_tokens_per_s=spans.rate(steps["output_tokens"]),
        basis=run.basis,
    )


def request_spans(run: RunFolder, bins: int) -> Spans | None:
    """The engine steps of ``run`` as spans over ``bins`` equal parts of its time; None if there is no step."""
    start_s, seconds = run.steps["start_s"], run.steps["seconds"]
    if not len(start_s):
        return None
    end_s = start_s + seconds
    return Spans(run.steps["replica"], start_s, end_s, np.linspace(start_s.min(), end_s.max(), bins + 1))


class Spans:
    """Time spans of engine steps, for averaging several quantities of steps over the same bins.

    If steps of a replica overlap, a step counts until the next step starts.
    """

    def __init__(self, replica: FloatArray, start_s: FloatArray, end_s: FloatArray, edges: FloatArray) -> None:
        self.edges = edges
        step = np.diff(replica)
        ordered = bool(np.all((step > 0) | ((step == 0) & (np.diff(start_s) >= 0))))
        self._order = None if ordered else np.lexsort((start_s, replica))
        replica, self._begin, finish = (self._sorted(column) for column in (replica, start_s, end_s))
        self._seconds = finish - self._begin
        cuts = np.flatnonzero(np.diff(replica)) + 1
        self._parts = list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(replica)], strict=True))
        self._kept = self._seconds.copy()
        for first, end in self._parts:
            gaps = np.diff(self._begin[first:end])
            np.minimum(self._kept[first : end - 1], gaps, out=self._kept[first : end - 1])

    @property
    def middle_s(self) -> FloatArray:
        return (self.edges[:-1] + self.edges[1:]) / 2

    @property
    def bin_s(self) -> float:
        return float(self.edges[1] - self.edges[0])

    def mean(self, value: FloatArray) -> FloatArray:
        """Mean per bin of a quantity equal to ``value[i]`` during step i, else 0; summed over replicas."""
        return self._mean(self._sorted(value))

    def rate(self, amount: FloatArray) -> FloatArray:
        """Mean rate per bin of an ``amount`` spread evenly over its step; steps without duration are ignored."""
        value = self._sorted(amount)
        return self._mean(np.divide(value, self._seconds, out=np.zeros_like(value), where=self._seconds > 0))

    def _sorted(self, column: FloatArray) -> FloatArray:
        return column if self._order is None else column[self._order]

    def _mean(self, value: FloatArray) -> FloatArray:
        total = np.zeros(len(self.edges) - 1)
        for first, end in self._parts:
            begin, kept, part = self._begin[first:end], self._kept[first:end], value[first:end]
            grown = np.concatenate([[0.0], np.cumsum(part * kept)])
            at = np.searchsorted(begin, self.edges, "right") - 1
            last = np.maximum(at, 0)
            inside = np.clip(self.edges - begin[last], 0.0, kept[last])
            total += np.diff(np.where(at >= 0, grown[last] + part[last] * inside, 0.0))
        width = np.diff(self.edges)
        return np.divide(total, width, out=np.zeros_like(total), where=width > 0)


ON_CLOCK = {"clock": "simulated seconds"}
"""Mark of figures over simulated time: those of a page share crosshair and time range."""


def timeline_figure(data: TimelineData) -> go.Figure:
    """Three panels over one time axis: requests, KV cache, output rate."""
    panels = ["requests", "KV blocks in use (%)", "output tokens/s"]
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.4, 0.3, 0.3])
    lines = [
        ("running", data.running, "running", 1),
        ("waiting", data.waiting, "waiting", 1),
        ("KV use", None if data.kv_use is None else data.kv_use * 100, "kv", 2),
        ("output", data.output_tokens_per_s, "tokens", 3),
    ]
    for name, values, colour, row in lines:
        if values is not None:
            place = {"showlegend": row == 1, "row": row, "col": 1}
            add_line(figure, data.time_s, values, name, COLOURS[colour], "%{y:.4~s}", width=2, **place)
    for row, title in enumerate(panels, start=1):
        figure.update_yaxes(title=title, rangemode="tozero", row=row, col=1)
    if data.kv_use is not None:
        figure.update_yaxes(range=[0, 102], row=2, col=1)
    figure.update_xaxes(title="simulated seconds", row=3, col=1)
    figure.update_traces(xaxis="x3")  # one axis: the crosshair goes through every panel
    figure.update_yaxes(anchor="x3")
    figure.update_xaxes(showspikes=True, spikemode="across", spikesnap="cursor", spikethickness=1)
    look: Look = {"hovermode": "x unified", "hoversubplots": "axis", "meta": ON_CLOCK}
    return captioned(figure, "Over time", f"means of {data.bin_s:.3g} s", data.basis, 620, **look)


class TierData(NamedTuple):
    """Hit rates by tier over time, in percent of prompt tokens, and bytes and busy shares of each store's lanes."""

    until_s: FloatArray
    hits: Mapping[str, FloatArray]
    lanes: Mapping[str, tuple[float, float]]
    basis: str


def tiers_data(run: RunFolder) -> TierData | None:
    """Hit rates and lanes of a run's KV stores; None without stores."""
    kv = run.document["kv_cache"]
    rates, stores = kv.get("hit_rate_over_time"), kv.get("stores")
    if not rates or not stores:
        return None
    percents = {name: 100.0 * np.array(rates[name], dtype=np.float64) for name in rates if name != "until_s"}
    lanes = {
        f"{one['name']} {way}": (one[f"{kind}_bytes"], one[f"{way}_busy"] or 0.0)
        for one in stores
        for way, kind in (("read", "read"), ("write", "written"))
    }
    return TierData(np.array(rates["until_s"]), percents, lanes, run.basis)


def tiers_figure(data: TierData) -> go.Figure:
    """Stacked hit rates over time above a bar of bytes per lane."""
    figure = make_subplots(rows=2, cols=1, vertical_spacing=0.2, row_heights=[0.6, 0.4])
    add_tiers(figure, data.until_s, data.hits, row=1, col=1)
    names, sizes = list(data.lanes), [size / 1e9 for size, _ in data.lanes.values()]
    tiers = [name.rpartition(" ")[0] for name in names]
    colours = [TIER_COLOURS[list(data.hits).index(tier) % len(TIER_COLOURS)] for tier in tiers]
    words = [f"{size:,.3g} GB, busy {busy:.1%}" for size, (_, busy) in zip(sizes, data.lanes.values(), strict=True)]
    look: Look = {"text": words, "textposition": "auto", "showlegend": False, "row": 2, "col": 1}
    add_bars(figure, sizes, names, {"color": colours}, "%{y}: %{text}<extra></extra>", **look)
    figure.update_xaxes(title="simulated seconds", row=1, col=1)
    figure.update_yaxes(title="prompt tokens (%)", range=[0, 100], row=1, col=1)
    figure.update_xaxes(title="GB carried", row=2, col=1)
    figure.update_yaxes(autorange="reversed", ticks="", row=2, col=1)
    caption = "prompt tokens by the memory that they came from, and bytes by lane"
    height, legend = 420 + 30 * len(names), {"traceorder": "normal"}
    return captioned(figure, "KV tiers", caption, data.basis, height, legend=legend)


class BoundTimeData(NamedTuple):
    """Shares of engine time per bin, idle included; ``time_s`` is the middle of each bin."""

    time_s: FloatArray
    bin_s: float
    shares: dict[str, FloatArray]
    basis: str


def bound_time_data(run: RunFolder, bins: int = BINS, spans: Spans | None = None) -> BoundTimeData:
    """Share of all replicas' time by bound and bin, from the seconds by bound of every step, and idle share."""
    spans = spans or request_spans(run, bins)
    if spans is None:
        return BoundTimeData(np.empty(0), 0.0, {}, run.basis)
    pools = run.document.get("pools")
    replicas = sum(pool["replicas"] for pool in pools) if pools else _replicas(run)
    shares = {bound: spans.rate(run.steps[f"{bound}_s"]) / replicas for bound in BOUNDS}
    shares["idle"] = np.clip(1.0 - sum(shares.values()), 0.0, 1.0)
    return BoundTimeData(spans.middle_s, spans.bin_s, shares, run.basis)


def _replicas(run: RunFolder) -> int:
    return int(run.document["scenario"]["hardware"].get("replicas", 1))


def bound_time_figure(data: BoundTimeData) -> go.Figure:
    """Stacked areas of the shares by bound, up to 100 %."""
    figure = go.Figure()
    for bound, share in data.shares.items():
        figure.add_scatter(
            x=data.time_s,
            y=share * 100,
            name=bound,
            mode="lines",
            line={"width": 0, "color": COLOURS[bound]},
            fillcolor=COLOURS[bound],
            stackgroup="bounds",
            hovertemplate="%{y:.1f} %",
        )
    axes = ("simulated seconds", {"title": "share of engine time (%)", "range": [0, 100]})
    look: Look = {"hovermode": "x unified", "legend": {"traceorder": "normal"}, "meta": ON_CLOCK}
    return captioned(figure, "Bottleneck over time", f"means of {data.bin_s:.3g} s", data.basis, 420, *axes, **look)


MAX_REQUESTS = 60
MANY_REQUESTS = 300
"""Number of requests above which only requests around the longest TTFT are shown: bars would be too short to see."""


class WaterfallData(NamedTuple):
    """Times of chosen requests in seconds; ``row`` is the index of each request in order of arrival."""

    row: IntArray
    arrival_s: FloatArray
    scheduled_s: FloatArray
    first_token_s: FloatArray
    finished_s: FloatArray
    completed: int
    """Number of completed requests of the whole run."""
    basis: str
    marked: int | None = None
    """Index of the highlighted request; None = no highlight."""


def waterfall_data(run: RunFolder, most: int = MAX_REQUESTS, around: int | None = None) -> WaterfallData:
    """At most ``most`` completed requests in order of arrival: evenly spaced, or the neighbours of row ``around``."""
    done = np.flatnonzero(np.isfinite(run.requests["finished_s"]) & (run.requests["failed"] == 0))
    if around is None:
        chosen = done[evenly(len(done), most)]
    else:
        first = max(0, min(int(np.searchsorted(done, around)) - most // 2, len(done) - most))
        chosen = done[first : first + most]
    times = {name: run.requests[name][chosen] for name in WaterfallData._fields if name.endswith("_s")}
    marked = around if around is not None and around in chosen else None
    return WaterfallData(row=chosen, **times, completed=len(done), basis=run.basis, marked=marked)


def slowest(run: RunFolder) -> int | None:
    """Index of the completed request with the longest TTFT; None if no request completed."""
    ttft = np.where(np.isfinite(run.requests["finished_s"]), run.requests["ttft_ms"], np.nan)
    return int(np.nanargmax(ttft)) if np.isfinite(ttft).any() else None


def requests_data(run: RunFolder) -> WaterfallData:
    """Requests over the whole run; above ``MANY_REQUESTS``, only those around the request with the longest TTFT."""
    return waterfall_data(run, around=slowest(run) if len(run.requests["arrival_s"]) > MANY_REQUESTS else None)


def waterfall_figure(data: WaterfallData) -> go.Figure:
    """One horizontal bar per request, divided into its phases."""
    phases = [
        ("queued", data.arrival_s, data.scheduled_s),
        ("prefill", data.scheduled_s, data.first_token_s),
        ("decode", data.first_token_s, data.finished_s),
    ]
    figure = go.Figure()
    places = np.arange(len(data.row))
    for name, begin, end in phases:
        marker = {"color": COLOURS[name], "line": {"width": 0}}
        shown = np.column_stack([data.row, (end - begin) * 1e3])
        hover = "request %{customdata[0]}: %{customdata[1]:.4~s} ms"
        add_bars(figure, end - begin, places, marker, hover, base=begin, name=name, customdata=shown)
    y: Look = {"title": "request, in order of arrival", "autorange": "reversed", "ticks": "", "tickvals": []}
    if data.marked is not None:
        place = int(np.flatnonzero(data.row == data.marked)[0])
        figure.add_hrect(y0=place - 0.5, y1=place + 0.5, fillcolor=COLOURS["tokens"], opacity=0.25, line_width=0)
        y |= {"tickvals": [place], "ticktext": [str(data.marked)]}
    part = f"{len(data.row)} of {data.completed:,}" if len(data.row) < data.completed else f"all {data.completed:,}"
    look = {"barmode": "overlay", "bargap": 0.2, "hovermode": "closest"}
    return captioned(figure, "Requests", f"{part} completed", data.basis, 480, "simulated seconds", y, **look)


PAIR_METRICS = {
    "output_throughput": ("output tokens/s", True),
    "request_throughput": ("requests/s", True),
    "mean_ttft_ms": ("mean TTFT", False),
    "p99_ttft_ms": ("p99 TTFT", False),
    "mean_tpot_ms": ("mean TPOT", False),
    "p99_tpot_ms": ("p99 TPOT", False),
    "mean_e2el_ms": ("mean E2E latency", False),
    "p99_e2el_ms": ("p99 E2E latency", False),
}
"""Keys of ``summary``: label, and true if a larger value is better."""


LARGE_CHANGE = 900.0
"""Percentage above which a change is written as a factor."""


class MetricValues(NamedTuple):
    """Values of one metric in every compared run."""

    key: str
    label: str
    values: tuple[float, ...]
    more_is_better: bool

    @property
    def percents(self) -> tuple[float, ...]:
        """Change of each later run from the first one, percent."""
        return tuple((value / self.values[0] - 1.0) * 100.0 for value in self.values[1:])


class ComparisonData(NamedTuple):
    """Several runs: names, metrics that all runs have, and the distribution of one latency in each run."""

    names: tuple[str, ...]
    metrics: tuple[MetricValues, ...]
    latency: str
    curves: tuple[LatencyCurve | None, ...]
    basis: str


def comparison_data(runs: Mapping[str, RunFolder], latency: str = "ttft") -> ComparisonData:
    """Metrics of each run's ``summary.json``, and the distribution of ``latency`` (ttft, tpot or e2el).

    Args:
        runs: at least two runs by name; the first is the baseline of the comparison.
    """
    metrics = []
    for key, (label, better) in PAIR_METRICS.items():
        values = [run.document["summary"].get(key) for run in runs.values()]
        if values[0] and None not in values:
            metrics.append(MetricValues(key, label, tuple(values), better))
    curves = ({curve.name: curve for curve in latency_data(run).curves}.get(latency) for run in runs.values())
    basis = weakest(run.basis for run in runs.values())
    return ComparisonData(tuple(runs), tuple(metrics), latency, tuple(curves), basis)


def change_figure(data: ComparisonData) -> go.Figure:
    """Bars of change from the first run in percent; hatched bars are changes for the worse."""
    figure = go.Figure()
    one, rows = len(data.names) == 2, [metric.percents for metric in data.metrics]
    for number, name in enumerate(data.names[1:]):
        percents = [row[number] for row in rows]
        worse = [x != 0 and (x > 0) != m.more_is_better for x, m in zip(percents, data.metrics, strict=True)]
        colours = [RUN_COLOURS[int(bad)] if one else _run_look(number + 1)["color"] for bad in worse]
        marker = {"color": colours, "pattern": {"shape": ["/" if bad else "" for bad in worse]}}
        hover = "%{y}: %{customdata[0]:.4s} to %{customdata[1]:.4s}, %{x:+.2f} %"
        both = [[metric.values[0], metric.values[number + 1]] for metric in data.metrics]
        words: Look = {"text": list(map(change_words, percents)), "textposition": "outside", "cliponaxis": False}
        labels = [metric.label for metric in data.metrics]
        add_bars(figure, percents, labels, marker, hover, name=name, customdata=both, showlegend=not one, **words)
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    x = {"title": "change (%)", "range": _wide([percent for row in rows for percent in row])}
    caption, y = f"against {data.names[0]}; hatched: worse", {"autorange": "reversed", "ticks": ""}
    return captioned(figure, "Change", caption, data.basis, 420, x, y)


def _run_look(number: int) -> Look:
    """Colour and dash of the run with index ``number``."""
    turn, colour = divmod(number, len(RUN_COLOURS))
    return {"color": RUN_COLOURS[colour], "dash": "solid" if number == 0 else ("dash", "dot", "dashdot")[turn % 3]}


def change_words(percent: float) -> str:
    """Text of a change: in percent, or as a factor if it is large."""
    return f"{percent:+.1f} %" if percent < LARGE_CHANGE else f"{1 + percent / 100:.3g}x"


def _wide(percents: list[float]) -> list[float]:
    """Axis range around zero with space for the labels at the ends of the bars."""
    low, high = min([0.0, *percents]), max([0.0, *percents])
    margin = 0.4 * (high - low or 1.0)
    return [low - margin if low < 0 else 0.0, high + margin if high > 0 else 0.0]


def curves_figure(data: ComparisonData) -> go.Figure:
    """The distribution of one latency in every run."""
    figure = go.Figure()
    for number, (name, curve) in enumerate(zip(data.names, data.curves, strict=True)):
        if curve is not None:
            line = {"width": 2.5, "shape": "hv", **_run_look(number)}
            add_distribution(figure, curve.ms, curve.share, name=name, line=line, hovertemplate=WITHIN)
    title, axes = (
        f"{NAMES[data.latency]} in {'both' if len(data.names) == 2 else 'all'} runs",
        (MILLISECONDS, REQUEST_SHARE),
    )
    return captioned(figure, title, "cumulative", data.basis, 420, *axes, hovermode="closest")


OF_RUNS = "run: "
"""Beginning of the names of columns that have one value a run."""
MOST_POINTS = 3000


def column_names(run: RunFolder) -> list[str]:
    """Columns of a run's requests, then figures of its summary that are numbers."""
    numbers = [name for name, value in run.document["summary"].items() if isinstance(value, int | float)]
    return [*run.requests, *(OF_RUNS + name for name in numbers)]


def column_values(run: RunFolder, name: str, each: bool) -> FloatArray:
    """Values of a column: one for each request, or one for the run (the mean of its requests)."""
    if name.startswith(OF_RUNS):
        return np.array([run.document["summary"].get(name.removeprefix(OF_RUNS)) or np.nan], dtype=np.float64)
    values = np.asarray(run.requests[name], dtype=np.float64)
    return values if each else np.array([values[np.isfinite(values)].mean()])


def columns_figure(runs: Mapping[str, RunFolder], x: str, y: str) -> go.Figure:
    """Any two columns against each other, with a point for each request or run."""
    figure, each = go.Figure(), not (x.startswith(OF_RUNS) or y.startswith(OF_RUNS))
    for (name, run), colour in zip(runs.items(), cycle(RUN_COLOURS), strict=False):
        across, up = (column_values(run, column, each) for column in (x, y))
        known = np.flatnonzero(np.isfinite(across) & np.isfinite(up))  # a failed request has no latency
        kept = known[evenly(len(known), MOST_POINTS)]
        marker = {"color": colour, "size": 5 if each else 11, "opacity": 0.8 if each else 1.0}
        add_points(figure, across[kept], up[kept], name, marker, "%{x:.4g}, %{y:.4g}")
    caption = f"one point a {'request' if each else 'run'}, {len(runs)} run{'s' * (len(runs) != 1)}"
    axes = (x.removeprefix(OF_RUNS), y.removeprefix(OF_RUNS))
    basis = next(iter(runs.values())).basis
    return captioned(figure, f"{axes[1]} over {axes[0]}", caption, basis, 460, *axes, showlegend=len(runs) > 1)
