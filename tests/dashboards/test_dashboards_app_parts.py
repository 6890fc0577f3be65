"""What the app is made of, without a browser: served folders, uploads, addresses, downloads, background runs."""

import base64
import csv
import io
import json
import re
import socket
import time

import numpy as np
import plotly.graph_objects as go
import pytest
from plain_scenario import plain_scenario

pytest.importorskip("dash")

from dashboards.app.controls import (
    DRAFT_TOKENS,
    ChoiceField,
    Number,
    Several,
    checked_fields,
    nearest,
    number_in,
    values_of,
)
from dashboards.app.downloads import figure_csv, figure_html, values
from dashboards.app.jobs import Jobs, RunTask
from dashboards.app.messages import FAULT, sentence
from dashboards.app.page import Context
from dashboards.app.pages import PAGES, capacity, traffic
from dashboards.app.parts import spec
from dashboards.app.replays import FITTED, replayed
from dashboards.app.served import LARGEST_LOG_BYTES, SAMPLE_CHIP, SAMPLE_TRACE, ServedFolders
from dashboards.app.server import check_free, create_app, is_loopback
from dashboards.app.uploads import LARGEST_UPLOAD_BYTES, MOST_KEPT, keep_log, uploaded_scenario, uploaded_text
from forerun.errors import ForerunError
from simulator.cli import main
from simulator.running.build import build_replica

GOOD = """
model: llama-3.1-8b
hardware: {chip: h100-sxm}
workload: {arrivals: {process: poisson, request_rate: 4}, input_tokens: 128, output_tokens: 16, num_requests: 20}
"""


@pytest.fixture
def served(tmp_path, run_folder):
    (tmp_path / "session").mkdir()
    return ServedFolders.of([run_folder.parent], tmp_path / "session")


def encoded(data: bytes) -> str:
    return "data:application/x-yaml;base64," + base64.b64encode(data).decode()


def test_what_if_and_speculation_show_the_intervals_of_run_and_tune():
    from dashboards.app.pages import speculation, what_if
    from simulator.running.run import simulate
    from simulator.running.scenario import scenario_from
    from simulator.studies.steady_state.estimate import estimate
    from simulator.studies.steady_state.ranges import ranged_estimate

    values = {control.name: control.default for control in what_if.CONTROLS} | {"requests": "200"}
    scenario = scenario_from(what_if.what_if_scenario(values), "test")
    run, answer = simulate(scenario, intervals=True).document, estimate(scenario)
    ranged = ranged_estimate(what_if.what_if_scenario(values), 8.0)
    (low, high), likely = (run[name]["mean_tpot_ms"] for name in ("intervals", "likely"))
    value = run["summary"]["mean_tpot_ms"]
    assert ranged.factors["mean_tpot_ms"] == [low / value, *(end / value for end in likely), high / value]
    assert (ranged.answer, ranged.learnt) == (answer, False)
    before, after = (what_if._tiles(answer, one, ranged.factors)[1].detail for one in (None, run))
    assert re.fullmatch(r"likely [\d.]+\.\.[\d.]+, nine in ten [\d.]+\.\.[\d.]+, not simulated yet", before)
    assert f"likely {likely[0]:.3g}..{likely[1]:.3g}, nine in ten {low:.3g}..{high:.3g}" in after
    drafting = {control.name: getattr(control, "default", None) for control in speculation.PAGE.controls
                if hasattr(control, "name")}  # fmt: skip
    text = str(speculation.compute(None, drafting)["sentence"])
    assert "90 % interval" in text


def test_runs_are_detected_by_label_and_nothing_else_is_readable(served, run_folder):
    assert served.runs() == {run_folder.name: run_folder.resolve()}
    assert served.run(run_folder.name).basis == "datasheet"
    for label in ("../one", str(run_folder), "", "one/", "/etc"):
        with pytest.raises(ForerunError, match="no run"):
            served.run(label)
    with pytest.raises(ForerunError, match="no kernel trace"):
        served.trace("/etc/passwd")


