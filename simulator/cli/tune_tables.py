"""A tuning as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from simulator.cli.tables import ABSENT, titled_table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Document = dict[str, Any]


def tune_tables(document: Document) -> list[RenderableType]:
    """Everything ``forerun tune`` prints before the flags."""
    heading = Text(f"What to draft with {document['method']}", style="bold")
    heading.append(f"  basis: {document['basis']} · seed {document['seed']}", style="dim not bold")
    parts: list[RenderableType] = [heading, grid_table(document), mean_table(document)]
    if document["notes"]:
        parts.append(Text("\n".join(f"note: {note}" for note in document["notes"]), style="dim"))
    parts.append(Text(document["conclusion"], style="bold"))
    return parts


def grid_table(document: Document) -> Table:
    """Batches down, contexts across."""
    rows: dict[str, list[Document]] = {}
    for cell in document["table"]:
        rows.setdefault(_span(cell["batch"]), []).append(cell)
    columns = [f"context {_span(cell['context'])}" for cell in next(iter(rows.values()))]
    table = titled_table("Draft tokens and speed-up of decoding (90 % interval)", "batch", *columns)
    for batch, cells in rows.items():
        table.add_row(batch, *map(_cell, cells))
    return table


def mean_table(document: Document) -> Table:
    """At the mean request's context: what pays, and the acceptance length at which it stops paying."""
    context = document["crossover"]["context"]
    columns = ("draft", "speed-up", "breaks even at", "as alpha", "expected")
    table = titled_table(f"At the mean context of {context:,} tokens: acceptance length", "batch", *columns)
    for cell, even in zip(document["at_mean_context"], document["break_even"], strict=True):
        table.add_row(
            _span(cell["batch"]),
            cell["draft"],
            _interval(cell["if_on"]),
            f"{even['acceptance_length']:.2f} ({even['low']:.2f} to {even['high']:.2f})",
            ABSENT if even["alpha"] is None else f"{even['alpha']:.2f}",
            f"{even['expected_acceptance_length']:.2f}",
        )
    return table


def _cell(cell: Document) -> Text:
    mark = "" if cell["fits_kv_cache"] else "*"
    return Text(f"{cell['draft']}{mark}  {_interval(cell['if_on'])}", style="" if cell["draft"] != "off" else "dim")


def _interval(cell: Document) -> str:
    return f"{cell['speedup']:.2f} ({cell['low']:.2f}-{cell['high']:.2f})"


def _span(ends: list[int]) -> str:
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"
