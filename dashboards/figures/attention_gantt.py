"""Attention-level speculation in time: what two device groups and their link do on a hit and on a miss."""

from __future__ import annotations

from typing import NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.figures.theme import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILLION, captioned
from simulator.speculation.attention_level import Bar, LayerTimes, Reading, simulate_pass

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
            part = [bar for bar in bars if kind_of(bar) == kind]
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


def kind_of(bar: Bar) -> str:
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