def test_only_kernel_traces_are_offered(served, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "kernels.csv").write_text("op,dtype,m,n,k,measured_s\ngemm,bf16,1,2,3,1e-6\n")
    (tmp_path / "more" / "notes.csv").write_text("a,b\n1,2\n")
    (tmp_path / "more" / "link.csv").symlink_to("/etc/passwd")
    result = ServedFolders.of([tmp_path / "more"], tmp_path / "session").traces()
    assert list(result) == [SAMPLE_TRACE, "kernels.csv"]
    assert list(served.traces()) == [SAMPLE_TRACE]


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ForerunError, match="no such folder"):
        ServedFolders.of([tmp_path / "absent"], tmp_path)


def test_upload_of_a_scenario(served):
    scenario = uploaded_scenario(uploaded_text(encoded(GOOD.encode()), "good.yaml"), "good.yaml", served)
    assert scenario.workload.num_requests == 20


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD.replace("llama-3.1-8b", "/etc/passwd"), "model: '/etc/passwd' is no file of the served folders"),
        (GOOD.replace("h100-sxm", "../../secret.yaml"), r"hardware\.chip: .* no file of the served"),
        (GOOD.replace("llama-3.1-8b", "~/model"), "model: .* no file of the served"),
        ("model: x\nhardware: {chip: h100-sxm}\nworkload: {trace: pyproject.toml}", r"workload\.trace: .* no file"),
        (
            GOOD + "speculation: {method: ngram, num_speculative_tokens: 2, acceptance: {log: /proc/self/environ}}",
            "log",
        ),
        (GOOD.replace("input_tokens: 128", "input_tokens: {distribution: empirical, file: /etc/hosts}"), "file"),
        (GOOD.replace("llama", "lama"), "did you mean 'llama-3.1-8b'"),
        ("model: llama-3.1-8b\na: &x [*x]", "alias"),
        ("[" * 16_000, "nested too deeply"),
        ("model: !!python/object/apply:os.system [ls]", "upload.yaml:1: !!python/object/apply:os.system is no tag of"),
        ("model: [", "upload.yaml:"),
        ("- 1", "a scenario is a mapping"),
        (GOOD.replace("num_requests: 20", "num_requests: 99000000"), "at most 200,000"),
        (GOOD.replace("input_tokens: 128", "input_tokens: 10000000"), r"workload\.input_tokens: at most 2,000,000"),
        (
            GOOD.replace("input_tokens: 128", "input_tokens: {distribution: uniform, min: 1, max: 90000000}"),
            r"workload\.input_tokens\.max: at most 2,000,000 here \(got 90,000,000\)",
        ),
        (
            GOOD.replace("16, num", "16, sessions: {turns: 2, think_time_s: 1, system_prompt_tokens: 1000000000}, num"),
            r"workload\.sessions\.system_prompt_tokens: at most 2,000,000",
        ),
        (GOOD.replace("h100-sxm}", "h100-sxm, replicas: 9999}"), r"hardware\.replicas: at most 1,024"),
        (
            GOOD + "pools: {a: {hardware: {replicas: 5000}}}",
            r"pools\.a\.hardware\.replicas: at most 1,024",
        ),
    ],
)
def test_upload_is_refused_in_one_sentence(served, monkeypatch, project_root, text, complaint):
    monkeypatch.chdir(project_root)
    with pytest.raises(ForerunError, match=complaint) as refused:
        build_replica(uploaded_scenario(text, "upload.yaml", served), 0)
    assert "\n" not in sentence(refused.value)


