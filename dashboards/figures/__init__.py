"""Figures: each is a pure function from a run to data, and a thin one from data to a Plotly figure."""

from dashboards.figures.bottleneck import BottleneckData, bottleneck_data, bottleneck_figure
from dashboards.figures.latency import LatencyCurve, LatencyData, latency_data, latency_figure
from dashboards.figures.parity import ErrorData, ParityData, error_data, error_figure, parity_data, parity_figure
from dashboards.figures.theme import BASIS_WORDS, COLOURS, dark_template, light_template
from dashboards.figures.timeline import TimelineData, timeline_data, timeline_figure
from dashboards.figures.waterfall import WaterfallData, waterfall_data, waterfall_figure

__all__ = [
    "BASIS_WORDS",
    "COLOURS",
    "BottleneckData",
    "ErrorData",
    "LatencyCurve",
    "LatencyData",
    "ParityData",
    "TimelineData",
    "WaterfallData",
    "bottleneck_data",
    "bottleneck_figure",
    "dark_template",
    "error_data",
    "error_figure",
    "latency_data",
    "latency_figure",
    "light_template",
    "parity_data",
    "parity_figure",
    "timeline_data",
    "timeline_figure",
    "waterfall_data",
    "waterfall_figure",
]
