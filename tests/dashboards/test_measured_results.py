"""Intervals as fans, and benchmark results on the what-if page and in reports: before measuring grey, after it blue."""

import base64
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from conftest import service

import simulator
from dashboards.figures.studies import sweep_data, sweep_figure
from dashboards.report import report_html, run_of_result
from dashboards.theme import BLUE, GREY, add_fan
from forerun.errors import ForerunError
from forerun.tables import Cell, Table
from simulator.cli import main
from simulator.studies.steady_state.ranges import fan_ends

pytest.importorskip("dash")

from dashboards.app.page import Context
from dashboards.app.pages import start, what_if
from dashboards.app.served import ServedFolders
from dashboards.app.uploads import LARGEST_MEASURED_BYTES, MOST_RESULTS, keep_results, pinned


def colour_of(trace):
    """Colour of a line or of the fill of a band, as three numbers."""
    known = trace.fillcolor or trace.line.color
    return rgb(known) if known[0] == "#" else tuple(map(int, re.findall(r"\d+", known)[:3]))


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def test_a_fan_is_two_bands_of_one_colour_named_once():
    figure, ends = go.Figure(), [[1.0, 2.0, 3.0, 4.0], [np.nan] * 4, [2.0, 3.0, 4.0, 5.0]]
    for colour in (BLUE, GREY):
        add_fan(figure, [1, 2, 4], ends, colour)
    assert [(band.name, band.showlegend) for band in figure.data] == [
        ("50 and 90 % intervals", first) for first in (True, False, False, False)
    ]
    wide, likely = figure.data[:2]
    assert (list(wide.x), list(wide.y)) == ([1, 4, 4, 1], [4, 5, 2, 1]), "the point without ends is left out"
    assert list(likely.y) == [3, 4, 3, 2]
    assert [colour_of(band) for band in figure.data] == [*[rgb(BLUE)] * 2, *[rgb(GREY)] * 2]


def test_a_band_alone_says_its_level():
    figure = go.Figure()
    add_fan(figure, [1, 2], [[1.0, np.nan, np.nan, 2.0]] * 2, BLUE, wide=95)
    assert [band.name for band in figure.data] == ["95 % intervals"]


@pytest.fixture(scope="module")
def result(tmp_path_factory, result_text):
    path = tmp_path_factory.mktemp("measured") / "bench.json"
    path.write_text(result_text())
    return path


@pytest.fixture
def context(tmp_path, result):
    return Context(ServedFolders.of([], tmp_path, [result]))


def shown_values(context, **changed):
    return {name: control.default_in(context.served) for name, control in what_if.FIELDS.items()} | changed


def test_a_sweep_over_the_load_has_a_fan_for_each_line(result, tmp_path):
    """Points of a measured deployment know their intervals, and which of them is likely."""
    axes = {"workload.arrivals.request_rate": (8.0, 2.0), "hardware.tensor_parallel": (1, 2)}
    swept = simulator.sweep(service(speculation=None, measured=[str(result)]), vary=axes, jobs=1)
    figure = sweep_figure(sweep_data(swept.document))
    lines = {line.name: line for line in figure.data if line.mode == "lines" and line.fill is None}
    assert list(lines)[:2] == ["tensor_parallel=1", "tensor_parallel=2"]
    assert list(lines["tensor_parallel=1"].x) == [2, 8]
    bands = [band for band in figure.data if band.fill and band.xaxis == lines["tensor_parallel=1"].xaxis]
    wide, likely = (one for one in bands if colour_of(one) == colour_of(lines["tensor_parallel=1"]))
    point = next(one for one in swept.document["points"] if one["set"] == {
        "workload.arrivals.request_rate": 2.0, "hardware.tensor_parallel": 1})  # fmt: skip
    low, likely_low, likely_high, high = fan_ends(point, "mean_e2el_ms")
    assert (wide.y[0], wide.y[-1]) == (high, low)
    assert (likely.y[0], likely.y[-1]) == (likely_high, likely_low)
    assert low < likely_low < point["summary"]["mean_e2el_ms"] < likely_high < high
    cell = swept.tables()[0].rows[0][2]
    assert cell.aside
    assert cell.detail.startswith("(")


def test_the_fan_before_measuring_is_grey_behind_the_one_after(context):
    values = shown_values(context)
    assert values["measured"] == ["bench.json"]
    answered = what_if.compute(context, values)["answered"]
    figure = what_if.compute_load(context, values | {"answered": answered})["load"]
    top = [trace for trace in figure.data if trace.yaxis in (None, "y")]
    assert [trace.name for trace in top] == [
        *["50 and 90 % intervals before measuring"] * 2, "without speculation before measuring",
        *["50 and 90 % intervals after measuring"] * 2, "without speculation after measuring",
    ]  # fmt: skip
    assert [rgb(GREY) == colour_of(trace) for trace in top] == [True] * 3 + [False] * 3
    before, after = top[2], top[5]
    assert np.interp(8.0, after.x, after.y) > 1.1 * np.interp(8.0, before.x, before.y), "a measured slower engine"
    assert max(after.x) < max(before.x), "and its capacity is lower"


def test_the_start_page_answers_with_the_results_that_it_was_started_with(context):
    names = {trace.name for trace in start.compute(context, {})["load"].data}
    assert "without speculation after measuring" in names