def test_upload_may_name_files_of_the_served_folders(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "lengths.txt").write_text("1 2 3")
    (tmp_path / "outside.txt").write_text("1 2 3")
    (tmp_path / "served" / "link.txt").symlink_to(tmp_path / "outside.txt")
    served = ServedFolders.of([tmp_path / "served"], tmp_path)
    text = GOOD.replace("input_tokens: 128", "input_tokens: {distribution: empirical, file: ./NAME}")
    scenario = uploaded_scenario(text.replace("NAME", "lengths.txt"), "x.yaml", served)
    assert scenario.workload.input_tokens.file == str((tmp_path / "served" / "lengths.txt").resolve())
    for name in ("link.txt", "../outside.txt", "absent.txt"):
        with pytest.raises(ForerunError, match="no file of the served folders"):
            uploaded_scenario(text.replace("NAME", name), "x.yaml", served)


def test_upload_must_be_small_text():
    with pytest.raises(ForerunError, match="larger than"):
        uploaded_text(encoded(b"x" * (LARGEST_UPLOAD_BYTES + 10)), "x.yaml")
    with pytest.raises(ForerunError, match="not a text file"):
        uploaded_text(encoded(b"\xff\xfe\x00\x80"), "x.yml")
    with pytest.raises(ForerunError, match="not a text file"):
        uploaded_text("data:,$$$", "x.json")
    with pytest.raises(ForerunError, match=r"my\.csv: a scenario is YAML or JSON"):
        uploaded_text(encoded(b"a,b"), "my.csv")


CONTROLS = (
    ChoiceField("chip", "Chip", options=("h100-sxm", "l4"), default="l4"),
    Several("chips", "Chips", options=("h100-sxm", "l4"), defaults=("l4",), most=2),
    Number("batch", "Batch", stops=(1, 16, 512), default=16, low=1, high=512),
    Number("rate", "Load", stops=(1, 2), default=2, low=0.5, high=9, whole=False),
    ChoiceField("run", "Run", options=lambda served: list(served.runs())),
)


def test_an_address_is_honoured_or_says_what_is_shown_instead(served):
    values, changed = values_of(CONTROLS, "?chip=h100-sxm&batch=226&rate=1.25&chips=l4,h100-sxm", served)
    assert values == {"chip": "h100-sxm", "chips": ["l4", "h100-sxm"], "batch": 226, "rate": 1.25, "run": "one"}
    assert changed == []
    assert values_of(CONTROLS, None, served)[1] == []


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("chip=h10-sxm", "Chip: 'h10-sxm' is not offered; did you mean 'h100-sxm'?; shown is l4."),
        ("batch=1000", "Batch: '1000' is not a whole number from 1 to 512; shown is 16."),
        ("batch=2.5", "Batch: '2.5' is not a whole number from 1 to 512; shown is 16."),
        ("batch=many", "Batch: 'many' is not a whole number from 1 to 512; shown is 16."),
        ("rate=nan", "Load: 'nan' is not a number from 0.5 to 9; shown is 2."),
        ("rate=%00", "Load: '\\x00' is not a number from 0.5 to 9; shown is 2."),
        ("rate=2,5", "Load: '2,5' is not a number from 0.5 to 9; decimals have a point, as in 2.5; shown is 2."),
        ("rate=1e9", "Load: '1e9' is not a number from 0.5 to 9; shown is 2."),
        ("chips=l4,x", "Chips: 'x' is not offered; shown is l4."),
        ("chips=", "Chips: choose 1 to 2; shown is l4."),
        ("run=../../etc", "Run: '../../etc' is not offered; shown is one."),
        ("bach=3", "'bach' is nothing that this page knows; did you mean 'batch'?."),
    ],
)
def test_what_of_an_address_cannot_be_honoured_is_stated(served, search, message):
    values, changed = values_of(CONTROLS, "?" + search, served)
    assert values == {"chip": "l4", "chips": ["l4"], "batch": 16, "rate": 2, "run": "one"}
    assert changed == ([message] if search != "chips=" else [])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_no_control_takes_what_it_does_not_offer(page, served):
    """What a browser sends passes the same check as what an address says."""
    for name, control in page.fields.items():
        shown = control.default_in(served)
        if shown is not None:
            assert checked_fields(page.fields, {name: shown}, served) == {name: shown}
        for forged in ("/etc/passwd", 10**9, -1.0, float("nan"), {"a": 1}, ["/etc/passwd"], [[]], True):
            with pytest.raises(ForerunError):
                control.checked(forged, served)


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), (" 1,000 ", 1000), ("1,234,567.5", 1234567.5), ("1.5e1", 15), ("-3", -3), (".5", 0.5)],
)
def test_numbers_are_read_as_they_are_written(text, value):
    assert number_in(text) == value


