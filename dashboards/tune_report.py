"""The report of a tuning: from its document to tables, figure and the sentence."""

from __future__ import annotations

from typing import Any

from dashboards.figures.studies import tuning_data, tuning_figure
from dashboards.study_report import StudyFigure, StudyReport
from simulator.tables import ABSENT, Table

Document = dict[str, Any]


def tune_report(document: Document, command: str) -> StudyReport:
    """What :mod:`dashboards.study_report` writes, from a ``tune`` document.

    Args:
        document: of ``simulator.studies.tune.document``.
        command: that makes the tuning again.
    """
    scenario = document["scenario"]
    model = scenario["model"] if isinstance(scenario["model"], str) else "inline model"
    data = tuning_data(document)
    return StudyReport(
        title=f"Speculation tuned: {document['method']} on {model}",
        conclusion=document["conclusion"],
        tables=[_table(document), _mean(document), _break_even(document)],
        figures=[StudyFigure("tuning", tuning_figure(data), map_text(document))],
        scenario=scenario,
        seed=document["seed"],
        version=document["version"],
        basis=document["basis"],
        command=command,
        notes=document["notes"],
        commands={document["engine"]: document["emit"]} if document["emit"] else {},
    )


def interval(cell: Document) -> str:
    """A speed-up with its ends."""
    return f"{cell['speedup']:.2f} ({cell['low']:.2f} to {cell['high']:.2f})"


def span(ends: list[int]) -> str:
    """A range of whole numbers."""
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"


def map_text(document: Document) -> str:
    """What to draft as a grid of text, contexts down and batches across."""
    rows: dict[int, list[Document]] = {}
    for cell in document["table"]:
        rows.setdefault(cell["judged_at"]["context"], []).append(cell)
    header = [f"{cell['judged_at']['batch']:,}" for cell in next(iter(rows.values()))]
    lines = [f"{'context':>9} | " + " ".join(f"{text:>10}" for text in header)]
    for context, cells in rows.items():
        words = [f"{cell['draft'].replace('tree of ', 'T')} {cell['if_on']['speedup']:.2f}" for cell in cells]
        lines.append(f"{context:>9,} | " + " ".join(f"{text:>10}" for text in words))
    return "\n".join(lines)


def _table(document: Document) -> Table:
    rows = [
        [
            span(cell["batch"]),
            span(cell["context"]),
            cell["draft"] + ("" if cell["fits_kv_cache"] else " *"),
            interval(cell),
            interval(cell["if_on"]),
        ]
        for cell in document["table"]
    ]
    columns = ["batch", "context", "draft", "speed-up", "best if on"]
    return Table("What to draft", columns, rows)


def _mean(document: Document) -> Table:
    rows = [
        [span(cell["batch"]), cell["draft"], interval(cell), interval(cell["if_on"])]
        for cell in document["at_mean_context"]
    ]
    context = document["crossover"]["context"]
    return Table(f"At the mean context ({context:,} tokens)", ["batch", "draft", "speed-up", "best if on"], rows)


def _break_even(document: Document) -> Table:
    rows = [
        [
            f"{one['batch']:,}",
            str(one["num_speculative_tokens"]),
            f"{one['acceptance_length']:.2f} ({one['low']:.2f} to {one['high']:.2f})",
            ABSENT if one["alpha"] is None else f"{one['alpha']:.2f}",
            f"{one['expected_acceptance_length']:.2f}",
        ]
        for one in document["break_even"]
    ]
    columns = ["batch", "draft tokens", "acceptance length to break even", "as equal rates", "expected"]
    return Table("Break-even acceptance, at the mean context", columns, rows)
