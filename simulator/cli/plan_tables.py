"""A capacity plan as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from simulator.cli.tables import ABSENT, number, titled_table
from simulator.metrics.usage import main_bottleneck
from simulator.studies.plan.objectives import latency_words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Document = dict[str, Any]

SHOWN = 12
"""Layouts that fail, are too dear or are refused, of each kind."""
WORDS = {
    "misses": "Simulated, and misses the SLO",
    "pruned": "Cannot hold it, by the analytic model",
    "not simulated": "Not simulated",
    "refused": "Refused",
}


def plan_tables(document: Document) -> list[RenderableType]:
    """Everything ``forerun plan`` prints."""
    what = "highest rate" if document["request_rate"] is None else f"{document['request_rate']:.4g} req/s"
    heading = Text(f"Plan for {what}, {len(document['candidates'])} candidates", style="bold")
    heading.append(
        f"  basis: {document['basis'] or ABSENT} · seed {document['seed']} · {document['runs']} runs",
        style="dim not bold",
    )
    parts: list[RenderableType] = [heading]
    holding = [row for row in document["candidates"] if row["status"] == "meets"]
    if holding:
        parts.append(holding_table(document, holding))
    for status, words in WORDS.items():
        rows = [row for row in document["candidates"] if row["status"] == status]
        if rows:
            parts.append(others_table(words, rows))
    best = document["best"]
    if best is not None:
        parts.append(Text("\n".join(f"{engine}: {flags}" for engine, flags in best["flags"].items())))
    parts.append(Text(document["conclusion"], style="bold"))
    if document["notes"]:
        parts.append(Text("\n".join(f"note: {note}" for note in document["notes"]), style="dim"))
    return parts


def holding_table(document: Document, rows: list[Document]) -> Table:
    """Layouts that hold, best first; a star marks the Pareto front."""
    columns = ("chips", "$/h", "$/Mtok", "power", "max req/s", "binding", "sure", "bound")
    table = titled_table("Holds the SLO, best first (* on the Pareto front)", "", *columns)
    for index, column in enumerate(table.columns):
        column.no_wrap = index > 0
    front = set(document["pareto"])
    for row in rows:
        table.add_row(
            escape(row["layout"]) + (" *" if row["layout"] in front else ""),
            number(row["chips"]),
            number(row["usd_per_hour"]),
            number(row["usd_per_million_output_tokens"], 3),
            ABSENT if row["power_w"] is None else f"{row['power_w']:,.0f} W",
            (">= " if row["max_rate_is_at_least"] else "")
            + number(row["max_rate"], 3)
            + ("" if row["headroom"] is None else f" ({row['headroom']:+.0%})"),
            binding_words(row),
            ABSENT if row["confidence"] is None else f"{row['confidence']['share']:.0%}",
            main_bottleneck(row["bottleneck"]) or ABSENT,
        )
    return table


def others_table(title: str, rows: list[Document]) -> Table:
    """Layouts that do not hold, and why."""
    table = titled_table(title, "", "", left=True)
    named: dict[str, list[str]] = {}
    for row in rows:
        named.setdefault(row["reason"] or ABSENT, []).append(row["layout"])
    for reason, names in list(named.items())[:SHOWN]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        table.add_row(escape(names[0]) + more, escape(reason))
    if len(named) > SHOWN:
        table.add_row(f"and {len(named) - SHOWN} other reasons", "all of them are in the JSON")
    return table


def binding_words(row: Document) -> str:
    """The limit that strains most, with the value reached."""
    key = row["binding"]
    return ABSENT if key is None else latency_words(key, row["values"][key])
