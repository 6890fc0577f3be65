"""Reports of studies as HTML and Markdown: conclusion, figures, tables, and the data for repeating the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path

from dashboards import page
from dashboards.figures import load, speculation, studies
from dashboards.theme import FigureData, ResultFigure, with_data
from forerun.document import Json, json_text
from forerun.result import Result, StudyResult
from forerun.tables import ABSENT, Cell, Table, Value, cell_text, markdown_text
from simulator.running.metrics.conclusion import evidence_words, main_evidence
from simulator.running.metrics.files import StagedFiles
from simulator.running.metrics.usage import HOURS_PER_MONTH
from simulator.studies.plan.summary import risk_words

COMMANDS = ("commands", "flags")
"""Names of tables whose last column is a text to paste."""
IMPORTANCE = ResultFigure("importance", studies.importance_data, studies.bars_figure, studies.bars_text)
FIGURES: Mapping[str, Sequence[ResultFigure]] = {
    "compare": (
        ResultFigure("speedup", studies.forest_data, studies.forest_figure, studies.forest_text),
        ResultFigure("load", studies.load_curve_data, studies.load_curve_figure, studies.load_curve_text),
        ResultFigure("adaptive", speculation.adaptive_data, speculation.adaptive_figure, speculation.adaptive_text),
        ResultFigure("tornado", studies.tornado_data, studies.tornado_figure, studies.tornado_text),
        IMPORTANCE,
    ),
    "plan": (
        ResultFigure("pareto", studies.pareto_data, studies.pareto_figure, studies.pareto_text),
        ResultFigure(
            "cost", partial(studies.pareto_data, y=studies.PER_MILLION), studies.pareto_figure, studies.pareto_text
        ),
        ResultFigure("chips", studies.chip_costs_data, studies.chip_costs_figure, studies.chip_costs_text),
        ResultFigure("hours", load.hours_data, load.hours_figure, load.hours_text),
        IMPORTANCE,
    ),
    "router": (ResultFigure("rules", studies.rules_data, studies.bars_figure, studies.bars_text),),
    "sweep": (
        ResultFigure("kv-tier", studies.kv_tier_data, studies.kv_tier_figure, studies.kv_tier_text),
        ResultFigure("points", studies.sweep_data, studies.sweep_figure, studies.points_text),
        IMPORTANCE,
    ),
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


PROMISES = {
    "ttft": "start to answer within {}",
    "tpot": "write each further token within {} in the mean",
    "itl": "pause at most {} between tokens",
    "e2el": "are complete within {}",
}
SHARES = {"mean": "in the mean, requests", "median": "half of the requests", "p50": "half of the requests"}


def plan_summary_html(result: StudyResult) -> str:
    """One page for the person who approves a plan: decision, cost and risk of every chip, prices, traffic."""
    document = result.document
    words = document["plan_summary"]
    names = ("chips", "hours")
    drawn = {
        f"figure-{name}": figure.draw(data) for name, (figure, data) in figure_data(result).items() if name in names
    }
    prices = {chip: price for row in document["by_chip"] for chip, price in row["prices"].items()}
    priced = [f"{chip}: ${price['usd_per_hour']:,.2f} an hour ({price['source']})" for chip, price in prices.items()]
    traffic = [f"Traffic: {words['traffic']}", f"Promise: {promise_words(document['slo'])}"]
    traffic += [f"By the hour: {words['by the hour']}"] if "by the hour" in words else []
    change = words["what would change it"].split("; ")
    cheaper = [row for row in document["candidates"] if row["status"] == "misses" and row["probability"]]
    cheaper = [row for row in cheaper if (row["usd_per_hour"] or inf) < (document["best"]["usd_per_hour"] or 0.0)]
    for row in sorted(cheaper, key=lambda row: -row["probability"])[:1]:
        monthly = _usd(row["usd_per_hour"] * HOURS_PER_MONTH)
        risk = risk_words(row["probability"])
        change.append(f"more risk: {row['chips']} of {', '.join(row['prices'])} for {monthly} a month, risk {risk}")
    figures = page.figure_cards(drawn)
    sections = [
        page.header(f"{result.model}: chips to rent", "A prediction, not a measurement", decision_words(document)),
        figures.get("figure-chips", ""),
        page.table_card(_chips_table(document)),
        page.grid(
            page.card("Traffic and promise", page.bullets(traffic)),
            page.card("What would change the decision", page.bullets(change)),
        ),
        figures.get("figure-hours", ""),
        page.card("Prices", page.bullets(priced or ["No price is known for these chips."])),
        page.card("Decision", "<p class='sign'><span>Approved by</span><span>Date</span></p>"),
        "<p><a href='report.html'>The whole report</a></p>",
        page.footer(f"Forerun {document['version']}", *_marks(result)[:2]),
    ]
    return page.page_html(f"Decision: {result.title}", sections, drawn)


def decision_words(document: Json) -> str:
    """Sentence on the chips to rent, their cost and risk, and the cheapest measured chip."""
    best, *others = document["by_chip"]
    chips = f"{best['chips']:,} {best['chip']} chip{'s' * (best['chips'] != 1)}"
    words = f"Rent {chips}{_usd(best['usd_per_month'], ' for {} a month')}"
    if (ends := best["usd_per_month_range"]) and ends[0] < ends[1]:
        words += f" ({_usd(ends[0])} to {_usd(ends[1])} from best to worst case)"
    compared = f", at the least cost of the {len(others) + 1} kinds compared" if others else ""
    keep, do = ("It keeps", "it does") if best["chips"] == 1 else ("They keep", "they do")
    words += f". {keep} the promised response times{compared}"
    if best["probability"] is not None:
        words += f"; the risk that {do} not is {risk_words(best['probability'])}"
    known = [row for row in others if row["meets_slo"] and row["usd_per_month"]]
    measured = [row for row in known if main_evidence(row["evidence"]) == "calibrated"]
    if measured and main_evidence(best["evidence"]) != "calibrated" and best["usd_per_month"]:
        more, risk = measured[0]["usd_per_month"] - best["usd_per_month"], measured[0]["probability"]
        words += f". {measured[0]['chip']}, {_usd(more)} a month more, is the cheapest that was measured"
        words += "" if risk is None else f" (risk {risk_words(risk)})"
    return f"{words}."


def promise_words(slo: Mapping[str, float]) -> str:
    """SLO in words for readers who do not know its names.

    >>> promise_words({"p99_ttft_ms": 1500, "p50_e2el_ms": 900})
    '99 of 100 requests start to answer within 1.5 s; half of the requests are complete within 900 ms'
    """
    parts = []
    for key, limit in slo.items():
        if key == "goodput":
            continue
        *statistic, latency, _ = key.split("_")
        kind = statistic[0] if statistic else f"p{100 * slo['goodput']:g}"
        share = SHARES.get(kind, f"{kind.removeprefix('p')} of 100 requests")
        time = f"{limit / 1e3:g} s" if limit >= 1e3 else f"{limit:g} ms"
        parts.append(f"{share} {PROMISES[latency].format(time)}")
    return "; ".join(parts)


def _usd(amount: float | None, form: str = "{}") -> str:
    return "" if amount is None else form.format(f"${amount:,.0f}")


def _chips_table(document: Json) -> Table:
    """Cost, evidence, risk, failure and growth of the cheapest layout of every chip."""
    rows: list[list[Value]] = []
    for row in document["by_chip"]:
        ends = list(dict.fromkeys(map(_usd, row["usd_per_month_range"] or ())))
        low_high = " to ".join(ends) if len(ends) > 1 else "in every case" * len(ends)
        month = Cell(_usd(row["usd_per_month"]) or ABSENT, aside=low_high, value=row["usd_per_month"])
        risk = "" if row["probability"] is None else f"; risk {risk_words(row['probability'])}"
        shares = row["evidence"]
        evidence = (evidence_words(shares, studies.EVIDENCE_TO_A_BUYER) if shares else "not simulated") + risk
        reason = row["reason"] or "not computed"
        fails, grows = row["replica_fails"] or reason, row["twice_the_load"] or ("" if row["reason"] else reason)
        rows.append([row["chip"], row["chips"] if row["meets_slo"] else None, month, evidence, fails, grows])
    columns = ("chip", "chips", "a month", "evidence and risk", "if one copy of the model fails", "if traffic doubles")
    return Table("Every chip that was compared, with its cost from best to worst case", columns, rows)


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
