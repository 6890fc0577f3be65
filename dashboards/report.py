"""One self-contained HTML page about a run: no network, no server, light and dark, wide and narrow."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from dashboards.figures import (
    BASIS_WORDS,
    bottleneck_data,
    bottleneck_figure,
    latency_data,
    latency_figure,
    timeline_data,
    timeline_figure,
    waterfall_data,
    waterfall_figure,
)
from dashboards.figures.waterfall import slowest
from dashboards.fleet_parts import pool_table, replica_table
from dashboards.page import card, figure_cards, grid, page_html
from dashboards.report_parts import (
    badges,
    kv_rows,
    latency_table,
    lead_sentence,
    notes_list,
    pairs_table,
    serving_rows,
    slo_table,
    speculation_rows,
    tiles,
    use_rows,
)
from simulator.metrics.files import write_text_atomically
from simulator.metrics.run_folder import Run, load_run

REPORT_FILE = "report.html"
MANY_REQUESTS = 300
"""Beyond, requests are too short to see over the whole run: those around the longest TTFT are shown."""


def write_report(folder: Path, output: Path | None = None) -> Path:
    """Write the report of the run in ``folder`` to ``output`` (default: ``report.html`` in it) and return its path.

    Raises:
        ForerunError: when ``folder`` is not a run folder.
        OSError: when a file cannot be read or written.
    """
    path = output or folder / REPORT_FILE
    write_text_atomically(path, report_html(load_run(folder)))
    return path


def report_figures(run: Run) -> dict[str, go.Figure]:
    """The figures of a report by the id of their place in the page; empty ones are left out."""
    figures = {}
    if (bottleneck := bottleneck_data(run)).shares:
        figures["figure-bottleneck"] = bottleneck_figure(bottleneck)
    if (latency := latency_data(run)).curves:
        figures["figure-latency"] = latency_figure(latency)
    if len((timeline := timeline_data(run)).time_s):
        figures["figure-timeline"] = timeline_figure(timeline)
    around = slowest(run) if len(run.requests["arrival_s"]) > MANY_REQUESTS else None
    if len((waterfall := waterfall_data(run, around=around)).row):
        figures["figure-waterfall"] = waterfall_figure(waterfall)
    return figures


def report_html(run: Run) -> str:
    """The whole page as text."""
    figures = report_figures(run)
    return page_html(f"{run.name} · Forerun", _body(run, figures), figures)


def _body(run: Run, figures: dict[str, go.Figure]) -> str:
    document = run.document
    plots = figure_cards(figures)
    sections = [
        _header(run),
        tiles(document),
        plots.get("figure-bottleneck", ""),
        card("Latency (ms)", latency_table(document)),
        card("Service-level objectives", slo_table(document)),
        grid(plots.get("figure-latency", ""), plots.get("figure-waterfall", "")),
        plots.get("figure-timeline", ""),
        grid(
            card("Serving", pairs_table(serving_rows(document))),
            card("Chips", pairs_table(use_rows(document))),
        ),
        grid(
            card("KV cache and memory", pairs_table(kv_rows(document))),
            card("Speculative decoding", pairs_table(speculation_rows(document))),
        ),
        card("Pools", pool_table(document)),
        card("Replicas", replica_table(document)),
        card("Notes", notes_list(document)),
        _scenario(document),
        f"<footer>Forerun {escape(str(document.get('version', '')))} · seed {escape(str(document.get('seed', '')))} · "
        f"a prediction, not a measurement · run {escape(str(document.get('run', '')))}</footer>",
    ]
    return "\n".join(section for section in sections if section)


def _header(run: Run) -> str:
    document = run.document
    basis = BASIS_WORDS.get(run.basis, run.basis)
    return (
        f"<header><h1>{escape(run.name)}</h1><p>Simulated serving run · {escape(basis)}</p>"
        f'<p class="lead">{lead_sentence(document)}</p>{badges(document)}</header>'
    )


def _scenario(document: dict[str, Any]) -> str:
    import yaml

    text = yaml.safe_dump(document["scenario"], sort_keys=False, default_flow_style=None, width=100)
    return f'<section class="card"><details><summary>Scenario</summary><pre>{escape(text)}</pre></details></section>'
