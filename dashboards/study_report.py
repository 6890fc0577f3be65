"""Reports of studies: sentence, figures, tables and all that a reviewer needs to run it again, as HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go

from dashboards.figures.speculation import pool_figure
from dashboards.figures.studies import (
    ForestData,
    LoadCurveData,
    ParetoData,
    TornadoData,
    bars_figure,
    bars_text,
    drafting_data,
    drafting_figure,
    drafting_text,
    forest_data,
    forest_figure,
    load_curve_data,
    load_curve_figure,
    pareto_data,
    pareto_figure,
    race_data,
    race_figure,
    slo_ratio_figure,
    sweep_data,
    sweep_figure,
    thresholds_data,
    tornado_data,
    tornado_figure,
    tuning_data,
    tuning_figure,
    twin_data,
)
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
from forerun.errors import ForerunError
from forerun.result import StudyResult
from forerun.tables import Table, cell_text, markdown_text
from simulator.studies.paired import HIGHER_IS_BETTER, load_words, metric_words
from simulator.studies.sweep.study import point_value

Document = dict[str, Any]
TEXT_WIDTH = 56
"""Characters of a text figure's axis."""
BAR = 40
"""Characters of the longest bar of a text figure."""
TEXT_ROWS = 20
COMMANDS = ("commands", "flags")
"""Names of tables whose last column is a text to paste."""


class StudyFigure(NamedTuple):
    """A Plotly figure for the page and lines of text that stand for it in Markdown."""

    name: str
    figure: go.Figure
    text: str


def study_figures(kind: str, document: Document) -> list[StudyFigure]:
    """The figures of a study, the main one first.

    Raises:
        ForerunError: there are none of this kind of study.
    """
    makers = {
        "compare": _compare_figures,
        "draft-pool": _pool_figures,
        "plan": _plan_figures,
        "race": _race_figures,
        "sweep": _sweep_figures,
        "thresholds": _threshold_figures,
        "tune": _tune_figures,
        "twin": _twin_figures,
    }
    if kind not in makers:
        raise ForerunError(f"{kind}: no figures and no report of such a result")
    return makers[kind](document)


def study_html(result: StudyResult) -> str:
    """The report as one self-contained page."""
    document, figures = result.document, study_figures(result.kind, result.document)
    drawn = {f"figure-{figure.name}": figure.figure for figure in figures}
    sections = [
        header(
            result.title,
            f"Simulated study · {basis_words(document['basis'])}",
            result.conclusion,
            [(mark, "") for mark in _marks(result)],
        ),
        *figure_cards(drawn).values(),
        *(
            commands_card(table.title, commands_of(table)) if table.name in COMMANDS else table_card(table)
            for table in result.tables()
        ),
        card("Notes", bullets(document["notes"])),
        commands_card("Run it again", {"in the folder of this page": result.command} if result.command else {}),
        folded("Scenario", scenario_yaml(document["scenario"])),
        footer(f"Forerun {document['version']}", f"seed {document['seed']}", "a prediction, not a measurement"),
    ]
    return page_html(f"{result.title} · Forerun", "\n".join(filter(None, sections)), drawn)


def plan_summary_html(result: StudyResult) -> str:
    """One page: the answer, its cost, and what may change it."""
    sentences = result.document["plan_summary"]
    headings = [(key, text) for key, text in sentences.items() if key not in ("answer", "usd_per_month")]
    sections = [
        header(result.title, "A prediction, not a measurement", sentences["answer"]),
        *(card(key[0].upper() + key[1:], f"<p>{escape(text[0].upper() + text[1:])}.</p>") for key, text in headings),
        card(
            "How it was found", f"<p>{escape(result.conclusion)}</p><p><a href='report.html'>The whole report</a></p>"
        ),
        footer(f"Forerun {result.document['version']}", *_marks(result)),
    ]
    return page_html(f"Summary: {result.title} · Forerun", "\n".join(sections), {})


