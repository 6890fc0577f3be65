"""Figure of a sweep: every point by the metric that it is judged by, over each field that varies."""

from __future__ import annotations

from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.figures.theme import BLUE, VERMILLION, captioned
from simulator.studies.paired import HIGHER_IS_BETTER, metric_words
from simulator.studies.sweep.study import point_value

MOST_FIELDS = 6
"""Fields that get a panel of their own; those that move the metric most come first."""


class SweepPanel(NamedTuple):
    """The points over one field."""

    path: str
    values: tuple[Any, ...]
    """Numbers, or texts for anything else."""
    metric: tuple[float, ...]
    names: tuple[str, ...]


class SweepData(NamedTuple):
    """Panels of a sweep and its best point."""

    panels: tuple[SweepPanel, ...]
    best: int
    metric: str
    basis: str


def sweep_data(document: dict[str, Any], metric: str) -> SweepData | None:
    """The finished points of a ``sweep`` document by field; None where none measured the metric."""
    known = [(p, v) for p in document["points"] if (v := point_value(p, metric)) is not None]
    if not known:
        return None
    paths = list(dict.fromkeys(path for point, _ in known for path in point["set"]))
    panels = []
    for path in paths:
        rows = [(point["set"][path], value, point["name"]) for point, value in known if path in point["set"]]
        values = [row[0] for row in rows]
        if len({repr(value) for value in values}) < 2 and len(paths) > 1:
            continue
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        shown = tuple(values) if numeric else tuple(str(value) for value in values)
        panels.append(SweepPanel(path, shown, tuple(r[1] for r in rows), tuple(r[2] for r in rows)))
    panels.sort(key=lambda panel: -_explained(panel))
    order = [value for _, value in known]
    best = order.index(max(order) if HIGHER_IS_BETTER[metric] else min(order))
    return SweepData(tuple(panels[:MOST_FIELDS]), best, metric, document["basis"])


def sweep_figure(data: SweepData) -> go.Figure:
    """A panel per field, the best point marked."""
    count = len(data.panels)
    figure = make_subplots(rows=count, cols=1, vertical_spacing=0.22 / count if count > 1 else 0.0)
    for row, panel in enumerate(data.panels, start=1):
        figure.add_scatter(
            x=panel.values,
            y=panel.metric,
            mode="markers",
            marker={"color": BLUE, "size": 8, "opacity": 0.75},
            text=panel.names,
            hovertemplate="%{text}: %{y:.4g}<extra></extra>",
            showlegend=False,
            row=row,
            col=1,
        )
        if len(panel.values) > data.best:
            figure.add_scatter(
                x=[panel.values[data.best]],
                y=[panel.metric[data.best]],
                mode="markers",
                marker={"color": VERMILLION, "size": 13, "symbol": "circle-open", "line": {"width": 2.5}},
                name="best",
                hoverinfo="skip",
                showlegend=row == 1,
                row=row,
                col=1,
            )
        numbers = [value for value in panel.values if not isinstance(value, str)]
        wide = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= 10
        figure.update_xaxes(title=panel.path, type="log" if wide else None, row=row, col=1)
        figure.update_yaxes(title=_axis(data.metric), rangemode="tozero", row=row, col=1)
    caption = f"{len(data.panels[0].values) if data.panels else 0} points"
    return captioned(figure, "Points by field", caption, data.basis, 170 + 280 * max(1, count))


def _axis(metric: str) -> str:
    return metric_words(metric) + (" (ms)" if metric.endswith("_ms") else "")


def _explained(panel: SweepPanel) -> float:
    """Share of the metric's variance that lies between equal values of the field (or ten equal ranges of numbers)."""
    overall = sum(panel.metric) / len(panel.metric)
    total = sum((value - overall) ** 2 for value in panel.metric)
    if total == 0.0:
        return 0.0
    groups: dict[Any, list[float]] = {}
    numbers = [value for value in panel.values if not isinstance(value, str)]
    spread = len(set(numbers)) > 10
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    for value, metric in zip(panel.values, panel.metric, strict=True):
        mark = min(9, int(10 * (value - low) / (high - low))) if spread else value
        groups.setdefault(mark, []).append(metric)
    return sum(len(g) * (sum(g) / len(g) - overall) ** 2 for g in groups.values()) / total
