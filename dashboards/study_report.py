"""Study reports: sentence, tables, figures and all that a reviewer needs to run it again, as HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import plotly.graph_objects as go

from dashboards.figures.theme import BASIS_WORDS
from dashboards.page import card, figure_cards, page_html

TEXT_WIDTH = 56
"""Characters of a text figure's axis."""


@dataclass(frozen=True, slots=True)
class StudyTable:
    """A table of texts; the first column is a label."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


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
    tables: Sequence[StudyTable]
    figures: Sequence[StudyFigure]
    scenario: Mapping[str, Any]
    seed: int
    version: str
    basis: str
    command: str
    """Runs the study again, from the folder of the report."""
    notes: Sequence[str] = ()
    badges: Sequence[str] = field(default=())


def study_html(report: StudyReport) -> str:
    """The report as one self-contained page."""
    figures = {f"figure-{figure.name}": figure.figure for figure in report.figures}
    plots = figure_cards(figures)
    marks = [f"basis: {report.basis}", f"seed {report.seed}", *report.badges]
    badges = "".join(f'<span class="badge">{escape(mark)}</span>' for mark in marks)
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    sections = [
        f"<header><h1>{escape(report.title)}</h1><p>Simulated study · "
        f'{escape(BASIS_WORDS.get(report.basis, report.basis))}</p><p class="lead">{escape(report.conclusion)}</p>'
        f'<div class="badges">{badges}</div></header>',
        '<div class="figures" style="margin-top: 22px">' + "".join(plots.values()) + "</div>",
        *(card(table.title, _html_table(table)) for table in report.tables),
        card("Notes", f'<ul class="notes">{notes}</ul>' if notes else ""),
        card("Run it again", f"<pre>{escape(report.command)}</pre>"),
        f'<section class="card"><details><summary>Scenario</summary><pre>{escape(scenario_yaml(report.scenario))}</pre>'
        "</details></section>",
        f"<footer>Forerun {escape(report.version)} · seed {report.seed} · a prediction, not a measurement</footer>",
    ]
    return page_html(f"{report.title} · Forerun", "\n".join(section for section in sections if section), figures)


def study_markdown(report: StudyReport) -> str:
    """The report as Markdown, its figures drawn in text."""
    parts = [f"# {report.title}", f"**{_plain(report.conclusion)}**"]
    for figure in report.figures:
        if figure.text:
            parts.append(f"```text\n{figure.text}\n```")
    parts += [f"## {table.title}\n\n{_markdown_table(table)}" for table in report.tables]
    if report.notes:
        parts.append("## Notes\n\n" + "\n".join(f"* {_plain(note)}" for note in report.notes))
    basis = BASIS_WORDS.get(report.basis, report.basis)
    facts = [
        f"* basis: {report.basis} ({basis})",
        f"* seed {report.seed}, Forerun {report.version}",
        *(f"* {badge}" for badge in report.badges),
        "* a prediction, not a measurement",
    ]
    parts.append("## Run it again\n\n" + f"```sh\n{report.command}\n```\n\n" + "\n".join(facts))
    parts.append(f"## Scenario\n\n```yaml\n{scenario_yaml(report.scenario).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def scenario_yaml(scenario: Mapping[str, Any]) -> str:
    """A scenario document as YAML."""
    import yaml

    return yaml.safe_dump(dict(scenario), sort_keys=False, default_flow_style=None, width=100)


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


def _html_table(table: StudyTable) -> str:
    if not table.rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _markdown_table(table: StudyTable) -> str:
    head = "| " + " | ".join(_cell(column) for column in table.columns) + " |"
    rule = "|" + " --- |" + " ---: |" * (len(table.columns) - 1)
    return "\n".join([head, rule, *("| " + " | ".join(map(_cell, row)) + " |" for row in table.rows)])


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|") or " "


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")
