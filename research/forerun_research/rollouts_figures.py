"""The figure of rollouts: responses in progress over the time of a training step."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go

from forerun.studies import ResultFigure, text_bars, theme


class RolloutsData(NamedTuple):
    """Responses in progress over the time of a training step: a curve of (seconds, responses) for each way to draft."""

    curves: dict[str, list[list[float]]]
    responses: int
    tail_responses: int
    """Responses in progress, over all replicas, up to which drafts pay; 0: none."""
    basis: str


def rollouts_data(document: dict[str, Any]) -> RolloutsData:
    """Curves of a ``rollouts`` document."""
    curves = {row["drafting"]: row["curve"] for row in document["ways"]}
    tail = document["tail_batch"] * document["scenario"]["hardware"].get("replicas", 1)
    return RolloutsData(curves, document["responses"], tail, document["basis"])


def rollouts_figure(data: RolloutsData) -> go.Figure:
    """Responses in progress over time, on a log axis that shows the tail; under the dotted line drafts pay."""
    figure = go.Figure()
    for (way, points), colour in zip(
        data.curves.items(), (theme.GREY, theme.BLUE, theme.VERMILLION, theme.GREEN), strict=False
    ):
        seconds, running = zip(*((at_s, count) for at_s, count in points if count), strict=True)
        theme.add_line(figure, seconds, running, way, colour, "%{x:.1f} s: %{y:,} in progress", mode="lines")
    if 0 < data.tail_responses < data.responses:
        line = {"color": theme.GREY, "width": 1, "dash": "dot"}
        ends = [0.0, max(points[-1][0] for points in data.curves.values())]
        theme.add_line(figure, ends, [data.tail_responses] * 2, "drafts pay below", theme.GREY, "%{y:,}", line=line)
    axes = ({"title": "time (s)", "rangemode": "tozero"}, {"title": "responses in progress", "type": "log", "dtick": 1})
    caption = f"{data.responses:,} responses; the step waits for the last of them"
    return theme.captioned(figure, "Responses of a training step", caption, data.basis, 420, *axes)


def rollouts_text(data: RolloutsData) -> str:
    """Time of generation of each way to draft."""
    rows = [(way, points[-1][0], f"{points[-1][0]:.4g} s") for way, points in data.curves.items()]
    return "seconds until the step has its responses\n" + text_bars(rows)


FIGURES = (ResultFigure("in_progress", rollouts_data, rollouts_figure, rollouts_text),)
