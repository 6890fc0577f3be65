"""The report of a sweep: from its document to table, figure and sentence."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dashboards.figures.studies import sweep_data, sweep_figure
from dashboards.study_report import StudyFigure, StudyReport, text_intervals
from simulator.studies.paired import HIGHER_IS_BETTER, metric_words
from simulator.studies.sweep.study import point_value
from simulator.tables import Table, number

SHOWN = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms")
MOST_ROWS = 200
TEXT_ROWS = 20


def sweep_report(document: dict[str, Any], command: str) -> StudyReport:
    """What :mod:`dashboards.study_report` writes, from a ``sweep`` document with ``metric`` and ``conclusion``.

    Args:
        document: of ``simulator.studies.SweepResult``.
        command: that runs it again.
    """
    metric, points = document["metric"], document["points"]
    ranked = sorted(points, key=lambda point: _rank(point, metric))
    data = sweep_data(document, metric)
    figures = [StudyFigure("points", sweep_figure(data), _text(ranked, metric))] if data and data.panels else []
    hardware = document["scenario"]["hardware"]["chip"]
    model = document["scenario"]["model"] if isinstance(document["scenario"]["model"], str) else "inline model"
    left_out = len(points) - MOST_ROWS
    notes = [*document["notes"], *([f"{left_out:,} more points are in sweep.json"] if left_out > 0 else [])]
    return StudyReport(
        title=f"{model} on {hardware}: sweep of {len(points)} points",
        conclusion=document["conclusion"],
        tables=[table for table in (_table(ranked[:MOST_ROWS], metric), _failures(points)) if table.rows],
        figures=figures,
        scenario=document["scenario"],
        seed=document["seed"],
        version=document["version"],
        basis=document["basis"] or "datasheet",
        command=command,
        notes=notes,
        badges=[f"{document['design']} design", f"{document['replications']} runs per point"],
    )


def _rank(point: dict[str, Any], metric: str) -> tuple[bool, float]:
    value = point_value(point, metric)
    return value is None, 0.0 if value is None else -value if HIGHER_IS_BETTER[metric] else value


def _table(points: list[dict[str, Any]], metric: str) -> Table:
    columns = list(dict.fromkeys([metric, *SHOWN]))
    rows = []
    for point in points:
        if point["status"] != "done":
            continue
        cells = [point.get(key) if key in point else point["summary"].get(key) for key in columns]
        rows.append([point["name"], *map(number, cells)])
    return Table(f"Points, best {metric_words(metric)} first", ["point", *columns], rows)


def _failures(points: list[dict[str, Any]]) -> Table:
    reasons = Counter(point["error"] for point in points if point["status"] != "done")
    rows = [[reason, str(count)] for reason, count in reasons.most_common()]
    return Table("Points that failed", ["reason", "points"], rows)


def _text(ranked: list[dict[str, Any]], metric: str) -> str:
    known = [(point["name"], value) for point in ranked if (value := point_value(point, metric)) is not None]
    rows = [(name, None, value, None) for name, value in known[:TEXT_ROWS]]
    return f"{metric_words(metric)}, best first, | = 0\n" + text_intervals(rows, 0.0)
