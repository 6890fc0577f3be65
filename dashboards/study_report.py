"""Reports of studies as HTML and Markdown: conclusion, figures, tables, and the data for repeating the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from importlib import import_module
from pathlib import Path

from dashboards import page
from dashboards.figures import load, speculation, studies
from dashboards.theme import FigureData, ResultFigure, with_data
from forerun.document import Json, json_text
from forerun.result import Result, StudyResult
from forerun.tables import Table, Value, cell_text, markdown_text, number
from simulator.running.metrics.files import StagedFiles
from simulator.running.metrics.usage import HOURS_PER_MONTH
from simulator.studies.plan.summary import risk_words
from simulator.workload.workload_config import ARRIVING, rate_unit

COMMANDS = ("commands", "flags")
"""Names of tables whose last column is a text to paste."""
ALTERNATIVES = 5
FIGURES: Mapping[str, Sequence[ResultFigure]] = {
    "compare": (
        ResultFigure("speedup", studies.forest_data, studies.forest_figure, studies.forest_text),
        ResultFigure("load", studies.load_curve_data, studies.load_curve_figure, studies.load_curve_text),
        ResultFigure("adaptive", speculation.adaptive_data, speculation.adaptive_figure, speculation.adaptive_text),
        ResultFigure("tornado", studies.tornado_data, studies.tornado_figure, studies.tornado_text),
    ),
    "plan": (
        ResultFigure("pareto", studies.pareto_data, studies.pareto_figure, studies.pareto_text),
        ResultFigure(
            "cost", partial(studies.pareto_data, y=studies.PER_MILLION), studies.pareto_figure, studies.pareto_text
        ),
        ResultFigure("hours", load.hours_data, load.hours_figure, load.hours_text),
    ),
    "sweep": (ResultFigure("points", studies.sweep_data, studies.sweep_figure, studies.points_text),),
    "thresholds": (ResultFigure("rent", studies.thresholds_data, studies.bars_figure, studies.bars_text),),
    "tune": (
        ResultFigure("rates", studies.drafting_data, studies.drafting_figure, studies.drafting_text),
        ResultFigure("tuning", studies.tuning_data, studies.tuning_figure, studies.tuning_text),
    ),
    "twin": (ResultFigure("gaps", studies.twin_data, studies.bars_figure, studies.bars_text),),
}
"""Figures by kind of study, the main figure first."""


def figure_data(result: Result) -> FigureData:
    """Figures of a study, the main figure first; empty for any other result."""
    if not isinstance(result, StudyResult):
        return {}
    figures = import_module(result.drawn_in).FIGURES if result.drawn_in else FIGURES.get(result.kind, ())
    return with_data(figures, result.document)


def save(result: Result, folder: Path) -> None:
    """Write the document of a result; for a study also its report, its further files and a plan's summary."""
    texts = {f"{result.kind}.json": json_text(result.document)}
    if isinstance(result, StudyResult):
        texts |= result.files
        if result.document.get("plan_summary"):
            texts["summary.html"] = plan_summary_html(result)
        texts |= {"report.html": study_html(result), "report.md": study_markdown(result)}
    with StagedFiles(folder) as staged:
        for name, text in texts.items():
            staged.add_text(name, text)


def study_html(result: StudyResult) -> str:
    """The report as one self-contained page."""
    document = result.document
    drawn = {f"figure-{name}": figure.draw(data) for name, (figure, data) in figure_data(result).items()}
    sections = [
        page.header(
            result.title,
            f"Simulated study · {page.basis_words(document['basis'])}",
            result.conclusion,
            [(mark, "") for mark in _marks(result)],
        ),
        *page.figure_cards(drawn).values(),
        *(
            page.commands_card(table.title, commands_of(table), table.shown)
            if table.name in COMMANDS
            else page.table_card(table)
            for table in _tables(result)
        ),
        page.card("Notes", page.bullets(filter(None, (result.legend, *document["notes"])))),
        page.commands_card("Run it again", {"in the folder of this page": result.command} if result.command else {}),
        page.folded("Scenario", page.scenario_yaml(document["scenario"])),
        page.footer(f"Forerun {document['version']}", f"seed {document['seed']}", "a prediction, not a measurement"),
    ]
    return page.page_html(result.title, sections, drawn)


SUMMARY_CARDS = {
    "Cost": ("cost", "cheaper, less sure", "price of a chip for an hour", "by the hour"),
    "What would change it": ("what would change it", "headroom", "a replica fails", "twice the load"),
    "What it rests on": ("rests on", "how sure"),
}
"""Cards of a plan's summary below the answer, with the keys of the sentences in each card."""
PREFIXED = {
    "by the hour",
    "headroom",
    "a replica fails",
    "twice the load",
    "price of a chip for an hour",
    "cheaper, less sure",
}
"""Keys of sentences that are printed with their heading."""


