"""One self-contained HTML page about a run: no network, no server, light and dark, wide and narrow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dashboards import page
from dashboards.figures import run as of_run
from dashboards.page import Tile
from dashboards.theme import FigureData, ResultFigure, with_data
from forerun.document import Json
from forerun.tables import ABSENT, number, percent
from simulator.running.metrics import main_bottleneck
from simulator.running.metrics.conclusion import slo_words
from simulator.running.metrics.files import write_text_atomically
from simulator.running.metrics.run_folder import (
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    RunFolder,
    load_run,
    run_columns,
    write_run,
)
from simulator.running.metrics.tables import interval_words, more_run_tables, run_legend, run_tables
from simulator.running.run import RunResult

if TYPE_CHECKING:
    import pyarrow as pa

REPORT_FILE = "report.html"
FIGURES = (
    ResultFigure("bottleneck", of_run.bottleneck_data, of_run.bottleneck_figure),
    ResultFigure("latency", of_run.latency_data, of_run.latency_figure),
    ResultFigure("timeline", of_run.timeline_data, of_run.timeline_figure),
    ResultFigure("waterfall", of_run.requests_data, of_run.waterfall_figure),
    ResultFigure("tiers", of_run.tiers_data, of_run.tiers_figure),
    ResultFigure("measuring", of_run.measuring_data, of_run.measuring_figure),
)


def figure_data(result: RunResult) -> FigureData:
    """Figures of a run, the main figure first."""
    return with_data(FIGURES, run_of_result(result))


def save(result: RunResult, folder: Path) -> None:
    """Write the folder of a run with its report."""
    write_run(folder, result, result.document, {REPORT_FILE: write_report})


def run_of_result(result: RunResult) -> RunFolder:
    """Convert a result to a run folder in memory, as the figures need it."""

    def floats(table: pa.Table, names: tuple[str, ...]) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
        return {name: np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64) for name in names}

    return RunFolder(
        Path(),
        result.document,
        floats(run_columns(result, "requests"), REQUEST_COLUMNS),
        floats(run_columns(result, "steps"), STEP_COLUMNS),
    )


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of the run in ``folder`` to ``output`` (default: its ``report.html``) and return its path.

    Raises:
        ForerunError: ``folder`` is not a run folder.
        OSError: a file cannot be read or written.
    """
    path = output or folder / REPORT_FILE
    write_text_atomically(path, report_html(load_run(folder)))
    return path


def report_html(run: RunFolder) -> str:
    """HTML of the whole page."""
    figures = {f"figure-{name}": figure.draw(data) for name, (figure, data) in with_data(FIGURES, run).items()}
    document = run.document
    plots, marks, lead = page.figure_cards(figures), run_marks(document), document.get("conclusion", "")
    sections = [
        page.header(run.name, f"Simulated serving run · {page.basis_words(run.basis)}", lead, marks),
        page.tiles_html(run_tiles(document)),
        page.grid(plots.get("figure-measuring", ""), plots.get("figure-bottleneck", "")),
        page.grid(plots.get("figure-latency", ""), plots.get("figure-waterfall", "")),
        plots.get("figure-timeline", ""),
        plots.get("figure-tiers", ""),
        *map(page.table_card, (*run_tables(document), *more_run_tables(document))),
        page.card("Notes", page.bullets((run_legend(document), *(document.get("notes") or ())))),
        page.folded("Scenario", page.scenario_yaml(document["scenario"])),
        page.footer(
            f"Forerun {document.get('version', '')}",
            f"seed {document.get('seed', '')}",
            "a prediction, not a measurement",
            f"run {document.get('run', '')}",
        ),
    ]
    return page.page_html(run.name, sections, figures)


def run_marks(document: Json) -> list[tuple[str, str]]:
    """Basis, SLO verdict, failures, preemptions and the number of runs behind the numbers, as badges."""
    marks = [(f"basis: {document['basis']}", "")]
    slo = document.get("slo")
    if slo is not None:
        marks.append((slo_words(slo), "good" if slo["met"] else "bad"))
    if document["summary"].get("failed"):
        marks.append((f"{number(document['summary']['failed'])} failed", "bad"))
    if document["kv_cache"].get("preemptions"):
        marks.append((f"{number(document['kv_cache']['preemptions'])} preemptions", "bad"))
    if document.get("replications", 1) > 1:
        marks.append((f"mean of {document['replications']} runs", ""))
    if document.get("interval_level") is not None:
        marks.append((interval_words(document), ""))
    return marks


def run_tiles(document: Json) -> list[Tile]:
    """Most important metrics of a run."""
    summary, kv, shares = document["summary"], document["kv_cache"], document["bottleneck"]
    bound = main_bottleneck(shares)
    rate = f"{number(summary['request_throughput'])} req/s"
    shown = [Tile("Output throughput", number(summary["output_throughput"]), "tok/s", rate)]
    for name, words in (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2el", "E2E latency")):
        median = f"median {number(summary[f'median_{name}_ms'])} ms"
        shown.append(Tile(f"p99 {words}", number(summary[f"p99_{name}_ms"]), "ms", median))
    limited = f"{percent(shares[bound] if shares and bound else None)} of engine time"
    shown.append(Tile("Bottleneck", bound or ABSENT, "", limited))
    shown.append(Tile("KV cache peak", percent(kv.get("peak_use")), "", f"of {number(kv.get('num_blocks'))} blocks"))
    cost = document.get("usd_per_million_output_tokens")
    if cost is not None:
        shown.append(Tile("Cost", f"${number(cost, 3)}", "", "per million output tokens"))
    length = summary.get("spec_decode_acceptance_length")
    if length is not None:
        shown.append(Tile("Acceptance length", number(length, 3), "", "tokens per verify step"))
    hits = kv.get("prefix_hit_rate")
    if hits is not None:
        shown.append(Tile("Prefix cache hits", percent(hits), "", "of the prompt tokens"))
    if len(shown) % 2:
        use = document["utilisation"]
        shown.append(Tile("Bandwidth used", percent(use["mbu"]), "", f"MBU; MFU {percent(use['mfu'])}"))
    return shown
