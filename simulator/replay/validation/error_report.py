"""Errors on record as tables: by what was predicted, and each comparison by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from simulator.replay.replay_tables import METRIC_WORDS
from simulator.replay.validation.errors import SECTIONS, ErrorRow
from simulator.tables import Cell, Table, Value

OTHER_WORDS = {
    ("speculation", "speedup"): "Speed-up of speculation",
    ("speculation", "acceptance_length"): "Acceptance length",
    ("attention", "speedup"): "Attention-level speculation: speed-up",
    ("attention", "overhead_reduction"): "Attention-level speculation: overhead",
}
SAMPLE = "kernels-cpu, "
"""How names of the shipped sample's comparisons begin."""
SHOWN_ROWS = 12


def predicted_words(row: ErrorRow) -> str:
    """Predicted quantity of a comparison: a metric, or the operation of kernels."""
    if row.section == "kernels":
        op = row.name.removeprefix(SAMPLE).partition(" ")[0].rstrip(",").replace("_", " ")
        return f"Kernels: {'a chip by its limits alone' if row.fitted == 'nothing' else op}"
    if row.metric in METRIC_WORDS:
        return METRIC_WORDS[row.metric][0]
    return OTHER_WORDS.get((row.section, row.metric), f"{row.section}: {row.metric}")


def by_predicted(rows: Sequence[ErrorRow]) -> dict[str, list[ErrorRow]]:
    """Comparisons by what was predicted, the least error first; what users feel first, kernels last."""
    order = {section: place for place, section in enumerate((*SECTIONS[1:], SECTIONS[0]))}
    groups: dict[str, list[ErrorRow]] = {}
    for row in sorted(rows, key=lambda row: (order[row.section], row.metric, row.mape)):
        groups.setdefault(predicted_words(row), []).append(row)
    return groups


def summary_table(rows: Sequence[ErrorRow]) -> Table:
    """A row for each kind of prediction, with its worst comparison by name and what that rests on."""
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
    """One table per section that has rows, of every comparison."""
    parts = []
    for section in SECTIONS:
        lines: list[list[Value]] = []
        for row in (row for row in rows if row.section == section):
            figures = (f"{row.mape:.1f}", _number(row.median_ape, ".1f"), _number(row.bias, "+.1f"))
            lines.append([row.name, row.metric, row.n, *figures, row.basis or ""])
        if lines:
            columns = ("comparison", "predicted", "n", "MAPE", "median", "bias", "basis")
            title = f"{section}: errors in percent of the measurement"
            parts.append(Table(title, columns, lines, shown=SHOWN_ROWS, name=section))
    return parts


def errors_sentence(rows: Sequence[ErrorRow]) -> str:
    """The errors in one sentence."""
    errors = sorted(row.mape for row in rows)
    half, most = errors[len(errors) // 2], errors[len(errors) * 9 // 10]
    few = "" if len(errors) < 10 else f", one in ten by more than {most:.0f} %"
    if len(errors) == 1:
        return f"One comparison with measurements, off by {half:.1f} % on average."
    return f"Of {len(errors)} comparisons with measurements half are off by {half:.1f} % or less on average{few}."


def spread(rows: Sequence[ErrorRow]) -> Mapping[str, tuple[float, ErrorRow]]:
    """Median error and worst comparison of each kind of prediction."""
    return {words: (median(row.mape for row in group), group[-1]) for words, group in by_predicted(rows).items()}


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