@pytest.mark.parametrize("text", ["2,5", "1,00", "1,0000", "1.000,5", "", "ten", "1 000", "--3"])
def test_what_is_no_number_is_not_made_one(text):
    with pytest.raises(ValueError, match="could not convert"):
        number_in(text)


def test_the_slider_is_at_the_stop_nearest_to_the_number():
    assert [DRAFT_TOKENS[nearest(DRAFT_TOKENS, value)] for value in (0, 3, 9, 11.1, 64)] == [1, 3, 8, 12, 16]


def test_csv_has_every_point_and_no_formulas():
    figure = go.Figure(go.Scatter(x=np.array([1.5, 2.5]), y=[3, 4], name="=cmd()"))
    figure.add_trace(go.Heatmap(x=["a", "b"], y=[1], z=np.array([[5.0, 6.0]])))
    rows = list(csv.reader(io.StringIO(figure_csv(json.loads(json.dumps(spec(figure)))))))
    assert rows[0] == ["trace", "x", "y", "z"]
    assert rows[1:3] == [["'=cmd()", "1.5", "3", ""], ["'=cmd()", "2.5", "4", ""]]
    assert rows[3:] == [["trace 1", "a", "1", "5.0"], ["trace 1", "b", "1", "6.0"]]
    broken = figure_csv({"data": [{"name": "\n=cmd()", "x": [1], "y": [2]}]})
    assert list(csv.reader(io.StringIO(broken)))[1][0] == "'\n=cmd()"


def test_packed_columns_are_unpacked():
    packed = {"dtype": "f8", "bdata": base64.b64encode(np.array([1.0, 2.0]).tobytes()).decode()}
    assert values(packed) == [1.0, 2.0]
    assert values({**packed, "shape": "2, 1"}) == [[1.0], [2.0]]
    assert values({"dtype": "O", "bdata": ""}) == []


def test_saved_page_needs_no_network():
    text = figure_html(spec(go.Figure(go.Bar(x=["a"], y=[1]), layout={"title": {"text": "<b>Bars</b>"}})))
    assert "Bars · Forerun" in text
    assert 'src="http' not in text


def test_faults_are_not_shown(caplog):
    assert sentence(ValueError("secret")) == FAULT
    assert "secret" in caplog.text
    assert sentence(ForerunError("/srv/data/x.yaml: bad")) == "x.yaml: bad"


def waited(jobs, token, states, seconds=600):
    end = time.monotonic() + seconds
    while (view := jobs.look(token)).state not in states and time.monotonic() < end:
        time.sleep(0.05)
    return view


def long_run():
    """A scenario that takes minutes."""
    return plain_scenario("llama-3.1-8b", "h100-sxm", 64, 4000, 20_000, engine={"stepping": "exact-steps"})


def test_one_session_does_not_take_the_runs_of_another(tmp_path):
    jobs, task = Jobs(most_running=1, most_together=2), RunTask(long_run())
    one, other, third = (tmp_path / name for name in ("one", "other", "third"))
    tokens = [jobs.start(task, "run", one), jobs.start(task, "run", other)]
    with pytest.raises(ForerunError, match="1 runs are under way"):
        jobs.start(task, "run", one)
    with pytest.raises(ForerunError, match="2 runs of all browsers"):
        jobs.start(task, "run", third)
    for token in tokens:
        jobs.cancel(token)
    jobs.cancel(jobs.start(task, "run", third))


