"""Replays and calibrations as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from simulator.cli.tables import ABSENT, duration, number, pairs_table, titled_table

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_WORST = 5
_FIGURES = ("mape", "median_ape", "p90_ape", "bias", "coverage90")


def replay_tables(document: dict[str, Any]) -> list[RenderableType]:
    """Everything ``forerun replay kernels`` prints."""
    overall = document["overall"]
    title = Text(f"{document['chip']}, {document['library']} kernels", style="bold")
    layer = "with residual" if document["residual"] else "physics alone"
    held_out = " held-out" if document["split"] else ""
    title.append(f"  {overall['n']:,}{held_out} rows · {layer} · basis: {document['basis']}", style="dim not bold")
    table = titled_table("Errors (%)", "op", "dtype", "regime", "rows", "MAPE", "median", "p90", "bias", "coverage 90")
    for group in (*document["groups"], overall):
        whole = group["regime"] == "all"
        table.add_row(
            group["op"] if whole else "",
            group["dtype"] if whole else "",
            group["regime"],
            f"{group['n']:,}",
            *(number(group[key], 3) if group[key] is not None else ABSENT for key in _FIGURES),
            style=None if whole else "dim",
        )
    parts: list[RenderableType] = [title, table]
    untold = {op: counts["not told"] for op, counts in document["cache"].items() if "not told" in counts}
    if untold:
        rows_of = ", ".join(f"{count:,} rows of {op}" for op, count in untold.items())
        words = f"Priced cold: {rows_of} do not say whether their operands were on the chip (cache: warm if repeated)"
        parts.append(Text(words))
    if document["skipped"]:
        rows = [(reason, f"{count:,}") for reason, count in document["skipped"].items()]
        parts.append(pairs_table("Not scored", rows))
    worst = titled_table("Worst rows", "op", "shape", "measured", "predicted", "error %", "basis", left=True)
    for row in document["worst"][:SHOWN_WORST]:
        hidden = (
            "op",
            "measured_s",
            "predicted_s",
            "ape",
            "regime",
            "basis",
            "library",
            "source",
            "device",
            "cache",
            "name",
        )
        shape = " ".join(f"{key}={value}" for key, value in row.items() if key not in hidden)
        worst.add_row(
            row["op"],
            shape,
            duration(row["measured_s"]),
            duration(row["predicted_s"]),
            f"{row['ape']:.0f}",
            row["basis"],
        )
    parts.append(worst)
    return parts


def calibration_tables(document: dict[str, Any]) -> list[RenderableType]:
    """Everything ``forerun calibrate`` prints."""
    title = Text(f"{document['chip']}, library {document['library']}", style="bold")
    title.append(f"  written: {', '.join(document['files'])}", style="dim not bold")
    columns = ("family", "dtype", "rows", "held-out", "MAPE", "median", "coverage 90", "with residual")
    table = titled_table("Errors on rows the fit has not seen (%)", *columns)
    for one in document["families"]:
        figures = [one[key] for key in ("held_out_mape", "held_out_median_ape", "coverage90", "residual_mape")]
        counts = (f"{one['rows']:,}", f"{one['held_out_rows']:,}")
        table.add_row(one["family"], one["dtype"], *counts, *(number(value, 3) for value in figures))
    parts: list[RenderableType] = [title, table]
    if document["skipped"]:
        parts.append(pairs_table("Not used", [(reason, f"{rows:,}") for reason, rows in document["skipped"].items()]))
    return parts
