"""Batch, queue, KV use and output rate over simulated time, averaged in bins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from dashboards.figures.theme import COLOURS, captioned
from simulator.metrics.run_folder import Run

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


def timeline_data(run: Run, bins: int = BINS, spans: Spans | None = None) -> TimelineData:
    """Average the engine steps of ``run`` over ``bins`` equal parts of the time from the first to the last of them.

    Args:
        spans: those of ``spans_of``, where they are known already.
    """
    steps = run.steps
    spans = spans or spans_of(run, bins)
    if spans is None:
        empty = np.empty(0)
        return TimelineData(empty, 0.0, empty, empty, None, empty, run.basis)
    kinds = run.document.get("pools") or [
        {
            "num_blocks": run.document["kv_cache"].get("num_blocks") or 0,
            "replicas": run.document["scenario"]["hardware"].get("replicas", 1),
        }
    ]
    blocks = sum(kind["num_blocks"] * kind["replicas"] for kind in kinds)
    return TimelineData(
        time_s=spans.middle_s,
        bin_s=spans.bin_s,
        running=spans.mean(steps["running"]),
        waiting=spans.mean(steps["waiting"]),
        kv_use=spans.mean(steps["kv_blocks"]) / blocks if blocks else None,
        output_tokens_per_s=spans.rate(steps["output_tokens"]),
        basis=run.basis,
    )


def spans_of(run: Run, bins: int) -> Spans | None:
    """The engine steps of ``run`` as spans over ``bins`` equal parts of its time; None where there is no step."""
    start_s, seconds = run.steps["start_s"], run.steps["seconds"]
    if not len(start_s):
        return None
    end_s = start_s + seconds
    return Spans(run.steps["replica"], start_s, end_s, np.linspace(start_s.min(), end_s.max(), bins + 1))


class Spans:
    """Engine steps in time, ready to average many of their quantities over the same bins.

    Where steps of a replica overlap, a step counts until the next one starts.

    Args:
        replica: of every step.
        start_s: of every step, in seconds.
        end_s: not before the start.
        edges: ascending bin edges in seconds, one more than bins; bins of no length give 0.
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
        """Middle of every bin."""
        return (self.edges[:-1] + self.edges[1:]) / 2

    @property
    def bin_s(self) -> float:
        """Length of the first bin."""
        return float(self.edges[1] - self.edges[0])

    def mean(self, value: FloatArray) -> FloatArray:
        """Mean over each bin of a quantity that is ``value[i]`` during step i and else 0; replicas add up."""
        return self._mean(self._sorted(value))

    def rate(self, amount: FloatArray) -> FloatArray:
        """The same for an ``amount`` spread evenly over its step; steps without length count for nothing."""
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


def time_mean(
    replica: FloatArray, start_s: FloatArray, end_s: FloatArray, value: FloatArray, edges: FloatArray
) -> FloatArray:
    """Mean over each bin of one quantity; see ``Spans``."""
    return Spans(replica, start_s, end_s, edges).mean(value)


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
