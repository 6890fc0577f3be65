"""Two runs side by side: the change of every figure, and their latency distributions."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go

from dashboards.figures.latency import NAMES, LatencyCurve, latency_data
from dashboards.figures.theme import GREY, RUN_COLOURS, captioned
from hwprofiles import weakest
from simulator.metrics.run_folder import Run

METRICS = {
    "output_throughput": ("output tokens/s", True),
    "request_throughput": ("requests/s", True),
    "mean_ttft_ms": ("mean TTFT", False),
    "p99_ttft_ms": ("p99 TTFT", False),
    "mean_tpot_ms": ("mean TPOT", False),
    "p99_tpot_ms": ("p99 TPOT", False),
    "mean_e2el_ms": ("mean E2E latency", False),
    "p99_e2el_ms": ("p99 E2E latency", False),
}
"""Keys of ``summary``: their words, and whether more is better."""


class Change(NamedTuple):
    """One figure in two runs."""

    key: str
    label: str
    first: float
    second: float
    more_is_better: bool

    @property
    def percent(self) -> float:
        """Change from the first to the second run."""
        return (self.second / self.first - 1.0) * 100.0


class ComparisonData(NamedTuple):
    """Two runs: names, changes of every figure that both have, and curves of one latency in each."""

    names: tuple[str, str]
    changes: tuple[Change, ...]
    latency: str
    curves: tuple[LatencyCurve | None, LatencyCurve | None]
    basis: str


def comparison_data(first: Run, second: Run, names: tuple[str, str], latency: str = "ttft") -> ComparisonData:
    """The figures of both ``summary.json`` and the distribution of ``latency`` (ttft, tpot or e2el) in both."""
    changes = []
    for key, (label, better) in METRICS.items():
        one, two = (run.document["summary"].get(key) for run in (first, second))
        if one and two is not None:
            changes.append(Change(key, label, one, two, better))
    curves = [{curve.name: curve for curve in latency_data(run).curves}.get(latency) for run in (first, second)]
    basis = weakest((first.basis, second.basis))
    return ComparisonData(names, tuple(changes), latency, (curves[0], curves[1]), basis)


def change_figure(data: ComparisonData) -> go.Figure:
    """Bars of change in percent; hatched bars are for the worse."""
    figure = go.Figure()
    worse = [(change.percent > 0) != change.more_is_better and change.percent != 0 for change in data.changes]
    figure.add_bar(
        y=[change.label for change in data.changes],
        x=[change.percent for change in data.changes],
        orientation="h",
        marker={
            "color": [RUN_COLOURS[int(bad)] for bad in worse],
            "pattern": {"shape": ["/" if bad else "" for bad in worse]},
        },
        customdata=[[change.first, change.second] for change in data.changes],
        text=[f"{change.percent:+.1f} %" for change in data.changes],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{customdata[0]:.4s} to %{customdata[1]:.4s}, %{x:+.2f} %<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=0, line={"color": GREY, "width": 1})
    figure.update_yaxes(autorange="reversed", ticks="")
    figure.update_xaxes(title="change (%)", range=_wide([change.percent for change in data.changes]))
    caption = "second over first; hatched: worse"
    return captioned(figure, "Change", caption, data.basis, 420)


def _wide(percents: list[float]) -> list[float]:
    """A range around zero with room for the words at the end of the bars."""
    low, high = min([0.0, *percents]), max([0.0, *percents])
    room = 0.4 * (high - low or 1.0)
    return [low - room if low < 0 else 0.0, high + room if high > 0 else 0.0]


def curves_figure(data: ComparisonData) -> go.Figure:
    """The distribution of one latency in both runs."""
    figure = go.Figure()
    for name, curve, colour, dash in zip(data.names, data.curves, RUN_COLOURS, ("solid", "dash"), strict=True):
        if curve is not None:
            figure.add_scatter(
                x=curve.ms,
                y=curve.share * 100,
                mode="lines" if len(curve.ms) > 1 else "markers",
                name=name,
                line={"color": colour, "width": 2.5, "shape": "hv", "dash": dash},
                hovertemplate="%{y:.1f} % within %{x:.4s} ms",
            )
    figure.update_xaxes(type="log", title="milliseconds", dtick=1)
    figure.update_yaxes(title="share of requests (%)", range=[0, 102])
    figure.update_layout(hovermode="closest")
    return captioned(figure, f"{NAMES[data.latency]} in both runs", "cumulative", data.basis, 420)
