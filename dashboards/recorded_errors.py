"""Recorded prediction errors: one row per comparison, their JSON file, and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import median

from dashboards.page import Tile
from forerun.errors import ForerunError
from forerun.tables import Cell, Table, Value
from simulator.studies.paired import metric_words

SECTIONS = ("kernels", "requests", "speculation", "attention")
OTHER_WORDS = {
    ("requests", "step_ms"): "Engine step",
    ("requests", "avg_power_w"): "Mean power",
    ("speculation", "speedup"): "Speed-up of speculation",
    ("speculation", "acceptance_length"): "Acceptance length",
    ("attention", "speedup"): "Attention-level speculation: speed-up",
    ("attention", "overhead_reduction"): "Attention-level speculation: overhead",
}
SAMPLE = "kernels-cpu, "
"""Beginning of the names of the shipped sample's comparisons."""
SHOWN_ROWS = 12


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Errors of one comparison of predictions with measurements, in percent of the measurement."""

    section: str
    """One of ``SECTIONS``."""
    name: str
    """Name of the comparison, such as ``gemm bf16, h100-sxm, vllm``; unique in its section."""
    metric: str
    """Predicted quantity: ``seconds``, ``mean_tpot_ms``, ``speedup`` ..."""
    n: int
    mape: float
    median_ape: float | None
    bias: float | None
    basis: str | None
    fitted: str
    """Fitted constants of the prediction, and the data that they were fitted on."""
    ships: bool
    """True if the comparison can be recomputed from the package alone."""
    date: str = ""
    """Date on which the error was computed, such as 2026-11-21."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the comparison: two rows with equal keys are the same comparison."""
        return (self.section, self.name, self.metric)

    def of_part(self, section: str, part: str) -> bool:
        """True if the row belongs to a part of a section: its name is ``part`` or begins with it."""
        return self.section == section and (self.name == part or self.name.startswith(f"{part}, "))


def read_errors(path: Path) -> list[ErrorRow]:
    """The errors in a file that ``forerun validate`` wrote."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        rows = [ErrorRow(**row) for row in document["errors"]]
    except FileNotFoundError:
        raise ForerunError(f"{path}: no such file") from None
    except OSError as error:
        raise ForerunError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ForerunError(f"{path}: no errors of forerun validate in it (forerun validate all --json FILE)") from None
    for row in rows:
        if row.section not in SECTIONS or not isinstance(row.mape, int | float) or not isfinite(row.mape):
            raise ForerunError(f"{path}: {row.section}: {row.name}: mape must be a number (got {row.mape!r})")
    return rows


def predicted_words(row: ErrorRow) -> str:
    """Predicted quantity of a comparison: a metric, or the operation of kernels."""
    if row.section == "kernels":
        op = row.name.removeprefix(SAMPLE).partition(" ")[0].rstrip(",").replace("_", " ")
        return f"Kernels: {'a chip by its limits alone' if row.fitted == 'nothing' else op}"
    words = OTHER_WORDS.get((row.section, row.metric)) or metric_words(row.metric).replace("end-to-end", "E2E")
    return words[0].upper() + words[1:]


def by_predicted(rows: Sequence[ErrorRow]) -> dict[str, list[ErrorRow]]:
    """Comparisons by predicted quantity, kernels last; ascending error within a quantity."""
    order = {section: place for place, section in enumerate((*SECTIONS[1:], SECTIONS[0]))}
    groups: dict[str, list[ErrorRow]] = {}
    for row in sorted(rows, key=lambda row: (order[row.section], row.metric, row.mape)):
        groups.setdefault(predicted_words(row), []).append(row)
    return groups


def summary_table(rows: Sequence[ErrorRow]) -> Table:
    """One row per kind of prediction, with the name and evidence level of its worst comparison."""
    lines: list[list[Value]] = []
    for words, group in by_predicted(rows).items():
        worst = group[-1]
        errors = [median(row.mape for row in group), group[0].mape, worst.mape]
        why = f"{worst.name} ({worst.basis or 'measured'}, {worst.n:,} measurements)"
        measured = sum(row.n for row in group)
        lines.append([words, len(group), measured, *(Cell(f"{one:.1f}", value=one) for one in errors), why])
    columns = ("predicted", "comparisons", "measurements", "half within (%)", "best (%)", "worst (%)", "the worst one")
    return Table("Mean absolute errors by what was predicted", columns, lines, name="summary")


def error_tables(rows: Sequence[ErrorRow]) -> list[Table]:
    """Tables of all comparisons, one table per section that has rows."""
    parts = []
    for section in SECTIONS:
        lines: list[list[Value]] = []
        for row in (row for row in rows if row.section == section):
            figures = (f"{row.mape:.1f}", _number(row.median_ape, ".1f"), _number(row.bias, "+.1f"))
            lines.append([row.name, predicted_words(row), row.n, *figures, row.basis or ""])
        if lines:
            columns = ("comparison", "predicted", "n", "MAPE", "median", "bias", "basis")
            title = f"{section.capitalize()}: errors in percent of the measurement"
            parts.append(Table(title, columns, lines, shown=SHOWN_ROWS, name=section))
    return parts


def errors_sentence(rows: Sequence[ErrorRow]) -> str:
    errors = sorted(row.mape for row in rows)
    half, most = errors[len(errors) // 2], errors[len(errors) * 9 // 10]
    few = "" if len(errors) < 10 else f", one in ten by more than {most:.0f} %"
    if len(errors) == 1:
        return f"One comparison with measurements, off by {half:.1f} % on average."
    return f"Of {len(errors)} comparisons with measurements half are off by {half:.1f} % or less on average{few}."


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


TILES = ("Mean TTFT", "Mean TPOT", "Mean E2E latency", "Output throughput", "Speed-up of speculation", "Kernels: gemm")
"""Comparisons shown as tiles, in this order."""


def error_tiles(rows: Sequence[ErrorRow]) -> list[Tile]:
    """Median error of the metrics that matter most to users, if recorded."""
    errors = {words: (median(row.mape for row in group), group[-1].mape) for words, group in by_predicted(rows).items()}
    return [
        Tile(words, f"{errors[words][0]:.1f}", "%", f"half within; worst {errors[words][1]:.0f} %")
        for words in TILES
        if words in errors
    ]
