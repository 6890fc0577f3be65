"""One self-contained HTML page about a replay: of measured kernels, of benchmark results, or of engine steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import plotly.graph_objects as go

from dashboards import page
from dashboards.figures import replays
from dashboards.page import Tile
from dashboards.theme import FigureData, ResultFigure, with_data
from forerun.document import Json, json_text
from forerun.tables import Table, number
from simulator.replay.replay_tables import (
    METRIC_WORDS,
    READINGS,
    Replay,
    cold_words,
    context_words,
    explained_run,
    kernel_replay_tables,
    run_replay_tables,
    step_replay_tables,
)
from simulator.running.metrics.files import StagedFiles

REPLAY_FILE = "replay.json"
KERNELS, RUNS, STEPS = "kernels", "benchmark results", "engine steps"
"""Kinds of replay."""
FIGURES: Mapping[str, Sequence[ResultFigure]] = {
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


def figure_data(result: Replay) -> FigureData:
    """Figures of a replay, the main figure first; empty for a calibration."""
    return _figures(result.document, result) if result.kind == "replay" else {}


def _figures(document: Json, report: Replay | None) -> FigureData:
    kind = kind_of(document)
    return {} if kind is None else with_data(FIGURES[kind], report if kind == KERNELS else document)


def save(result: Replay, folder: Path) -> None:
    """Write the document of a replay and its report."""
    write_replay(folder, result.document, result)


def write_replay(folder: Path, document: Json, report: Replay | None = None) -> None:
    """Write ``replay.json`` and ``report.html`` into ``folder``, both or neither."""
    with StagedFiles(folder) as staged:
        staged.add_text(REPLAY_FILE, json_text(document))
        staged.add_text("report.html", replay_html(document, report))


def kind_of(document: Json) -> str | None:
    """Kind of replay, recognised by the fields of its document; None if the document is no replay."""
    if {"runs", "scores", "worst", "skipped", "basis"} <= document.keys():
        return RUNS
    if {"steps", "groups", "overall", "worst", "basis"} <= document.keys():
        return STEPS
    return KERNELS if {"chip", "groups", "overall", "worst", "skipped", "basis"} <= document.keys() else None


def replay_figures(document: Json, report: Replay | None = None) -> dict[str, go.Figure]:
    """Figures by name: one parity plot per metric of benchmark results or steps; parity and errors for kernels."""
    return {name: figure.draw(data) for name, (figure, data) in _figures(document, report).items()}


def replay_tables(document: Json) -> list[Table]:
    tables = {KERNELS: kernel_replay_tables, RUNS: run_replay_tables, STEPS: step_replay_tables}
    return tables[kind_of(document) or KERNELS](document)


def replay_tiles(document: Json) -> list[Tile]:
    """Most important errors of a replay."""
    if kind_of(document) == RUNS and len(document["runs"]) == 1:
        (run,) = document["runs"]
        return [_single(run, *METRIC_WORDS[metric], metric) for metric in METRIC_WORDS if metric in run["error"]]
    if kind_of(document) == RUNS:
        overall = {score["metric"]: score for score in document["scores"] if score["group"] == "all"}
        return [
            Tile(words, f"{overall[metric]['mape']:.1f}", "% MAPE", _bias(overall[metric], "runs"))
            for metric, (words, _) in METRIC_WORDS.items()
            if metric in overall
        ]
    overall = document["overall"]
    if kind_of(document) == STEPS:
        groups = [{**overall, "kind": "all"}, *document["groups"]]
        return [
            Tile(f"{group['kind'].capitalize()} steps", f"{group['mape']:.1f}", "% MAPE", _bias(group, "steps"))
            for group in groups
        ]
    tiles = [
        Tile("Rows scored", f"{overall['n']:,}", "", f"{sum(document['skipped'].values()):,} not scored"),
        Tile("Mean error", f"{overall['mape']:.1f}", "%", "MAPE"),
        Tile("Median error", f"{overall['median_ape']:.1f}", "%", "of the measurement"),
        Tile("p90 error", f"{overall['p90_ape']:.1f}", "%", "nine of ten are below"),
        Tile("Bias", f"{overall['bias']:+.1f}", "%", "predicted over measured"),
    ]
    if overall["coverage90"] is not None:
        tiles.append(Tile("Coverage", f"{overall['coverage90']:.0f}", "%", "of the 90 % interval"))
    return tiles


def replay_html(document: Json, report: Replay | None = None) -> str:
    """HTML of the whole page."""
    figures = {f"figure-{name}": figure for name, figure in replay_figures(document, report).items()}
    plots = list(page.figure_cards(figures).values())
    sections = [
        _header(document),
        page.tiles_html(replay_tiles(document)),
        *(page.grid(*plots[i : i + 2]) for i in range(0, len(plots), 2)),
        *map(page.table_card, replay_tables(document)),
        page.card("Notes", page.bullets(filter(None, [cold_words(document)]))),
        page.footer(f"Forerun {document['version']}", f"{kind_of(document)} beside predictions"),
    ]
    return page.page_html(f"Replay of {kind_of(document)}", sections, figures)


def _header(document: Json) -> str:
    kind, held_out = kind_of(document), " held out from any fit" if document.get("split") else ""
    says = f"Measured {kind} beside predicted ones · {page.basis_words(document['basis'])}"
    if kind == KERNELS:
        layer = "; ".join(filter(None, (READINGS[document["residual"]], context_words(document))))
        title = f"{document['chip']}, {document['library']} kernels"
        return page.header(
            title, says, f"{document['overall']['n']:,} kernels{held_out}: {_errors(document)} ({layer})."
        )
    title = ", ".join(Path(source).name for source in document["sources"]) or f"Measured {kind}"
    if kind == STEPS:
        return page.header(title, says, f"{document['overall']['n']:,} steps: {_errors(document)}.")
    errors = ", ".join(f"{tile.label} {tile.value} %" for tile in replay_tiles(document))
    if "explanation" in document:
        return page.header(title, says, f"{explained_run(document)}{document['explanation']['verdict']}.")
    if len(document["runs"]) == 1:
        return page.header(title, says, f"One run; predicted over measured: {errors}.")
    configurations = " of configurations held out from any fit" if held_out else ""
    return page.header(title, says, f"{len(document['runs']):,} runs{configurations}; mean absolute error: {errors}.")


def _errors(document: Json) -> str:
    overall: Mapping[str, float] = document["overall"]
    return f"mean error {overall['mape']:.1f} %, median {overall['median_ape']:.1f} %, bias {overall['bias']:+.1f} %"


def _single(run: Json, words: str, unit: str, metric: str) -> Tile:
    """Signed error of one run or step."""
    predicted, measured = (number(run[key][metric]) for key in ("predicted", "measured"))
    detail = f"predicted {predicted}, measured {measured} {unit}"
    return Tile(words, f"{run['error'][metric]:+.1f}", "%", detail)


def _bias(group: Json, noun: str) -> str:
    return f"bias {group['bias']:+.1f} %, {group['n']:,} {noun}"