def test_a_waiting_process_takes_the_next_task(tmp_path):
    jobs = Jobs()
    jobs.warm()
    waiting = jobs._warm[0]
    jobs.warm()
    assert jobs._warm[0] is waiting, "one waits already"
    token = jobs.start(RunTask(long_run()), "run", tmp_path)
    assert jobs.look(token).process is waiting
    assert jobs._warm is None
    jobs.warm()
    jobs.close()
    assert not waiting.is_alive()
    assert jobs._warm is None


def test_background_run_finishes_is_cancelled_and_is_bounded(tmp_path):
    jobs = Jobs(most_running=1)
    long = long_run()
    token = jobs.start(RunTask(long), "long/../run", tmp_path)
    assert waited(jobs, token, ("running",)).folder.parent == tmp_path
    with pytest.raises(ForerunError, match="under way"):
        jobs.start(RunTask(long), "second", tmp_path)
    jobs.cancel(token)
    assert jobs.look(token).state == "cancelled"
    assert list(tmp_path.iterdir()) == []
    small = long.with_values({"workload.num_requests": 3, "workload.output_tokens": 4})
    view = waited(jobs, jobs.start(RunTask(small), "small", tmp_path), ("finished", "failed"))
    assert view.state == "finished", view.message
    assert json.loads((view.folder / "summary.json").read_text())["summary"]["completed"] == 3
    bad = small.with_values({"model": "llama-3.1-405b"})
    view = waited(jobs, jobs.start(RunTask(bad), "bad", tmp_path), ("finished", "failed"))
    assert view.state == "failed"
    assert "fit" in view.message or "memory" in view.message
    assert jobs.look("no such run") is None


def test_a_run_that_no_page_follows_is_ended(tmp_path, monkeypatch):
    from dashboards.app import jobs as module

    monkeypatch.setattr(module, "UNSEEN_S", 1.0)
    monkeypatch.setattr(module, "WATCH_S", 0.1)
    jobs = Jobs()
    followed, left = (jobs.start(RunTask(long_run()), name, tmp_path / name) for name in ("followed", "left"))
    process = jobs.look(left).process
    end = time.monotonic() + 60.0
    while process.is_alive() and time.monotonic() < end:
        assert jobs.look(followed).state == "running"
        time.sleep(0.05)
    assert jobs.look(left).state == "cancelled"
    jobs.close()


