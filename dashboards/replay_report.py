"""One self-contained HTML page about a replay of measured kernels."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from dashboards.figures.parity import error_data, error_figure, parity_data, parity_figure
from dashboards.figures.theme import BASIS_WORDS
from dashboards.page import card, figure_cards, grid, page_html
from dashboards.report_parts import ABSENT, number
from simulator.metrics.files import write_text_atomically
from simulator.replay import ReplayReport, report_document

_SCORE_COLUMNS = ("op", "dtype", "regime", "n", "mape", "median_ape", "p90_ape", "bias", "coverage90")
_HIDDEN = ("library", "cache", "device", "source", "name")


def write_replay_report(report: ReplayReport, path: Path) -> Path:
    """Write the page of a replay to ``path`` and return it.

    Raises:
        OSError: the file cannot be written.
    """
    write_text_atomically(path, replay_html(report))
    return path


def replay_html(report: ReplayReport) -> str:
    """The whole page as text."""
    document = report_document(report)
    figures = {
        "figure-parity": parity_figure(parity_data(report)),
        "figure-errors": error_figure(error_data(report)),
    }
    plots = figure_cards(figures)
    sections = [
        _header(document),
        grid(plots["figure-parity"], plots["figure-errors"]),
        card("Errors by operation, format and regime (%)", scores_table(document)),
        card("Rows that are not scored", skipped_table(document)),
        card("Worst rows", worst_table(document)),
        f"<footer>Forerun {escape(str(document['version']))} · predictions beside measurements</footer>",
    ]
    body = "\n".join(section for section in sections if section)
    return page_html(f"Replay on {document['chip']} · Forerun", body, figures)


def _header(document: dict[str, Any]) -> str:
    overall, basis = document["overall"], document["basis"]
    split = document["split"]
    rows = f"{overall['n']:,} kernels" + (" held out from any fit" if split else "")
    layer = "physics with the learned residual" if document["residual"] else "physics alone"
    return (
        f"<header><h1>{escape(document['chip'])}, {escape(document['library'])} kernels</h1>"
        f"<p>Measured kernels beside predicted ones · {escape(BASIS_WORDS.get(basis, basis))}</p>"
        f'<p class="lead">{rows}: mean error {overall["mape"]:.1f} %, median {overall["median_ape"]:.1f} %, '
        f"bias {overall['bias']:+.1f} % ({layer}).</p></header>"
    )


def scores_table(document: dict[str, Any]) -> str:
    """Every group's figures."""
    rows = [[_cell(group[key]) for key in _SCORE_COLUMNS] for group in document["groups"]]
    return _table(_SCORE_COLUMNS, rows)


def skipped_table(document: dict[str, Any]) -> str:
    """Why rows are missing; empty when none is."""
    return _table(("reason", "rows"), [[reason, f"{rows:,}"] for reason, rows in document["skipped"].items()])


def worst_table(document: dict[str, Any]) -> str:
    """The rows that are furthest off."""
    rows = []
    for row in document["worst"]:
        head = ("op", "dtype", "measured_s", "predicted_s", "ape", "basis", "regime")
        shape = " ".join(f"{key}={value}" for key, value in row.items() if key not in (*head, *_HIDDEN))
        times = [f"{row[key] * 1e6:,.4g}" for key in ("measured_s", "predicted_s")]
        rows.append([row["op"], row["dtype"], shape, *times, f"{row['ape']:.1f}", row["regime"], row["basis"]])
    columns = ("op", "dtype", "shape", "measured (us)", "predicted (us)", "error (%)", "regime", "basis")
    return _table(columns, rows)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return ABSENT
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else number(value, 3)


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
