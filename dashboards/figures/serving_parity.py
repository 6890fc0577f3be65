"""Predicted against measured serving runs: a parity plot for each metric, and the error over load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.figures.parity import add_guides
from dashboards.figures.theme import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILLION, captioned

METRIC_WORDS = {
    "mean_ttft_ms": ("Mean TTFT", "ms"),
    "mean_tpot_ms": ("Mean TPOT", "ms"),
    "mean_itl_ms": ("Mean ITL", "ms"),
    "mean_e2el_ms": ("Mean E2E latency", "ms"),
    "output_throughput": ("Output throughput", "tokens/s"),
    "request_throughput": ("Request throughput", "requests/s"),
    "step_ms": ("Engine step", "ms"),
}
"""Metrics that have a figure, with title and unit."""
MOST_GROUPS = 6
"""Groups with a colour of their own; the others share one."""
_GROUP_COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY)


class ServingParity(NamedTuple):
    """Measured and predicted values of one metric over runs."""

    metric: str
    measured: NDArray[np.float64]
    predicted: NDArray[np.float64]
    group: tuple[str, ...]
    name: tuple[str, ...]
    mape: float
    basis: str


def serving_parity_data(document: Mapping[str, Any], metric: str) -> ServingParity | None:
    """The runs of a replay document that measured ``metric``; None where there is none."""
    runs = [run for run in document["runs"] if metric in run["error"]]
    if not runs:
        return None
    errors = np.array([run["error"][metric] for run in runs])
    return ServingParity(
        metric,
        np.array([run["measured"][metric] for run in runs]),
        np.array([run["predicted"][metric] for run in runs]),
        tuple(_group(run) for run in runs),
        tuple(run["name"] for run in runs),
        float(np.abs(errors).mean()),
        document["basis"] or "datasheet",
    )


def serving_parity_figure(data: ServingParity) -> go.Figure:
    """Points on the diagonal are exact; the dotted lines are 20 % off."""
    title, unit = METRIC_WORDS[data.metric]
    figure = go.Figure()
    groups = np.array(data.group)
    labels, counts = np.unique(groups, return_counts=True)
    order = [str(label) for label in labels[np.argsort(-counts, kind="stable")]]
    own = order if len(order) <= MOST_GROUPS else order[: MOST_GROUPS - 1]
    parts = [(label, groups == label) for label in own]
    if len(order) > len(own):
        parts.append((f"{len(order) - len(own)} others", ~np.isin(groups, own)))
    names = np.array(data.name)
    for index, (label, part) in enumerate(parts):
        colour = GREY if index >= len(own) else _GROUP_COLOURS[index]
        figure.add_scatter(
            x=data.measured[part],
            y=data.predicted[part],
            mode="markers",
            name=label,
            text=names[part],
            marker={"color": colour, "size": 6, "opacity": 0.7},
            hovertemplate=f"%{{text}}<br>measured %{{x:.4g}} {unit}, predicted %{{y:.4g}} {unit}<extra></extra>",
        )
    low = float(min(data.measured.min(), data.predicted.min()))
    high = float(max(data.measured.max(), data.predicted.max()))
    add_guides(figure, low, high)
    ticks: dict[str, Any] = {"tickformat": "~s"}
    if high > 4 * low:
        ticks["dtick"] = 1 if high > 40 * low else "D2"
    figure.update_xaxes(type="log", title=f"measured ({unit})", **ticks)
    figure.update_yaxes(type="log", title=f"predicted ({unit})", **ticks)
    return captioned(
        figure,
        title,
        f"{len(data.measured):,} {'steps' if data.metric == 'step_ms' else 'runs'}, MAPE {data.mape:.1f} %",
        data.basis,
        520,
    )


def _group(run: Mapping[str, Any]) -> str:
    """Engine and tensor parallelism, which tell host and interconnect errors apart."""
    parallel = f"TP {run['tensor_parallel']}" if run["tensor_parallel"] else ""
    return " ".join(word for word in (run["framework"], parallel) if word) or "runs"