def test_server_answers_under_its_own_names_only(tmp_path):
    app, _ = create_app([], tmp_path)
    client = app.server.test_client()
    assert client.get("/", headers={"Host": "127.0.0.1:8050"}).status_code == 200
    assert client.get("/", headers={"Host": "localhost"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    arguments = {"Host": "localhost:8050", "Origin": "http://evil.example"}
    assert client.post("/_dash-update-component", json={}, headers=arguments).status_code == 403
    assert client.get("/assets/../server.py", headers={"Host": "localhost"}).status_code == 404
    body = client.get("/", headers={"Host": "localhost"}).text
    assert 'src="http' not in body
    assert 'href="http' not in body


def test_loopback_is_known():
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_capacity_page_says_what_the_plan_says(tmp_path, write_plan):
    folder = write_plan(tmp_path / "served" / "azure")
    document = json.loads((folder / "plan.json").read_text())
    measured = next(row["load_points"] for row in document["candidates"] if row.get("load_points"))
    measured.append({name: 1.5 * value if name != "meets_slo" else value for name, value in measured[-1].items()})
    (folder / "plan.json").write_text(json.dumps(document))
    (tmp_path / "served" / "broken").mkdir()
    (tmp_path / "served" / "broken" / "plan.json").write_text("{}")
    context = Context(ServedFolders.of([tmp_path / "served"], tmp_path / "session"))
    assert list(context.served.plans()) == ["azure", "broken"]
    by_speed, by_cost, _ = capacity.CHARTS
    shown = capacity.compute(context, {"plan": "azure", "chart": by_speed})
    assert document["conclusion"] in str(shown["lead"])
    points = [point for row in document["candidates"] for point in row.get("load_points", ())]
    assert len(points) >= 3
    drawn = sorted(y for trace in shown["pareto"].data if "answer" not in trace.name for y in trace.y)
    assert drawn == sorted(point["output_tokens_per_s_per_chip"] for point in points)
    costs = capacity.compute(context, {"plan": "azure", "chart": by_cost})["pareto"]
    drawn = sorted(y for trace in costs.data if "answer" not in trace.name for y in trace.y)
    assert drawn == sorted(point["usd_per_million_output_tokens"] for point in points)
    assert shown["hours"] is None
    hour = {"clock": None, "request_rate": 2.0, "usd": 3.0, "fixed_usd": 6.0}
    document["hours"] = [hour | {"start_s": 0.0, "replicas": 1}, hour | {"start_s": 3600.0, "replicas": 2, "usd": 6.0}]
    (folder / "plan.json").write_text(json.dumps(document))
    by_hour = capacity.compute(context, {"plan": "azure", "chart": by_speed})["hours"]
    assert list(by_hour.data[1].y) == [1, 2]
    assert "$3,285 a month; dashed: 1 fixed, $4,380 a month" in by_hour.layout.title.text
    nothing = capacity.compute(context, {"plan": None})
    assert set(nothing) == {"lead", "basis"}
    assert "basis: nothing yet" in str(nothing["basis"])
    for label, complaint in (("../azure", "no capacity plan"), ("broken", "is not what forerun plan")):
        with pytest.raises(ForerunError, match=complaint):
            capacity.compute(context, {"plan": label, "chart": by_speed})


PLAN = {"model": "qwen3-8b", "chips": ["l4", "h100-sxm"], "rate": 10.5, "growth": 3, "ttft": 120, "tpot": 9.5,
        "prompt": 226, "output": 32, "at": "p99", "log": capacity.NO_LOG, "columns": "", "prices": ""}  # fmt: skip
LOG = "ts,prompt_toks,gen\n" + "".join(f"{i * 0.25},{100 + i},{20 + i % 7}\n" for i in range(200))


def test_capacity_controls_make_a_plan_of_their_values(served):
    requested = capacity.plan_task(PLAN, served)
    assert requested.chips == ("l4", "h100-sxm")
    assert (requested.rate, requested.growth) == (10.5, 3.0)
    assert requested.slo == ("p99_ttft_ms=120", "p99_tpot_ms=9.5")
    assert requested.scenario.workload.input_tokens.mean == 226
    assert requested.scenario.prices is None


def test_a_plan_of_an_uploaded_log_has_its_requests_and_prices_of_ones_own(served):
    label = keep_log(encoded(LOG.encode()), "../my log.csv", served)
    assert label == "this session/my-log.csv"
    custom = {"log": label, "columns": "output=gen", "at": "p95", "prices": "l4=0.5, h100-sxm=2"}
    requested = capacity.plan_task({**PLAN, **custom}, served)
    assert (requested.rate, requested.slo) == (None, ("p95_ttft_ms=120", "p95_tpot_ms=9.5"))
    assert requested.scenario.workload.trace == str(served.session / "logs" / "my-log.csv")
    assert requested.scenario.prices.usd_per_chip_hour == {"l4": 0.5, "h100-sxm": 2.0}
    for text, message in (
        ("l40=1", "'l40' is none of the chips to choose from"),
        ("l4=x", "'x' is no"),
    ):
        with pytest.raises(ForerunError, match=message):
            capacity.plan_task({**PLAN, "prices": text}, served)
    with pytest.raises(ForerunError, match="no log of requests"):
        capacity.plan_task({**PLAN, "log": "this session/../secret.csv"}, served)


def test_an_uploaded_log_shows_what_it_holds_and_leads_to_a_plan(served, tmp_path):
    context = Context(ServedFolders.of([], tmp_path / "session"))
    label = keep_log(encoded(LOG.encode()), "mine.csv", context.served)
    shown = traffic.compute(context, {"log": label, "columns": ""})
    assert "200 requests" in str(shown["lead"])
    assert "guessed from the columns' names" in str(shown["basis"])
    assert "/capacity?log=this+session%2Fmine.csv" in str(shown["onward"])
    assert "/what-if?rate=4&prompt=200&output=23" in str(shown["onward"])
    rates, prompts, answers = shown["traffic"].data
    span = 199 * 0.25
    assert np.sum(rates.y) * span / len(rates.y) == pytest.approx(200)
    assert np.sum(prompts.y) == pytest.approx(1)
    assert np.sum(answers.y) == pytest.approx(1)
    with pytest.raises(ForerunError, match="'Columns of the log' beside this"):
        traffic.compute(context, {"log": label, "columns": "input=nothing"})


def test_a_log_that_cannot_be_taken_is_refused_in_words(served):
    for data, name, message in (
        (b"x" * (LARGEST_LOG_BYTES + 10), "big.csv", "larger than 16 MiB"),
        (b"PAR1", "log.parquet", "put a compressed or Parquet file into a folder"),
        (b"\xff\xfe\x00", "log.csv", "not a text file"),
    ):
        with pytest.raises(ForerunError, match=message) as refused:
            keep_log(encoded(data), name, served)
        assert "\n" not in sentence(refused.value)
    for number in range(MOST_KEPT + 3):
        keep_log(encoded(LOG.encode()), f"{number}.csv", served)
    assert len(list((served.session / "logs").iterdir())) == MOST_KEPT


def test_windows_of_a_generator_are_no_log_of_requests(served, tmp_path):
    """A line of them may stand for any number of requests."""
    context = Context(ServedFolders.of([], tmp_path / "session"))
    label = keep_log(encoded(b"0.0,1e6,1.0,Gamma,1.0,1.0\n600.0,1e6,1.0,Gamma,1.0,1.0\n"), "w.csv", context.served)
    with pytest.raises(ForerunError, match="is of format servegen"):
        traffic.compute(context, {"log": label, "columns": ""})


def test_a_trace_is_fitted_and_scored_on_the_rest(served, run_folder, tmp_path):
    """On the shipped sample's prompts: all of it is fitted by the documentation's own commands."""
    head, *rows = served.traces()[SAMPLE_TRACE].read_text(encoding="utf-8").splitlines(keepends=True)
    brought = run_folder.parent / "prompts.csv"
    brought.write_text(head + "".join(row for row in rows if "attention_prefill" in row), encoding="utf-8")
    served = ServedFolders.of([brought.parent], tmp_path / "another session")
    plain = replayed(served, brought.name, SAMPLE_CHIP, "generic")
    fitted = replayed(served, brought.name, SAMPLE_CHIP, "generic", layer=FITTED)
    assert len(fitted.rows) < len(plain.rows)
    assert fitted.overall.mape < plain.overall.mape / 2
    assert (plain.basis, fitted.basis) == ("datasheet", "calibrated")
    with pytest.raises(ForerunError, match="no row of"):
        replayed(served, SAMPLE_TRACE, SAMPLE_CHIP, "generic", device="H100")


def test_an_address_that_is_taken_is_refused_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ForerunError, match="cannot be served"):
        check_free("127.0.0.1", taken.getsockname()[1])


def test_others_are_let_in_only_when_requested(capsys):
    assert main(["dash", "--host", "0.0.0.0"]) == 2
    assert "add --expose if you mean it" in capsys.readouterr().err
    assert main(["dash", "no/such/folder", "--port", "0"]) == 2
    assert "no such folder to serve" in capsys.readouterr().err
