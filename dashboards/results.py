"""Figures and pages of results, loaded by :class:`forerun.result.Result` on first use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from dashboards.replay_report import kind_of, write_replay
from dashboards.report import REPORT_FILE, write_report
from dashboards.result_figures import KERNELS, ResultFigure, figure_data
from dashboards.study_report import plan_summary_html, study_html, study_markdown
from forerun.errors import ForerunError, did_you_mean
from forerun.result import Result, StudyResult
from simulator.replay.result import Replay
from simulator.running.metrics.document import json_text
from simulator.running.metrics.files import StagedFiles
from simulator.running.metrics.run_folder import REQUEST_COLUMNS, STEP_COLUMNS, RunFolder, run_columns, write_run
from simulator.running.run import RunResult

if TYPE_CHECKING:
    import pyarrow as pa


def result_figure(result: Result, name: str = "") -> go.Figure:
    """The main figure of a result, or the one of that name.

    Raises:
        ForerunError: there is none of that name.
    """
    figures = _figures(result)
    if name and name not in figures:
        hint = did_you_mean(name, figures)
        raise ForerunError(f"name: no figure '{name}'{hint} (there are {', '.join(figures) or 'none'})")
    if not figures:
        raise ForerunError(f"{result.kind}: this result has no figures")
    figure, data = figures[name or next(iter(figures))]
    return figure.draw(data)


def figure_names(result: Result) -> tuple[str, ...]:
    """Names of the figures of a result, the main one first."""
    return tuple(_figures(result))


def save_result(result: Result, folder: Path) -> None:
    """Write the files that ``--out`` writes; all or none."""
    if isinstance(result, RunResult):
        write_run(folder, result, result.document, {REPORT_FILE: write_report})
    elif isinstance(result, Replay):
        write_replay(folder, result.document, result)
    elif isinstance(result, StudyResult):
        _save_study(result, folder)
    else:
        with StagedFiles(folder) as staged:
            staged.add_text(f"{result.kind}.json", json_text(result.document))


def _save_study(result: StudyResult, folder: Path) -> None:
    page, markdown = study_html(result), study_markdown(result)
    with StagedFiles(folder) as staged:
        staged.add_text(f"{result.kind}.json", json_text(result.document))
        for name, text in result.files.items():
            staged.add_text(name, text)
        if result.document.get("plan_summary"):
            staged.add_text("summary.html", plan_summary_html(result))
        staged.add_text("report.html", page)
        staged.add_text("report.md", markdown)


def run_of_result(result: RunResult) -> RunFolder:
    """A result as the figures read it, without a folder."""

    def floats(table: pa.Table, names: tuple[str, ...]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        return {name: np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64) for name in names}

    return RunFolder(
        Path(),
        result.document,
        floats(run_columns(result, "requests"), REQUEST_COLUMNS),
        floats(run_columns(result, "steps"), STEP_COLUMNS),
    )


def _figures(result: Result) -> dict[str, tuple[ResultFigure, Any]]:
    """Every figure of a result with its data, the main one first."""
    if isinstance(result, RunResult):
        return figure_data("run", run_of_result(result))
    if isinstance(result, Replay):
        kind = kind_of(result.document) if result.kind == "replay" else None
        return figure_data(kind, result if kind == KERNELS else result.document) if kind else {}
    return figure_data(result.kind, result.document, result.drawn_in) if isinstance(result, StudyResult) else {}
