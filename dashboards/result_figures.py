"""Every figure of a result, declared once: the kind of result, its name, its data, how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import plotly.graph_objects as go

from dashboards.figures import load, replays, run, speculation, studies, text
from simulator.replay.replay_tables import METRIC_WORDS
from simulator.studies.installed import installed_names, load_name

KERNELS, RUNS, STEPS = "kernels", "benchmark results", "engine steps"
"""Kinds of replay."""


class ResultFigure(NamedTuple):
    """A figure of every result of one kind."""

    name: str
    data: Callable[[Any], Any]
    """From a run folder, a replay of kernels, or the document of any other result; None where there is nothing."""
    draw: Callable[[Any], go.Figure]
    text: Callable[[Any], str] = str
    """The figure in text, for Markdown."""


FIGURES: Mapping[str, Sequence[ResultFigure]] = {
    "run": (
        ResultFigure("bottleneck", run.bottleneck_data, run.bottleneck_figure),
        ResultFigure("latency", run.latency_data, run.latency_figure),
        ResultFigure("timeline", run.timeline_data, run.timeline_figure),
        ResultFigure("waterfall", run.requests_data, run.waterfall_figure),
    ),
    "compare": (
        ResultFigure("speedup", studies.forest_data, studies.forest_figure, text.forest_text),
        ResultFigure("load", studies.load_curve_data, studies.load_curve_figure, text.load_curve_text),
        ResultFigure("adaptive", speculation.adaptive_data, speculation.adaptive_figure, text.adaptive_text),
        ResultFigure("tornado", studies.tornado_data, studies.tornado_figure, text.tornado_text),
    ),
    "plan": (
        ResultFigure("pareto", studies.pareto_data, studies.pareto_figure, text.pareto_text),
        ResultFigure(
            "cost", partial(studies.pareto_data, y=studies.PER_MILLION), studies.pareto_figure, text.pareto_text
        ),
        ResultFigure("hours", load.hours_data, load.hours_figure, text.hours_text),
    ),
    "sweep": (ResultFigure("points", studies.sweep_data, studies.sweep_figure, text.points_text),),
    "thresholds": (ResultFigure("rent", studies.thresholds_data, studies.bars_figure, text.bars_text),),
    "tune": (
        ResultFigure("rates", studies.drafting_data, studies.drafting_figure, text.drafting_text),
        ResultFigure("tuning", studies.tuning_data, studies.tuning_figure, text.tuning_text),
    ),
    "twin": (ResultFigure("gaps", studies.twin_data, studies.bars_figure, text.bars_text),),
    KERNELS: (
        ResultFigure("parity", replays.parity_data, replays.parity_figure),
        ResultFigure("errors", replays.error_data, replays.error_figure),
    ),
    STEPS: (ResultFigure("step_ms", replays.step_parity_data, replays.serving_parity_figure),),
    RUNS: tuple(
        ResultFigure(metric, partial(replays.serving_parity_data, metric=metric), replays.serving_parity_figure)
        for metric in METRIC_WORDS
    ),
}
"""Figures of the results of each kind, the main one first."""


def figure_data(kind: str, source: Any, drawn_in: str = "") -> dict[str, tuple[ResultFigure, Any]]:
    """Figures of a result by name, with their data; those without a row of data are left out.

    Args:
        kind: of the result.
        source: what its figures read: a run folder, a replay of kernels, or the document of any other result.
        drawn_in: module whose ``FIGURES`` draw it, for a study of another distribution.
    """
    figures: Sequence[ResultFigure] = import_module(drawn_in).FIGURES if drawn_in else FIGURES.get(kind, ())
    data = {figure.name: (figure, figure.data(source)) for figure in figures}
    return {name: (figure, one) for name, (figure, one) in data.items() if one is not None and len(one[0])}


def drawn_figures(kind: str, source: Any, drawn_in: str = "") -> dict[str, go.Figure]:
    """The figures of a result by name, the main one first; arguments as of :func:`figure_data`."""
    return {name: figure.draw(data) for name, (figure, data) in figure_data(kind, source, drawn_in).items()}


def added_figures() -> set[str]:
    """Names of the figures of results that installed distributions add."""
    classes = (load_name(name) for name in installed_names() if not name.islower())
    modules = {getattr(one, "drawn_in", "") for one in classes} - {""}
    return {figure.name for module in modules for figure in import_module(module).FIGURES}
