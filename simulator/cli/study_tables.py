"""Documents of studies as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from simulator.cli.tables import ABSENT, number, titled_table
from simulator.studies.paired import load_words, metric_words
from simulator.studies.study_file import settings_name

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Document = dict[str, Any]

SHOWN = (
    "output_throughput",
    "request_goodput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_e2el_ms",
)
TORNADO_ROWS = 8


def compare_tables(document: Document) -> list[RenderableType]:
    """Everything ``forerun compare`` prints."""
    count = document["replications"]
    heading = Text(f"{len(document['variants'])} variants, baseline {document['baseline']}", style="bold")
    heading.append(
        f"  basis: {document['basis']} · {count} paired runs from seed {document['seed']}", style="dim not bold"
    )
    parts: list[RenderableType] = [heading, speedup_table(document), values_table(document)]
    if document["sensitivity"]:
        parts.append(sensitivity_table(document))
    if document["crossover"] is not None:
        parts.append(crossover_table(document))
    parts.append(Text(document["conclusion"], style="bold"))
    if document["notes"]:
        parts.append(Text("\n".join(f"note: {note}" for note in document["notes"]), style="dim"))
    return parts


def speedup_table(document: Document) -> Table:
    """Speedups over the baseline with their intervals; above 1 is better."""
    names = [variant["name"] for variant in document["variants"][1:]]
    table = titled_table(f"Speedup over {escape(document['baseline'])} (above 1 is better)", "", *map(escape, names))
    wanted = dict.fromkeys([document["metric"], *SHOWN, "usd_per_million_output_tokens", "energy_joules"])
    for metric in wanted:
        cells = [variant["speedup"][metric] for variant in document["variants"][1:]]
        if any(cell is not None for cell in cells):
            table.add_row(metric_words(metric), *map(ratio_cell, cells))
    return table


def ratio_cell(cell: Document | None) -> str:
    """A ratio with its interval, coloured where it is sure."""
    if cell is None:
        return ABSENT
    text = f"{cell['ratio']:.3f}"
    if cell["low"] is None:
        return text
    style = "green" if cell["low"] > 1 else "red" if cell["high"] < 1 else ""
    shown = f"[{style}]{text}[/{style}]" if style else text
    return f"{shown} [dim]{cell['low']:.3f}..{cell['high']:.3f}[/dim]"


def values_table(document: Document) -> Table:
    """The metrics themselves."""
    table = titled_table("Means", "", *(escape(variant["name"]) for variant in document["variants"]))
    for key in SHOWN:
        cells = [variant["summary"].get(key) for variant in document["variants"]]
        if any(cell is not None for cell in cells):
            table.add_row(key, *map(number, cells))
    return table


def sensitivity_table(document: Document) -> Table:
    """The widest swings of the answer over the assumed parameters."""
    names = [variant["name"] for variant in document["variants"][1:]]
    title = f"Speedup of {metric_words(document['metric'])} at the ends of assumed parameters"
    table = titled_table(title, "", "range", *map(escape, names))
    for row in document["sensitivity"][:TORNADO_ROWS]:
        cells = []
        for name in names:
            ends = row["ratios"].get(name, {})
            low, high = ends.get("at_low"), ends.get("at_high")
            text = ABSENT if low is None or high is None else f"{low:.3f} .. {high:.3f}"
            cells.append(f"[red]{text} turns over[/red]" if name in row["flips"] else text)
        table.add_row(row["parameter"], range_words(row), *cells)
    return table


def range_words(row: Document) -> str:
    """The range of an assumed parameter, e.g. ``x0.5 .. x2``."""
    if row["unit"] == "factor":
        return f"x{row['low']:g} .. x{row['high']:g}"
    return f"{row['low']:g} .. {row['high']:g} {row['unit']}"


def crossover_table(document: Document) -> Table:
    """Where variants start or stop to pay."""
    table = titled_table("Crossover", "variant", "pays", "at", "interval")
    path = document["crossover"]["path"]
    for row in document["crossover"]["all"]:
        low, high = number(row["low"], 3), number(row["high"], 3)
        table.add_row(escape(row["variant"]), row["better"], load_words(path, row["value"]), f"{low} .. {high}")
    return table


SWEEP_METRICS = {
    "output_throughput": "tok/s",
    "mean_ttft_ms": "TTFT ms",
    "p99_ttft_ms": "p99 TTFT",
    "mean_tpot_ms": "TPOT ms",
    "p99_tpot_ms": "p99 TPOT",
    "mean_e2el_ms": "E2E ms",
}
SWEEP_ROWS = 40
ERROR_ROWS = 5


def sweep_tables(document: Document) -> list[RenderableType]:
    """Everything ``forerun sweep`` prints."""
    counts = document["counts"]
    heading = Text(f"{counts['done']} points done, {counts['failed']} failed", style="bold")
    heading.append(f"  basis: {document['basis']} · seed {document['seed']}", style="dim not bold")
    points = document["points"]
    paths = list(dict.fromkeys(path for point in points for path in point["set"]))
    named = any(point["name"] != settings_name(point["set"]) for point in points) or not paths
    columns = [*(["point"] if named else []), *(path.rsplit(".", 1)[-1] for path in paths)]
    table = titled_table("Points", *map(escape, columns), *SWEEP_METRICS.values())
    for point in points[:SWEEP_ROWS]:
        own = [escape(setting_words(point["set"], path)) for path in paths]
        head = [escape(point["name"]), *own] if named else own
        if point["status"] == "failed":
            table.add_row(*head, "[red]failed[/red]")
        else:
            table.add_row(*head, *(number(point["summary"].get(metric)) for metric in SWEEP_METRICS))
    parts: list[RenderableType] = [heading, table]
    reasons = Counter(point["error"] for point in points if point["status"] == "failed")
    if reasons:
        lines = [f"failed: {count} x {reason}" for reason, count in reasons.most_common(ERROR_ROWS)]
        parts.append(Text("\n".join(lines), style="red"))
    notes = list(document["notes"])
    if len(points) > SWEEP_ROWS:
        notes.insert(0, f"{len(points) - SWEEP_ROWS:,} more points: --json FILE has them all")
    if document.get("conclusion"):
        parts.append(Text(document["conclusion"], style="bold"))
    if notes:
        parts.append(Text("\n".join(f"note: {note}" for note in notes), style="dim"))
    return parts


def setting_words(settings: Document, path: str) -> str:
    """The value of one field in a point, short; ``-`` where the point does not set it."""
    return settings_name({path: settings[path]}).partition("=")[2] if path in settings else ABSENT