def test_what_was_learnt_stands_in_the_words_of_the_run(context):
    shown = what_if.compute_tiles(context, shown_values(context))
    [words] = [part.children for part in shown["learnt"]]
    data = {**what_if.what_if_scenario(shown_values(context)), "measured": [str(context.served.given[0])]}
    run, numbers = simulator.simulate(data, intervals=True), re.compile(r"[\d.]+")
    assert numbers.sub("", words) in [numbers.sub("", note) for note in run.document["notes"]]
    assert "decode steps take" in words


def test_results_stay_those_of_the_deployment_for_which_they_were_shown(context):
    what_if.compute_tiles(context, shown_values(context))
    assert pinned(context.served)["bench.json"]["hardware"]["chip"] == "h100-sxm"
    shown = what_if.compute_tiles(context, shown_values(context, chip="a100-sxm-80gb"))
    assert [part.children for part in shown["learnt"]] == [
        "The results are of llama-3.1-8b on 1 x h100-sxm; this deployment is another, and was not measured."
    ]
    plain = what_if.compute_tiles(context, shown_values(context, chip="a100-sxm-80gb", measured=[]))
    assert str(plain["tiles"]) == str(shown["tiles"])
    drafting = what_if.compute_tiles(context, shown_values(context, method="eagle3"))
    assert "decode steps take" in drafting["learnt"][0].children


def encoded(text):
    return "data:application/json;base64," + base64.b64encode(text.encode()).decode()


def sent(name, text):
    return {"name": name, "contents": encoded(text)}


@pytest.fixture
def page(tmp_path):
    context = Context(ServedFolders.of([], tmp_path))
    context.served.session.mkdir()
    data = what_if.what_if_scenario(shown_values(context))
    measured = {"files": [], "deployment": what_if.deployed(data)}
    return context.served, data | {"measured": measured}


def test_dropped_results_are_kept_for_the_session(page, result_text):
    served, data = page
    files = [sent(f"run {streams}.json", result_text(streams=streams)) for streams in (4, 16)]
    assert keep_results(files, data, served) == ["this session/run-4.json", "this session/run-16.json"]
    assert list(served.results()) == ["this session/run-4.json", "this session/run-16.json"]


def trace_of(text):
    return text.replace('"backend": "vllm"', '"backend": "vllm", "trace": "/etc/passwd"')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "hello", "bad.json: no table or block of results"),
        (
            lambda text: text.replace("Llama-3.1-8B", "Qwen3-8B").replace("meta-llama", "Qwen"),
            "another deployment: model",
        ),
        (lambda text: re.sub(r'"(num_prompts|completed)": \d+', r'"\1": 90000', text), "more than 20,000 requests"),
        (lambda text: re.sub(r'"mean_tpot_ms": [\d.]+', '"mean_tpot_ms": 0.001', text), "limit of the chip"),
        (lambda text: text + " " * LARGEST_MEASURED_BYTES, "larger than 8 MiB"),
    ],
    ids=["no result", "another model", "too many requests", "impossible", "too large"],
)
def test_a_bad_result_is_refused_with_the_good_ones_beside_it(page, result_text, change, message):
    served, data = page
    with pytest.raises(ForerunError, match=re.escape(message)):
        keep_results([sent("good.json", result_text()), sent("bad.json", change(result_text()))], data, served)
    assert served.results() == {}
    assert not list(served.session.iterdir())


def test_a_result_names_no_file_of_the_server(page, tmp_path):
    served, data = page
    (tmp_path / "log.csv").write_text("arrival_s,input_tokens,output_tokens\n0,10,10\n")
    table = f"model,max_concurrency,trace,mean_tpot_ms\nllama-3.1-8b,4,{tmp_path / 'log.csv'},9\n"
    with pytest.raises(ForerunError, match="no file of the served folders"):
        keep_results([sent("runs.csv", table)], data, served)


def test_a_run_report_shows_the_intervals_before_and_after(result):
    scenario = service(512, 256, 64, 8.0, speculation=None, measured=[str(result)])
    run = simulator.simulate(scenario, intervals=True)
    figure = run.figure("measuring")
    grey, blue = ([trace for trace in figure.data if colour_of(trace) == rgb(one)] for one in (GREY, BLUE))
    assert [len(grey), len(blue)] == [2, 2]
    tpot = list(figure.data[0].y).index("mean TPOT")
    width = [trace.x[tpot + 1] / trace.x[tpot] for trace in figure.data]
    assert width[0] > width[2] > width[3], "narrower after measuring"
    assert 'id="figure-measuring"' in report_html(run_of_result(run))
    assert "figure-measuring" not in report_html(run_of_result(simulator.simulate(service(), intervals=True)))


def test_a_page_shows_nine_in_ten_after_the_likely_range():
    table = Table(
        "", ("", "mean", "p90"), [["TPOT", Cell("7.5", "6.9..8.7", detail="(6.3..12)"), Cell("9", detail="8..10")]]
    )
    assert '<td>7.5 <span class="aside">6.9..8.7 (6.3..12)</span></td><td>9</td>' in table.html()
    assert "6.9..8.7 (6.3..12)" in table.markdown()
    assert "6.9..8.7 (" not in str(table.brief())


def test_dash_refuses_results_that_cannot_be_read(tmp_path, capsys):
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    assert main(["dash", "--measured", str(bad)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["dash", *["--measured", str(bad)] * (MOST_RESULTS + 1)]) == 2
    assert "at most 10 results" in capsys.readouterr().err
