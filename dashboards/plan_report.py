"""The report of a capacity plan: from its document to tables, figures and the sentence."""

from __future__ import annotations

from typing import Any

from dashboards.figures.studies import ParetoData, front_figure, pareto_data, strain_figure
from dashboards.study_report import StudyFigure, StudyReport
from simulator.metrics.usage import main_bottleneck
from simulator.studies.plan.objectives import latency_words
from simulator.tables import ABSENT, Table, number

BAR = 40
"""Characters of the longest bar of a text figure."""


def plan_report(document: dict[str, Any], command: str) -> StudyReport:
    """What :mod:`dashboards.study_report` writes, from a ``plan`` document.

    Args:
        document: of ``simulator.studies.plan.document``.
        command: that makes the plan again.
    """
    scenario = document["scenario"]
    model = scenario["model"] if isinstance(scenario["model"], str) else "inline model"
    rate = document["request_rate"]
    goal = "highest rate" if rate is None else f"{rate:.4g} requests per second"
    slo = ", ".join(f"{key} {value:g}" for key, value in document["slo"].items())
    return StudyReport(
        title=f"Capacity plan: {model}, {goal}",
        conclusion=document["conclusion"],
        tables=[table for table in (holding_table(document), failing_table(document)) if table.rows],
        figures=_figures(document),
        scenario=scenario,
        seed=document["seed"],
        version=document["version"],
        basis=document["basis"] or "datasheet",
        command=command,
        notes=document["notes"],
        commands=_commands(document),
        badges=[f"SLO: {slo}", f"{document['runs']} simulated runs", f"{len(document['candidates'])} candidates"],
    )


def holding_table(document: dict[str, Any]) -> Table:
    """Layouts that hold the SLO, best first."""
    rows = []
    for row in document["candidates"]:
        if row["status"] != "meets":
            continue
        sure = row["confidence"]
        interval = sure["binding_interval"]
        ends = "" if interval is None else f" ({number(interval[0])} to {number(interval[1])})"
        rows.append(
            [
                row["layout"] + (" *" if row["layout"] in document["pareto"] else ""),
                number(row["chips"]),
                number(row["usd_per_hour"]),
                number(row["usd_per_million_output_tokens"]),
                ABSENT if row["power_w"] is None else f"{row['power_w']:,.0f} W",
                number(row["max_rate"]),
                ABSENT if row["headroom"] is None else f"{row['headroom']:+.0%}",
                latency_words(row["binding"], row["values"][row["binding"]]) + ends,
                f"{sure['share']:.0%} of {sure['runs']} ({sure['method']})",
                main_bottleneck(row["bottleneck"]) or ABSENT,
                row["basis"],
            ]
        )
    columns = ["layout (* Pareto)", "chips", "$/h", "$/M tokens", "power", "max req/s", "headroom", "binding (95 %)"]
    return Table("Layouts that hold the SLO, best first", [*columns, "hold in", "bound", "basis"], rows)


def _commands(document: dict[str, Any]) -> dict[str, str]:
    return {
        f"{row['layout']} ({engine})": command
        for row in document["candidates"]
        if row["flags"] is not None
        for engine, command in row["flags"].items()
    }


def failing_table(document: dict[str, Any]) -> Table:
    """All others, and why."""
    rows = [
        [row["layout"], row["status"], number(row["chips"]), number(row["usd_per_hour"]), row["reason"] or ABSENT]
        for row in document["candidates"]
        if row["status"] != "meets"
    ]
    return Table("All other candidates, and why", ["layout", "verdict", "chips", "$/h", "reason"], rows, shown=20)


def _figures(document: dict[str, Any]) -> list[StudyFigure]:
    data = pareto_data(document)
    figures = []
    if data.points and document["request_rate"] is not None:
        figures.append(StudyFigure("strain", strain_figure(data), strain_text(data)))
    if any(point.max_rate is not None for point in data.points):
        figures.append(StudyFigure("front", front_figure(data), front_text(data)))
    return figures


def strain_text(data: ParetoData) -> str:
    """Binding value over its limit as bars of text; ``|`` is the limit."""
    longest = max([1.0, *(point.strain for point in data.points)])
    return _bars([(p.layout, p.strain, f"{p.strain:.2f}") for p in data.points], longest, 1.0)


def front_text(data: ParetoData) -> str:
    """Highest rates as bars of text; ``|`` is the rate asked for."""
    points = [(p.layout, p.max_rate, f"{p.max_rate:.3g} req/s") for p in data.points if p.max_rate is not None]
    longest = max([data.request_rate or 0.0, *(rate for _, rate, _ in points)])
    return _bars(points, longest, data.request_rate)


def _bars(rows: list[tuple[str, float, str]], longest: float, mark: float | None) -> str:
    width = max(len(label) for label, *_ in rows)
    lines = []
    for label, value, words in rows:
        bar = list(f"{'#' * round(value / longest * BAR):<{BAR + 1}}")
        if mark is not None:
            bar[round(mark / longest * BAR)] = "|"
        lines.append(f"{label:<{width}}  {''.join(bar)}  {words}")
    return "\n".join(lines)
