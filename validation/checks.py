"""Pages of checks: errors on record, and what a machine's own engine did beside its prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go

from dashboards.figures.replays import errors_figure
from dashboards.page import Tile, figure_cards, footer, header, page_html, table_card, tiles_html
from dashboards.recorded_errors import ErrorRow, error_tables, error_tiles, errors_sentence, summary_table
from forerun.document import Json, json_text
from forerun.tables import Table
from forerun.version import VERSION
from simulator.running.metrics.files import StagedFiles
from validation.record import errors_document


def write_errors(folder: Path, rows: Sequence[ErrorRow]) -> None:
    """Write ``errors.json`` and ``report.html`` of comparisons into ``folder``, both or neither."""
    page = check_html(
        "How far to trust it",
        "Predictions beside measurements",
        errors_sentence(rows),
        (summary_table(rows), *error_tables(rows)),
        {"errors": errors_figure(rows)},
        error_tiles(rows),
    )
    write_check(folder, "errors.json", errors_document(rows, VERSION), page)


def write_check(folder: Path, name: str, document: Json, page: str) -> None:
    """Write the document and its page into ``folder``, both or neither."""
    with StagedFiles(folder) as staged:
        staged.add_text(name, json_text(document))
        staged.add_text("report.html", page)


def check_html(
    title: str,
    says: str,
    lead: str,
    tables: Iterable[Table],
    figures: Mapping[str, go.Figure] | None = None,
    tiles: Sequence[Tile] = (),
) -> str:
    """The page of a check as text."""
    drawn = {f"figure-{name}": figure for name, figure in (figures or {}).items()}
    sections = [
        header(title, says, lead),
        tiles_html(tiles) if tiles else "",
        *figure_cards(drawn).values(),
        *map(table_card, tables),
        footer(f"Forerun {VERSION}", "predictions beside measurements"),
    ]
    return page_html(title, sections, drawn)
