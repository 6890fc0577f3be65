"""Batch, queue, KV use and output rate over simulated time, averaged in bins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from dashboards.figures.theme import COLOURS, captioned
from dashboards.runs import Run

BINS = 300
FloatArray = NDArray[np.float64]


class TimelineData(NamedTuple):
    """Means over bins of equal length; ``time_s`` is the middle of each bin. Sums over all replicas."""

    time_s: FloatArray
    bin_s: float
    running: FloatArray
    waiting: FloatArray
    kv_use: FloatArray | None
    """Share of all KV blocks in use; None when the capacity is unknown."""
    output_tokens_per_s: FloatArray
    basis: str


def timeline_data(run: Run, bins: int = BINS) -> TimelineData:
    """Average the engine steps of ``run`` over ``bins`` equal parts of the time from the first to the last of them."""
    steps = run.steps
    end_s = steps["start_s"] + steps["seconds"]
    if not len(end_s):
        empty = np.empty(0)
        return TimelineData(empty, 0.0, empty, empty, None, empty, run.basis)
    edges = np.linspace(steps["start_s"].min(), end_s.max(), bins + 1)
    bin_s = float(edges[1] - edges[0])
    seconds = np.where(steps["seconds"] > 0, steps["seconds"], np.inf)
    kinds = run.document.get("pools") or [
        {
            "num_blocks": run.document["kv_cache"].get("num_blocks") or 0,
            "replicas": run.document["scenario"]["hardware"].get("replicas", 1),
        }
    ]
    blocks = sum(kind["num_blocks"] * kind["replicas"] for kind in kinds)
    kv = time_mean(steps["replica"], steps["start_s"], end_s, steps["kv_blocks"], edges)
    return TimelineData(
        time_s=(edges[:-1] + edges[1:]) / 2,
        bin_s=bin_s,
        running=time_mean(steps["replica"], steps["start_s"], end_s, steps["running"], edges),
        waiting=time_mean(steps["replica"], steps["start_s"], end_s, steps["waiting"], edges),
        kv_use=kv / blocks if blocks else None,
        output_tokens_per_s=time_mean(
            steps["replica"], steps["start_s"], end_s, steps["output_tokens"] / seconds, edges
        ),
        basis=run.basis,
    )


def time_mean(
    replica: FloatArray, start_s: FloatArray, end_s: FloatArray, value: FloatArray, edges: FloatArray
) -> FloatArray:
    """Mean over each bin of a quantity that is ``value[i]`` from ``start_s[i]`` to ``end_s[i]`` and else 0.

    Replicas add up. Where steps of a replica overlap, a step counts until the next one starts.

    Args:
        edges: ascending bin edges in seconds, one more than bins; bins of no length give 0.
    """
    total = np.zeros(len(edges) - 1)
    for one in np.unique(replica):
        rows = np.flatnonzero(replica == one)
        rows = rows[np.argsort(start_s[rows], kind="stable")]
        begin, finish = start_s[rows], end_s[rows].copy()
        finish[:-1] = np.minimum(finish[:-1], begin[1:])
        grown = np.cumsum(value[rows] * (finish - begin))
        times = np.column_stack([begin, finish]).ravel()
        integral = np.column_stack([np.concatenate([[0.0], grown[:-1]]), grown]).ravel()
        total += np.diff(np.interp(edges, times, integral))
    width = np.diff(edges)
    return np.divide(total, width, out=np.zeros_like(total), where=width > 0)


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
            figure.add_scatter(
                x=data.time_s,
                y=values,
                name=name,
                mode="lines",
                line={"color": COLOURS[colour], "width": 2},
                hovertemplate="%{y:.4~s}",
                showlegend=row == 1,
                row=row,
                col=1,
            )
    for row, title in enumerate(panels, start=1):
        figure.update_yaxes(title=title, rangemode="tozero", row=row, col=1)
    if data.kv_use is not None:
        figure.update_yaxes(range=[0, 102], row=2, col=1)
    figure.update_xaxes(title="simulated seconds", row=3, col=1)
    figure.update_layout(hovermode="x unified")
    return captioned(figure, "Over time", f"means of {data.bin_s:.3g} s", data.basis, 620)
