"""The report: self-contained, safe, complete, and clear about folders that are not runs."""

import dataclasses
import json
import re
import shutil
from html import escape

import pytest

from dashboards.report import report_html, write_report
from forerun.errors import ForerunError
from forerun.tables import number
from simulator.running.metrics.conclusion import run_conclusion
from simulator.running.metrics.run_folder import checksum, load_run, run_id


@pytest.fixture(scope="module")
def page(run):
    return report_html(run)


def own_part(page):
    """The page without plotly.js."""
    return page[: page.index('<script type="application/json"')]


def test_page_needs_no_network(page):
    assert "<script src" not in page
    assert not re.search("https?://", own_part(page))
    assert len(page) < 1_500_000


def test_page_holds_every_section(run, page):
    text = own_part(page)
    for words in (
        "llama-3.1-8b on 2 x l4",
        "basis: datasheet",
        "1 failed",
        "Latency (ms)",
        "TTFT",
        "SLO missed as predicted, the model&#x27;s error not counted",
        "Speculative decoding",
        "Memory",
        "Weights per chip",
        "Scenario",
        "request_rate: 8.0",
        f"${number(run.document['usd_per_million_output_tokens'], 3)}",
    ):
        assert words in text
    for figure in ("bottleneck", "latency", "timeline", "waterfall"):
        assert f'id="figure-{figure}"' in text


def test_figures_in_the_page_are_json_without_their_template(page):
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)[1])
    assert set(figures) == {"figure-bottleneck", "figure-latency", "figure-timeline", "figure-waterfall"}
    assert all("template" not in figure["layout"] for figure in figures.values())
    assert set(json.loads(re.search(r'id="templates">(.*?)</script>', page, re.DOTALL)[1])) == {"light", "dark"}


def test_text_of_the_run_cannot_become_markup(page):
    assert "a remark with &lt;markup&gt; in it" in page
    assert "<markup>" not in page


def shown_interval(run, key):
    """The cell of a number with the ends of its interval, as the page has it."""
    low, high = run.document["intervals"][key]
    value = run.document["summary"][key]
    return f'{number(value)} <span class="aside">{number(low, 3)}..{number(high, 3)}</span></td>'


def test_replications_show_intervals(write_one, tmp_path):
    run = load_run(write_one(tmp_path / "run", replications=3))
    page = report_html(run)
    assert "mean of 3 runs" in page
    for key in ("output_throughput", "p99_ttft_ms"):
        assert shown_interval(run, key) in page


def test_a_single_run_shows_the_interval_of_the_models_error(run):
    ends = {"output_throughput": [700.0, 1400.0], "p99_ttft_ms": [150.0, 400.0]}
    message = dataclasses.replace(
        run, document=run.document | {"intervals": ends, "interval_level": 0.9, "intervals_of": "chance"}
    )
    page = report_html(message)
    assert "mean of" not in page
    assert "90% intervals of chance" in page
    for key in ends:
        assert shown_interval(message, key) in page
        assert shown_interval(message, key) not in report_html(run)


def test_report_goes_where_requested(run_folder, tmp_path):
    assert write_report(run_folder, tmp_path / "x.html") == tmp_path / "x.html"
    assert (tmp_path / "x.html").stat().st_size > 500_000
    assert not (run_folder / "report.html").exists()


def test_a_run_in_which_nothing_happened_still_has_a_page(run_folder, tmp_path):
    import pyarrow.parquet as pq

    folder = shutil.copytree(run_folder, tmp_path / "empty")
    for name in ("requests.parquet", "steps.parquet"):
        pq.write_table(pq.read_table(folder / name).slice(0, 0), folder / name)
    document = json.loads((folder / "summary.json").read_text())
    document["summary"] = {
        key: (0 if key in ("completed", "total_input_tokens", "total_output_tokens") else None)
        for key in document["summary"]
    }
    document["summary"]["failed"] = 3
    document |= {"bottleneck": None, "slo": None, "cost_usd": None, "usd_per_million_output_tokens": None}
    document["utilisation"] = {"mfu": None, "mbu": None}
    document["conclusion"] = run_conclusion(document)
    document["files"] = {name: checksum(folder / name) for name in document["files"]}
    document["run"] = run_id(document)
    (folder / "summary.json").write_text(json.dumps(document))
    page = report_html(load_run(folder))
    assert "No request finished; 3 of 3 requests fail" in page
    assert 'class="figure"' not in page


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("summary.json", None, "no summary.json"),
        ("summary.json", "{", "not JSON"),
        ("summary.json", "{}", "not the summary of a run"),
        ("steps.parquet", None, "missing"),
        ("steps.parquet", "no", "steps.parquet: not of the run in summary.json"),
    ],
)
def test_what_is_not_a_run_folder_is_refused_by_name(run_folder, tmp_path, name, content, complaint):
    folder = shutil.copytree(run_folder, tmp_path / "run")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ForerunError, match=complaint):
        load_run(folder)


def test_a_run_and_its_report_begin_with_the_same_sentence(run):
    sentence = run.document["conclusion"]
    assert sentence.startswith(("Keeps up", "Cannot keep up"))
    assert f'<p class="lead">{escape(sentence)}</p>' in report_html(run)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0"), (12345, "12,345"), (1234.56, "1,235"), (0.012346, "0.01235"), (3.0, "3")]
)
def test_numbers_read_well(value, text):
    assert number(value) == text
