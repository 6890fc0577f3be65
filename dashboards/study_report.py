"""Study reports: sentence, tables, figures and all that a reviewer needs to run it again, as HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from dashboards.page import (
    basis_words,
    bullets,
    card,
    commands_card,
    figure_cards,
    folded,
    footer,
    header,
    page_html,
    scenario_yaml,
    table_card,
)
from simulator.tables import Table, markdown_text

TEXT_WIDTH = 56
"""Characters of a text figure's axis."""


@dataclass(frozen=True, slots=True)
class StudyFigure:
    """A Plotly figure for the page and lines of text that stand for it in Markdown."""

    name: str
    figure: go.Figure
    text: str = ""


@dataclass(frozen=True, slots=True)
class StudyReport:
    """What any study hands over to be reported."""

    title: str
    conclusion: str
    """The sentence for the design review."""
    tables: Sequence[Table]
    figures: Sequence[StudyFigure]
    scenario: Mapping[str, Any]
    seed: int
    version: str
    basis: str
    command: str
    """Runs the study again, from the folder of the report."""
    notes: Sequence[str] = ()
    badges: Sequence[str] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    """To paste, by what they launch."""


def study_html(report: StudyReport) -> str:
    """The report as one self-contained page."""
    figures = {f"figure-{figure.name}": figure.figure for figure in report.figures}
    marks = [f"basis: {report.basis}", f"seed {report.seed}", *report.badges]
    sections = [
        header(
            report.title,
            f"Simulated study · {basis_words(report.basis)}",
            report.conclusion,
            [(mark, "") for mark in marks],
        ),
        '<div class="figures">' + "".join(figure_cards(figures).values()) + "</div>",
        commands_card("Launch commands", report.commands),
        *map(table_card, report.tables),
        card("Notes", bullets(report.notes)),
        commands_card("Run it again", {"in the folder of this page": report.command}),
        folded("Scenario", scenario_yaml(report.scenario)),
        footer(f"Forerun {report.version}", f"seed {report.seed}", "a prediction, not a measurement"),
    ]
    return page_html(f"{report.title} · Forerun", "\n".join(section for section in sections if section), figures)


def study_markdown(report: StudyReport) -> str:
    """The report as Markdown, its figures drawn in text."""
    parts = [f"# {markdown_text(report.title)}", f"**{markdown_text(report.conclusion)}**"]
    for figure in report.figures:
        if figure.text:
            parts.append(f"```text\n{figure.text}\n```")
    for name, command in report.commands.items():
        parts.append(f"## {markdown_text(name)}\n\n```sh\n{command}\n```")
    parts += [f"## {markdown_text(table.title)}\n\n{table.markdown()}" for table in report.tables]
    if report.notes:
        parts.append("## Notes\n\n" + "\n".join(f"* {markdown_text(note)}" for note in report.notes))
    facts = [
        f"* basis: {report.basis} ({basis_words(report.basis)})",
        f"* seed {report.seed}, Forerun {report.version}",
        *(f"* {badge}" for badge in report.badges),
        "* a prediction, not a measurement",
    ]
    parts.append("## Run it again\n\n" + f"```sh\n{report.command}\n```\n\n" + "\n".join(facts))
    parts.append(f"## Scenario\n\n```yaml\n{scenario_yaml(report.scenario).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def text_intervals(rows: Sequence[tuple[str, float | None, float, float | None]], mark: float, unit: str = "") -> str:
    """Values with intervals as lines of text on one axis, with a bar at ``mark``.

    Args:
        rows: label, low end, value, high end; ends may be None.
        mark: a value that the axis shows in every line.
        unit: behind every figure.
    """
    known = [mark, *(v for _, low, value, high in rows for v in (low, value, high) if v is not None)]
    least, most = min(known), max(known)
    span = (most - least) or 1.0

    def column(value: float) -> int:
        return round((value - least) / span * (TEXT_WIDTH - 1))

    width = max((len(label) for label, *_ in rows), default=0)
    lines = []
    for label, low, value, high in rows:
        axis = [" "] * TEXT_WIDTH
        axis[column(mark)] = "|"
        if low is not None and high is not None:
            for place in range(column(low), column(high) + 1):
                axis[place] = "-"
        axis[column(value)] = "o"
        lines.append(f"{label:<{width}}  {''.join(axis)}  {value:.3f}{unit}")
    return "\n".join([*lines, f"{'':<{width}}  {least:<{TEXT_WIDTH // 2}.3f}{most:>{TEXT_WIDTH - TEXT_WIDTH // 2}.3f}"])
