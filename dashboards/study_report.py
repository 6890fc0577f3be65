"""Reports of studies: sentence, figures, tables and all that a reviewer needs to run it again, as HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from dashboards import page
from dashboards.result_figures import drawn_figures, figure_data
from forerun.result import StudyResult
from forerun.tables import Table, cell_text, markdown_text

COMMANDS = ("commands", "flags")
"""Names of tables whose last column is a text to paste."""


def study_html(result: StudyResult) -> str:
    """The report as one self-contained page."""
    document = result.document
    drawn = {f"figure-{name}": figure for name, figure in drawn_figures(result.kind, document).items()}
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
        page.card("Notes", page.bullets(document["notes"])),
        page.commands_card("Run it again", {"in the folder of this page": result.command} if result.command else {}),
        page.folded("Scenario", page.scenario_yaml(document["scenario"])),
        page.footer(f"Forerun {document['version']}", f"seed {document['seed']}", "a prediction, not a measurement"),
    ]
    return page.page_html(result.title, sections, drawn)


def plan_summary_html(result: StudyResult) -> str:
    """One page: the answer, its cost, and what may change it."""
    sentences = result.document["plan_summary"]
    headings = [(key, text) for key, text in sentences.items() if key not in ("answer", "usd_per_month")]
    sections = [
        page.header(result.title, "A prediction, not a measurement", sentences["answer"]),
        *(
            page.card(key[0].upper() + key[1:], f"<p>{escape(text[0].upper() + text[1:])}.</p>")
            for key, text in headings
        ),
        page.card(
            "How it was found", f"<p>{escape(result.conclusion)}</p><p><a href='report.html'>The whole report</a></p>"
        ),
        page.footer(f"Forerun {result.document['version']}", *_marks(result)),
    ]
    return page.page_html(f"Summary: {result.title}", sections, {})


def study_markdown(result: StudyResult) -> str:
    """The report as Markdown, its figures drawn in text."""
    document = result.document
    parts = [f"# {markdown_text(result.title)}", f"**{markdown_text(result.conclusion)}**"]
    parts += [f"```text\n{one.text(data)}\n```" for one, data in figure_data(result.kind, document).values()]
    for table in _tables(result):
        body = table.markdown()
        if table.name in COMMANDS:
            body = "\n\n".join(f"{markdown_text(w)}:\n\n```sh\n{c}\n```" for w, c in commands_of(table).items())
        parts.append(f"## {markdown_text(table.title)}\n\n{body}")
    if document["notes"]:
        parts.append("## Notes\n\n" + "\n".join(f"* {markdown_text(note)}" for note in document["notes"]))
    facts = [*_marks(result), f"Forerun {document['version']}", "a prediction, not a measurement"]
    again = f"```sh\n{result.command}\n```\n\n" if result.command else ""
    parts.append("## Run it again\n\n" + again + "\n".join(f"* {markdown_text(fact)}" for fact in facts))
    parts.append(f"## Scenario\n\n```yaml\n{page.scenario_yaml(document['scenario']).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _tables(result: StudyResult) -> list[Table]:
    """Tables of a result, texts to paste after the answer."""
    return sorted(result.tables(), key=lambda table: table.name in COMMANDS)


def commands_of(table: Table) -> Mapping[str, str]:
    """The texts to paste of a table by what stands before them in their row."""
    rows = ([cell_text(cell) for cell in row] for row in table.rows)
    return {", ".join(words): command for *words, command in rows}


def _marks(result: StudyResult) -> list[str]:
    document = result.document
    return [f"basis: {document['basis'] or 'datasheet'}", f"seed {document['seed']}", *result.marks]
