"""Kernels on the roofline of their chip: arithmetic intensity against FLOP/s, measured points beside predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from dashboards.theme import BLUE, COLOURS, add_points, captioned, evenly
from forerun.arrays import FloatArray
from hwprofiles import Chip
from simulator.replay import ReplayReport
from simulator.timing import Kernel

MAX_POINTS = 2000
"""Maximum measured kernels of one plot; a larger trace is thinned evenly."""
SYMBOLS = {"gemm": "circle", "attention": "diamond", "moe": "square", "elementwise": "x"}


class RooflinePoint(NamedTuple):
    """One kind of kernel of a step; all layers share a point, whose ``share`` is of the step's time."""

    phase: str
    kernel: Kernel
    share: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP per byte."""
        return float(self.kernel.flops / self.kernel.bytes)

    @property
    def flops_per_s(self) -> float:
        """Arithmetic rate of one kernel in FLOP/s."""
        return float(self.kernel.flops / self.kernel.seconds)


class MeasuredPoints(NamedTuple):
    """Kernels of a trace: measured and predicted FLOP/s at the same intensity."""

    label: str
    intensity: FloatArray
    measured_flops_per_s: FloatArray
    predicted_flops_per_s: FloatArray
    rows: int


class RooflineData(NamedTuple):
    """A chip's limits, a step's kernels by phase, and measured kernels, if any."""

    chip: str
    bandwidth_bytes_per_s: float
    peaks: dict[str, float]
    """Peak dense FLOP/s by math format, for the formats in use."""
    points: tuple[RooflinePoint, ...]
    measured: MeasuredPoints | None
    basis: str


def roofline_data(
    chip: Chip, phases: Mapping[str, Sequence[Kernel]], measured: MeasuredPoints | None, basis: str
) -> RooflineData:
    """The kernels of one step per phase on the roofline of ``chip``; kernels without arithmetic are omitted."""
    points, formats = [], set()
    for phase, kernels in phases.items():
        total_s = sum(kernel.step_s for kernel in kernels)
        formats |= {chip.math_dtype(kernel.dtype or "bf16") for kernel in kernels}
        points += [
            RooflinePoint(phase, kernel, kernel.step_s / total_s)
            for kernel in kernels
            if kernel.flops > 0 and kernel.bytes > 0 and kernel.seconds > 0
        ]
    peaks = {dtype: chip.peak_flops(dtype) for dtype in sorted(formats)}
    return RooflineData(chip.name, chip.memory.bandwidth_bytes_per_s, peaks, tuple(points), measured, basis)


def measured_points(report: ReplayReport) -> MeasuredPoints:
    """Kernels of a replay that have arithmetic, thinned evenly to at most ``MAX_POINTS``."""
    prediction = report.prediction
    computing = np.flatnonzero((prediction.flops > 0) & (prediction.bytes > 0))
    rows = computing[evenly(len(computing), MAX_POINTS)]
    flops = prediction.flops[rows]
    return MeasuredPoints(
        report.source,
        flops / prediction.bytes[rows],
        flops / report.rows.measured_s[rows],
        flops / prediction.seconds[rows],
        len(computing),
    )


def roofline_figure(data: RooflineData) -> go.Figure:
    """Roofline plot with logarithmic axes; the size of a point is its share of the step's device time."""
    figure = go.Figure()
    low, high = _span(data)
    for dtype, peak in data.peaks.items():
        ridge = peak / data.bandwidth_bytes_per_s
        x = np.array(sorted({low, min(max(ridge, low), high), high}))
        figure.add_scatter(
            x=x,
            y=np.minimum(x * data.bandwidth_bytes_per_s, peak),
            mode="lines",
            name=f"{data.chip}, {dtype}",
            line={"color": COLOURS["idle"], "width": 2, "dash": "solid" if dtype == max(data.peaks) else "dot"},
            hovertemplate=f"{dtype}: %{{y:.3s}}FLOP/s<extra></extra>",
        )
        words = f"{dtype}: {peak / 1e12:,.0f} TFLOP/s from {ridge:,.0f} FLOP/byte"
        place = {"x": np.log10(ridge), "y": np.log10(peak), "xanchor": "right", "yanchor": "bottom"}
        figure.add_annotation(text=words, showarrow=False, font={"size": 11}, **place)
    if data.measured is not None:
        _add_measured(figure, data.measured)
    for phase in dict.fromkeys(point.phase for point in data.points):
        part = [point for point in data.points if point.phase == phase]
        marker = {
            "color": COLOURS.get(phase, BLUE),
            "symbol": [SYMBOLS.get(point.kernel.family, "circle") for point in part],
            "size": [9 + 24 * point.share**0.5 for point in part],
            "opacity": 0.85,
            "line": {"width": 1, "color": "rgba(128,128,128,0.6)"},
        }
        shown = [[kernel.name, kernel.step_s * 1e6, share * 100, kernel.bound] for _, kernel, share in part]
        hover = "<b>%{customdata[0]}</b><br>%{x:.3s} FLOP/byte, %{y:.3s}FLOP/s<br>"
        hover += "%{customdata[1]:.4s} us, %{customdata[2]:.1f} % of the step, bound: %{customdata[3]}"
        at = [point.intensity for point in part], [point.flops_per_s for point in part]
        add_points(figure, *at, phase, marker, hover, customdata=shown)
    titles = ("arithmetic intensity (FLOP/byte)", "FLOP/s")
    looks = zip(titles, ("~g", "~s"), strict=True)
    axes = ({"title": title, "type": "log", "tickformat": ticks, "dtick": 1} for title, ticks in looks)
    caption = "circle GEMM, diamond attention; size: share of the step"
    return captioned(figure, "Roofline", caption, data.basis, 540, *axes, hovermode="closest")


def _add_measured(figure: go.Figure, measured: MeasuredPoints) -> None:
    shown = [
        ("measured", measured.measured_flops_per_s, "circle-open", "#8c564b"),
        ("predicted for it", measured.predicted_flops_per_s, "cross-thin-open", COLOURS["idle"]),
    ]
    for name, values, symbol, colour in shown:
        marker = {"symbol": symbol, "color": colour, "size": 6}
        hover = f"{name}: %{{x:.3s}} FLOP/byte, %{{y:.3s}}FLOP/s<extra></extra>"
        add_points(figure, measured.intensity, values, name, marker, hover)


def _span(data: RooflineData) -> tuple[float, float]:
    """Range of intensities on the axis, from below the leftmost point to beyond the last ridge point."""
    intensities = [point.intensity for point in data.points]
    intensities += [peak / data.bandwidth_bytes_per_s for peak in data.peaks.values()]
    if data.measured is not None and len(data.measured.intensity):
        intensities += [float(data.measured.intensity.min()), float(data.measured.intensity.max())]
    return min([1.0, *intensities]) / 2, max([1.0, *intensities]) * 4