def study_markdown(result: StudyResult) -> str:
    """The report as Markdown, its figures drawn in text."""
    document = result.document
    parts = [f"# {markdown_text(result.title)}", f"**{markdown_text(result.conclusion)}**"]
    parts += [f"```text\n{figure.text}\n```" for figure in study_figures(result.kind, document) if figure.text]
    for table in result.tables():
        body = table.markdown()
        if table.name in COMMANDS:
            body = "\n\n".join(f"{markdown_text(w)}:\n\n```sh\n{c}\n```" for w, c in commands_of(table).items())
        parts.append(f"## {markdown_text(table.title)}\n\n{body}")
    if document["notes"]:
        parts.append("## Notes\n\n" + "\n".join(f"* {markdown_text(note)}" for note in document["notes"]))
    facts = [*_marks(result), f"Forerun {document['version']}", "a prediction, not a measurement"]
    again = f"```sh\n{result.command}\n```\n\n" if result.command else ""
    parts.append("## Run it again\n\n" + again + "\n".join(f"* {markdown_text(fact)}" for fact in facts))
    parts.append(f"## Scenario\n\n```yaml\n{scenario_yaml(document['scenario']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def commands_of(table: Table) -> Mapping[str, str]:
    """The texts to paste of a table by what stands before them in their row."""
    rows = ([cell_text(cell) for cell in row] for row in table.rows)
    return {", ".join(words): command for *words, command in rows}


def _marks(result: StudyResult) -> list[str]:
    document = result.document
    return [f"basis: {document['basis'] or 'datasheet'}", f"seed {document['seed']}", *result.marks]


def _compare_figures(document: Document) -> list[StudyFigure]:
    forest = forest_data(document)
    figures = [StudyFigure("speedup", forest_figure(forest), _forest_text(forest))] if forest.rows else []
    curve = load_curve_data(document)
    if curve is not None:
        figures.append(StudyFigure("load", load_curve_figure(curve), _curve_text(curve)))
    tornado = tornado_data(document)
    if tornado is not None:
        figures.append(StudyFigure("tornado", tornado_figure(tornado), _tornado_text(tornado)))
    return figures


def _plan_figures(document: Document) -> list[StudyFigure]:
    data = pareto_data(document)
    figures = []
    if data.points and document["request_rate"] is not None:
        figures.append(StudyFigure("slo_ratio", slo_ratio_figure(data), slo_ratio_text(data)))
    if any(point.max_rate is not None for point in data.points):
        figures.append(StudyFigure("pareto", pareto_figure(data), pareto_text(data)))
    return figures


def _race_figures(document: Document) -> list[StudyFigure]:
    data = race_data(document)
    rows = [
        (name, min(values), sum(values) / len(values), max(values))
        for name, values in zip(data.controllers, data.regret, strict=True)
    ]
    text = "latency over that of the best fixed K: least, mean and most over the patterns, | = 0\n"
    return [StudyFigure("regret", race_figure(data), text + text_intervals(rows, 0.0))]


def _threshold_figures(document: Document) -> list[StudyFigure]:
    data = thresholds_data(document)
    return [StudyFigure("rent", bars_figure(data), bars_text(data))]


def _twin_figures(document: Document) -> list[StudyFigure]:
    data = twin_data(document)
    return [StudyFigure("gaps", bars_figure(data), bars_text(data))]


def _pool_figures(document: Document) -> list[StudyFigure]:
    rows = [
        (f"{row['verifiers_per_drafter']} {way}", row["low"], row["gain"], row["high"])
        for way, one in document["ways"].items()
        for row in one["gains"]
    ]
    text = "gain over the same verifiers without drafts, by verifiers per drafter, | = 1\n"
    return [StudyFigure("gain", pool_figure(document), text + text_intervals(rows, 1.0))]


def _tune_figures(document: Document) -> list[StudyFigure]:
    if "machine" in document:
        rates = drafting_data(document)
        return [StudyFigure("rates", drafting_figure(rates), drafting_text(rates))]
    return [StudyFigure("tuning", tuning_figure(tuning_data(document)), map_text(document))]


def _sweep_figures(document: Document) -> list[StudyFigure]:
    data = sweep_data(document, document["metric"])
    if data is None or not data.panels:
        return []
    return [StudyFigure("points", sweep_figure(data), _sweep_text(document))]


def _forest_text(data: ForestData) -> str:
    several = len({row.variant for row in data.rows}) > 1
    rows = [
        (
            f"{row.variant}: {metric_words(row.metric)}" if several else metric_words(row.metric),
            row.low,
            row.ratio,
            row.high,
        )
        for row in data.rows
    ]
    return f"speedup over {data.baseline}, | = 1\n" + text_intervals(rows, 1.0)


def _tornado_text(data: TornadoData) -> str:
    rows = [
        (row.parameter, min(row.at_low, row.at_high), data.ratio, max(row.at_low, row.at_high)) for row in data.rows
    ]
    return f"{data.variant}: speedup over the range of each assumed parameter\n" + text_intervals(rows, data.ratio)


def _curve_text(data: LoadCurveData) -> str:
    parts = []
    for name, loads, ratios, lows, highs in data.curves:
        rows = [
            (load_words(data.path, load), low, ratio, high)
            for load, low, ratio, high in zip(loads, lows, ratios, highs, strict=True)
        ]
        parts.append(f"{name}: speedup over load, | = 1\n" + text_intervals(rows, 1.0))
    return "\n\n".join(parts)


def slo_ratio_text(data: ParetoData) -> str:
    """Binding value over its limit as bars of text; ``|`` is the limit."""
    longest = max([1.0, *(point.slo_ratio for point in data.points)])
    return _bars([(p.layout, p.slo_ratio, f"{p.slo_ratio:.2f}") for p in data.points], longest, 1.0)


def pareto_text(data: ParetoData) -> str:
    """Highest rates as bars of text; ``|`` is the rate requested."""
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


def _sweep_text(document: Document) -> str:
    metric = document["metric"]
    known = [(p["name"], value) for p in document["points"] if (value := point_value(p, metric)) is not None]
    known.sort(key=lambda row: -row[1] if HIGHER_IS_BETTER[metric] else row[1])
    rows = [(name, None, value, None) for name, value in known[:TEXT_ROWS]]
    return f"{metric_words(metric)}, best first, | = 0\n" + text_intervals(rows, 0.0)


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
