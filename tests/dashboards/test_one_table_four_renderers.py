"""A table stands once: a figure that is new in it shows in the terminal, in HTML, in Markdown and on the dashboard."""

import json
import re

import pytest
from rich.console import Console

from dashboards.report import report_html
from forerun.tables import Table
from simulator.running.metrics import tables
from simulator.running.metrics.run_folder import load_run
from simulator.running.run import simulate

pytest.importorskip("dash")

from dashboards.app.page import Context
from dashboards.app.pages import run_explorer
from dashboards.app.parts import table_panel
from dashboards.app.served import ServedFolders

LABEL, VALUE = "Tokens per joule", 12.625


def shown_in_terminal(result):
    console = Console(width=200)
    with console.capture() as captured:
        for table in result:
            console.print(table.rich())
    return captured.get()


@pytest.fixture
def with_new_metric(monkeypatch):
    """What adding a metric is: a key of the summary, and a row of one table."""
    serving = tables.serving_table

    def more(document):
        table = serving(document)
        return Table(table.title, table.columns, [*table.rows, (LABEL, VALUE)], name=table.name)

    monkeypatch.setattr(tables, "serving_table", more)


def test_a_new_metric_shows_in_all_four(with_new_metric, run, run_folder, tmp_path):
    result = tables.run_tables(run.document)
    assert LABEL in shown_in_terminal(result)
    assert any(LABEL in table.markdown() for table in result)
    page = report_html(load_run(run_folder))
    assert re.search(rf"<td>{LABEL}</td><td>12.6", page)
    context = Context(ServedFolders.of([run_folder.parent], tmp_path))
    parts = run_explorer.compute(context, {"run": run_folder.name})
    assert LABEL in str(parts["tables"].to_plotly_json())
    assert "12.6" in str(parts["tables"].to_plotly_json())


def test_a_page_renders_what_a_report_renders(run):
    """The browser is handed a report's own table, in which nothing of a name is markup."""
    result = tables.run_tables(run.document)
    assert result
    for table in (*result, Table("", ("a",), [["<img src=x onerror=alert(1)>"]])):
        sent = json.dumps(table_panel(table).to_plotly_json(), default=lambda part: part.to_plotly_json())
        assert json.dumps(table.html()) in sent
        assert "<img" not in sent


def test_results_and_runs_share_their_tables():
    from tiny_scenario import tiny_data

    from simulator.running.scenario import scenario_from

    result = simulate(scenario_from(tiny_data(num_requests=4), "tiny"))
    assert [table.title for table in result.tables()] == [table.title for table in tables.run_tables(result.document)]
