"""Replays of benchmark results and engine steps in the app: found by content, shown as they were written, made anew."""

import json
import multiprocessing

import plotly.graph_objects as go
import pytest

pytest.importorskip("dash")

from dashboards.app.controls import values_of
from dashboards.app.page import Context
from dashboards.app.pages import replay
from dashboards.app.pages.replay import PAGE, VIEWS, compute
from dashboards.app.replays import record, replay_task
from dashboards.app.served import ServedFolders
from dashboards.recorded_errors import ErrorRow, read_errors
from forerun.errors import ForerunError
from validation.checks import write_errors

RUNS = """run,model,chip,framework,tensor_parallel,request_rate,process,input_tokens,output_tokens,num_requests,\
mean_ttft_ms,mean_tpot_ms,output_throughput
slow,llama-3.1-8b,h100-sxm,vllm,1,2,poisson,128,32,20,20,8,60
fast,llama-3.1-8b,h100-sxm,vllm,1,8,poisson,128,32,20,25,9,240
"""
STEPS = "decode_seqs,decode_kv_tokens,measured_s\n4,2000,0.01\n64,64000,0.02\n"


@pytest.fixture
def context(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "bench.csv").write_text(RUNS)
    (folder / "steps.csv").write_text(STEPS)
    (folder / "notes.csv").write_text("a,b\n1,2\n")
    (folder / "plan.json").write_text("{}")
    session = tmp_path / "session"
    session.mkdir()
    shared = Context(ServedFolders.of([folder], session))
    yield shared
    shared.jobs.close()


def made(context, label):
    task = replay_task(context.served, label, "llama-3.1-8b", "h100-sxm", "vllm", 1)
    message = []
    task(context.served.session / "made", lambda done, total: message.append((done, total)))
    return message


def shown(context):
    return compute(context, {"view": VIEWS[2], "replay": "this session/made"})


def figures_in(parts):
    return {name: part for name, part in parts.items() if isinstance(part, go.Figure)}


def test_measured_files_are_detected_by_content(context):
    assert {label: steps for label, (_, steps) in context.served.measured().items()} == {
        "bench.csv": False,
        "steps.csv": True,
    }


def test_a_replay_of_runs_shows_every_measured_metric(context):
    assert made(context, "bench.csv")[-1] == (2, 2)
    figures = figures_in(shown(context))
    assert set(figures) == {"mean_ttft_ms", "mean_tpot_ms", "output_throughput"}
    points = figures["mean_tpot_ms"].data[0]
    assert list(points.x) == [8.0, 9.0]
    document = context.served.replay("this session/made")
    assert list(points.y) == [run["predicted"]["mean_tpot_ms"] for run in document["runs"]]
    assert document["sources"] == ["bench.csv"]


def test_a_replay_of_steps_shows_every_step(context):
    made(context, "steps.csv")
    parts = shown(context)
    assert set(figures_in(parts)) == {"step_ms"}
    assert list(parts["step_ms"].data[0].x) == [10.0, 20.0]
    assert parts["basis"] is not None


@pytest.mark.parametrize("label", ["../served/bench.csv", "/etc/passwd", "notes.csv", ""])
def test_only_served_files_are_replayed(context, label):
    with pytest.raises(ForerunError, match="no measured runs or steps"):
        replay_task(context.served, label, "llama-3.1-8b", "h100-sxm", "vllm", 1)


@pytest.mark.parametrize(("text", "message"), [("[]", "not what forerun replay"), ("{", "not JSON")])
def test_a_faulty_replay_is_one_sentence(context, text, message):
    folder = context.served.session / "made"
    folder.mkdir(parents=True)
    (folder / "replay.json").write_text(text)
    with pytest.raises(ForerunError, match=message):
        shown(context)
    parts = compute(context, {"view": VIEWS[2], "replay": None})
    assert "no replay here yet" in str(parts["lead"])
    assert figures_in(parts) == {}


def test_a_background_task_may_use_processes_of_its_own(context):
    task = replay_task(context.served, "bench.csv", "llama-3.1-8b", "h100-sxm", "vllm", 1)
    token = context.jobs.start(task, "replay bench", context.served.session)
    while (view := context.jobs.look(token)).state == "running":
        multiprocessing.connection.wait([], 0.05)
    assert view.message == ""
    assert len(json.loads((view.folder / "replay.json").read_text())["runs"]) == 2


def test_replay_opens_on_the_errors_on_record_and_names_the_worst(context):
    values, _ = values_of(list(PAGE.fields.values()), None, context.served)
    assert values["view"] == VIEWS[0]
    shown = compute(context, values)
    rows = record()
    dots = sum(len(trace.x) for trace in shown["record"].data[:-1])
    assert dots == len(rows) > 100
    tpot = max((row for row in rows if row.metric == "mean_tpot_ms"), key=lambda row: row.mape)
    assert tpot.name in str(shown["tables"])
    assert f"worst {tpot.mape:.0f} %" in str(shown["tiles"])
    assert f"Of {len(rows)} comparisons" in str(shown["lead"])


def test_without_a_record_the_page_opens_on_kernels(context, monkeypatch):
    monkeypatch.setattr(replay.replays, "record", list)
    values, _ = values_of(list(PAGE.fields.values()), None, context.served)
    assert values["view"] == VIEWS[1]


def test_a_check_is_a_page_of_its_own(tmp_path):
    row = ErrorRow(
        "requests", "a <table>", "mean_ttft_ms", 3, 12.5, 11.0, -2.0, "datasheet", "nothing", False, "2026-01-01"
    )
    write_errors(tmp_path / "out", [row])
    page = (tmp_path / "out" / "report.html").read_text()
    assert read_errors(tmp_path / "out" / "errors.json") == [row]
    assert "a &lt;table&gt; (datasheet, 3 measurements)" in page
    assert "One comparison with measurements, off by 12.5 %" in page
    assert len(page.encode()) < 1.5e6
