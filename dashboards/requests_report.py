"""One self-contained HTML page about a replay of measured serving runs or engine steps."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from dashboards.figures.serving_parity import METRIC_WORDS, serving_parity_data, serving_parity_figure
from dashboards.figures.theme import BASIS_WORDS
from dashboards.page import card, figure_cards, grid, page_html
from dashboards.report_parts import ABSENT, number
from simulator.metrics.files import write_text_atomically

_SCORES = ("metric", "group", "n", "of", "mape", "median_ape", "p90_ape", "bias", "coverage", "coverage90")
_SETTINGS = ("model", "chip", "framework", "tensor_parallel", "max_concurrency", "request_rate", "input_tokens",
             "output_tokens")  # fmt: skip


def write_requests_report(document: dict[str, Any], path: Path) -> Path:
    """Write the page of a replay document to ``path`` and return it.

    Raises:
        OSError: the file cannot be written.
    """
    write_text_atomically(path, requests_html(document))
    return path


def requests_html(document: dict[str, Any]) -> str:
    """The whole page as text."""
    found = {metric: serving_parity_data(document, metric) for metric in METRIC_WORDS}
    figures = {f"figure-{m}": serving_parity_figure(data) for m, data in found.items() if data is not None}
    plots = list(figure_cards(figures).values())
    rows = [grid(*plots[i : i + 2]) for i in range(0, len(plots), 2)]
    sections = [
        _header(document),
        *rows,
        card("Errors by metric and configuration (%)", scores_table(document["scores"])),
        card("Runs furthest off", runs_table(document["worst"], worst=True)),
        card("Every run: measured, and error of the prediction (%)", runs_table(document["runs"])),
        card(
            "Not simulated", simple_table(("reason", "runs"), [[r, f"{n:,}"] for r, n in document["skipped"].items()])
        ),
        f"<footer>Forerun {escape(str(document['version']))} · served runs beside simulated ones · "
        f"seed {document['seed']}</footer>",
    ]
    return page_html("Replay of serving runs · Forerun", "\n".join(part for part in sections if part), figures)


def _header(document: dict[str, Any]) -> str:
    overall = {score["metric"]: score for score in document["scores"] if score["group"] == "all"}
    parts = [
        f"{METRIC_WORDS[metric][0].lower().replace('ttft', 'TTFT').replace('tpot', 'TPOT').replace('itl', 'ITL')} "
        f"{overall[metric]['mape']:.1f} %"
        for metric in METRIC_WORDS
        if metric in overall
    ]
    runs = f"{len(document['runs']):,} runs" + (" of configurations held out from any fit" if document["split"] else "")
    basis = document["basis"] or "datasheet"
    return (
        f"<header><h1>{escape(', '.join(Path(source).name for source in document['sources']) or 'Serving runs')}</h1>"
        f"<p>Measured serving runs beside simulated ones · {escape(BASIS_WORDS.get(basis, basis))}</p>"
        f'<p class="lead">{runs}; mean absolute error: {", ".join(parts)}.</p></header>'
    )


def scores_table(scores: Sequence[dict[str, Any]]) -> str:
    """Every score as a table."""
    return simple_table(_SCORES, [[_cell(score[key]) for key in _SCORES] for score in scores])


def runs_table(runs: Sequence[dict[str, Any]], worst: bool = False) -> str:
    """Runs with their load, and measured value and error of every metric; worst ones name the metric first."""
    metrics = [metric for metric in METRIC_WORDS if any(metric in run["error"] for run in runs)]
    columns = ["run", "worst metric"] if worst else ["run"]
    columns += [name.replace("_", " ") for name in _SETTINGS]
    for metric in metrics:
        columns += [METRIC_WORDS[metric][0], "%"]
    rows = []
    for run in runs:
        cells = [run["name"], METRIC_WORDS[run["metric"]][0]] if worst else [run["name"]]
        cells += [_cell(run[name]) for name in _SETTINGS]
        for metric in metrics:
            error = run["error"].get(metric)
            cells += [_cell(run["measured"].get(metric)), ABSENT if error is None else f"{error:+.1f}"]
        rows.append(cells)
    return simple_table(tuple(columns), rows)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return ABSENT
    if isinstance(value, list):
        return "-".join(str(part) for part in value)
    return value if isinstance(value, str) else number(value, 4)


def simple_table(columns: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    """A plain HTML table; empty without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
