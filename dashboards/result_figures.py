"""Every figure of a result, declared once: the kind of result, its name, its data, how it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import plotly.graph_objects as go

from dashboards.figures import load, replays, run, speculation, studies, text
from simulator.replay.replay_tables import METRIC_WORDS

KERNELS, RUNS, STEPS = "kernels", "benchmark results", "engine steps"
"""Kinds of replay."""


class ResultFigure(NamedTuple):
    """A figure of every result of one kind."""

    kind: str
    name: str
    data: Callable[[Any], Any]
    """From a run folder, a replay of kernels, or the document of any other result; None where there is nothing."""
    draw: Callable[[Any], go.Figure]
    text: Callable[[Any], str] = str
    """The figure in text, for Markdown."""


FIGURES = (
    ResultFigure("run", "bottleneck", run.bottleneck_data, run.bottleneck_figure),
    ResultFigure("run", "latency", run.latency_data, run.latency_figure),
    ResultFigure("run", "timeline", run.timeline_data, run.timeline_figure),
    ResultFigure("run", "waterfall", run.requests_data, run.waterfall_figure),
    ResultFigure("compare", "speedup", studies.forest_data, studies.forest_figure, text.forest_text),
    ResultFigure("compare", "load", studies.load_curve_data, studies.load_curve_figure, text.load_curve_text),
    ResultFigure("compare", "adaptive", speculation.adaptive_data, speculation.adaptive_figure, text.adaptive_text),
    ResultFigure("compare", "tornado", studies.tornado_data, studies.tornado_figure, text.tornado_text),
    ResultFigure("draft-pool", "gain", speculation.pool_data, speculation.pool_figure, text.pool_text),
    ResultFigure("plan", "pareto", studies.pareto_data, studies.pareto_figure, text.pareto_text),
    ResultFigure(
        "plan", "cost", partial(studies.pareto_data, y=studies.PER_MILLION), studies.pareto_figure, text.pareto_text
    ),
    ResultFigure("plan", "hours", load.hours_data, load.hours_figure, text.hours_text),
    ResultFigure("race", "regret", studies.race_data, studies.race_figure, text.race_text),
    ResultFigure("rollouts", "in_progress", speculation.rollouts_data, speculation.rollouts_figure, text.rollouts_text),
    ResultFigure("sweep", "points", studies.sweep_data, studies.sweep_figure, text.points_text),
    ResultFigure("thresholds", "rent", studies.thresholds_data, studies.bars_figure, text.bars_text),
    ResultFigure("tune", "rates", studies.drafting_data, studies.drafting_figure, text.drafting_text),
    ResultFigure("tune", "tuning", studies.tuning_data, studies.tuning_figure, text.tuning_text),
    ResultFigure("twin", "gaps", studies.twin_data, studies.bars_figure, text.bars_text),
    ResultFigure(KERNELS, "parity", replays.parity_data, replays.parity_figure),
    ResultFigure(KERNELS, "errors", replays.error_data, replays.error_figure),
    ResultFigure(STEPS, "step_ms", replays.step_parity_data, replays.serving_parity_figure),
    *(
        ResultFigure(RUNS, metric, partial(replays.serving_parity_data, metric=metric), replays.serving_parity_figure)
        for metric in METRIC_WORDS
    ),
)
"""The main figure of each kind first."""


def figure_data(kind: str, source: Any) -> dict[str, tuple[ResultFigure, Any]]:
    """The figures of a result with their data, by name; those without a row of data are left out."""
    data = {figure.name: (figure, figure.data(source)) for figure in FIGURES if figure.kind == kind}
    return {name: (figure, one) for name, (figure, one) in data.items() if one is not None and len(one[0])}


def drawn_figures(kind: str, source: Any) -> dict[str, go.Figure]:
    """The figures of a result by name, the main one first."""
    return {name: figure.draw(data) for name, (figure, data) in figure_data(kind, source).items()}