def plan_summary_html(result: StudyResult) -> str:
    """One-page summary of a plan: traffic, question, answer, cost, alternatives, sensitivities, evidence."""
    document = result.document
    words = document["plan_summary"]
    drawn = {
        f"figure-{name}": figure.draw(data) for name, (figure, data) in figure_data(result).items() if name == "hours"
    }
    cards = {
        title: "".join(_sentence(words[key], key if key in PREFIXED else "") for key in keys if key in words)
        for title, keys in SUMMARY_CARDS.items()
    }
    best = document["best"]
    sure = f" It rests on {words['rests on']}."
    if best["probability"] is not None:
        sure += f" The risk that a limit breaks is {risk_words(best['probability'], best['basis'])}."
    sections = [
        page.header(result.title, "A prediction, not a measurement", words["answer"]),
        page.card("The question", _sentence(f"{words['question']}?")),
        page.card("Traffic", _sentence(words["traffic"])),
        *page.figure_cards(drawn).values(),
        page.card("The answer", f"<p>{escape(words['answer'] + sure)}</p>"),
        page.card("Cost", cards.pop("Cost")),
        page.card("Alternatives", _alternatives(document).html()),
        *(page.card(title, text) for title, text in cards.items()),
        "<p><a href='report.html'>The whole report</a></p>",
        page.footer(f"Forerun {document['version']}", *_marks(result)[:2]),
    ]
    return page.page_html(f"Summary: {result.title}", sections, drawn)


def _sentence(text: str, heading: str = "") -> str:
    text = f"{heading}: {text}" if heading else text
    return f"<p>{escape(text[0].upper() + text[1:])}{'' if text[-1] in '.?' else '.'}</p>"


def _alternatives(document: Json) -> Table:
    """Table of the answer, further layouts, the next cheaper layout and why it fails, and each chip's best layout."""
    cheaper = document["next_cheaper"] or {"layout": None}
    arriving = ARRIVING[rate_unit(document["scenario"]["workload"])]
    rows: list[list[Value]] = []
    holding = [row for row in document["candidates"] if row["status"] == "meets"][:ALTERNATIVES]
    chosen = [*holding, *(row for row in document["candidates"] if row["layout"] == cheaper["layout"])]
    for chips, of_chips in by_chips(document).items():
        if all(chips_of(row, document) != chips for row in chosen):
            chosen.append(min(of_chips, key=lambda row: OF_A_CHIP.index(row["status"])))
    for row in chosen:
        usd = None if row["usd_per_hour"] is None else f"${row['usd_per_hour'] * HOURS_PER_MONTH:,.0f}"
        highest = None if row["max_rate"] is None else f"{number(row['max_rate'], 3)} {arriving}/s"
        says = {"meets": "holds every limit", "not simulated": f"not tried with so many or more: {row['reason']}"}
        failing = "cheaper, and fails" if row["layout"] == cheaper["layout"] else "fails"
        risk = None if row["probability"] is None else risk_words(row["probability"], row["basis"])
        words = says.get(row["status"], f"{failing}: {row['reason']}")
        rows.append([row["layout"], row["chips"], usd, highest, row["basis"], risk, words])
    return Table("Alternatives", ("", "chips", "a month", "serves up to", "evidence", "risk", ""), rows)


OF_A_CHIP = ("meets", "not simulated", "misses", "pruned", "refused", "error")
"""Statuses of layouts, best first: a chip is represented by its layout with the first status in this order."""


def by_chips(document: Json) -> dict[str, list[Json]]:
    """Layouts of a plan, grouped by their chips."""
    layouts: dict[str, list[Json]] = {}
    for row in document["candidates"]:
        layouts.setdefault(chips_of(row, document), []).append(row)
    return layouts


def chips_of(row: Json, document: Json) -> str:
    """Chips of a layout: from its own settings, else from the scenario."""
    own = [str(value) for path, value in row["set"].items() if path.endswith("hardware.chip")]
    return ", ".join(own) or str(document["scenario"]["hardware"]["chip"])


def study_markdown(result: StudyResult) -> str:
    """Report as Markdown, with figures drawn in text."""
    document = result.document
    parts = [f"# {markdown_text(result.title)}", f"**{markdown_text(result.conclusion)}**"]
    parts += [f"```text\n{figure.text(data)}\n```" for figure, data in figure_data(result).values()]
    for table in _tables(result):
        body = table.markdown()
        if table.name in COMMANDS:
            body = "\n\n".join(f"{markdown_text(w)}:\n\n```sh\n{c}\n```" for w, c in commands_of(table).items())
        parts.append(f"## {markdown_text(table.title)}\n\n{body}")
    if notes := list(filter(None, (result.legend, *document["notes"]))):
        parts.append("## Notes\n\n" + "\n".join(f"* {markdown_text(note)}" for note in notes))
    facts = [*_marks(result), f"Forerun {document['version']}", "a prediction, not a measurement"]
    again = f"```sh\n{result.command}\n```\n\n" if result.command else ""
    parts.append("## Run it again\n\n" + again + "\n".join(f"* {markdown_text(fact)}" for fact in facts))
    parts.append(f"## Scenario\n\n```yaml\n{page.scenario_yaml(document['scenario']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _tables(result: StudyResult) -> list[Table]:
    """Tables of a result, tables of commands and flags last."""
    return sorted(result.tables(), key=lambda table: table.name in COMMANDS)


def commands_of(table: Table) -> Mapping[str, str]:
    """Commands in the last column of a table, by the joined texts of the preceding columns."""
    rows = ([cell_text(cell) for cell in row] for row in table.rows)
    return {", ".join(words): command for *words, command in rows}


def _marks(result: StudyResult) -> list[str]:
    document = result.document
    return [f"basis: {document['basis'] or 'datasheet'}", f"seed {document['seed']}", *result.marks]
