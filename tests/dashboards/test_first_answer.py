"""A capacity plan of a log answers from its busiest requests first, and marks what is old."""

import sys
from subprocess import run
from typing import ClassVar

import pytest

import traces
from dashboards.app.jobs import FIRST
from dashboards.app.page import Context
from dashboards.app.pages.capacity import CHARTS, _state_note, compute
from dashboards.app.plans import FIRST_ANSWER, PlanTask
from dashboards.app.served import ServedFolders
from forerun.document import json_text
from simulator.studies.plan import command
from simulator.workload.generate import generate_requests
from simulator.workload.workload_config import WorkloadConfig


class Saved:
    document: ClassVar = {}

    def save(self, folder):
        folder.joinpath("plan.json").write_text("{}")


@pytest.mark.parametrize(("rate", "requests"), [(None, [FIRST_ANSWER["requests"], None]), (4.0, [None])])
def test_only_a_log_is_planned_twice(rate, requests, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(command, "plan", lambda scenario, **options: (calls.append(options), Saved())[1])
    PlanTask(scenario={}, rate=rate, growth=1.0, slo={}, chips=["h100-sxm"])(tmp_path, lambda *progress: None)
    assert [options.get("requests") for options in calls] == requests
    assert (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(("state", "named"), [("running", "old-plan"), (FIRST, "first-answer"), (None, None)])
def test_a_plan_that_is_not_the_last_word_says_so(state, named):
    note = _state_note(state)
    assert (note is None) if named is None else note.className == named


def test_a_first_answer_has_no_empty_plane_no_path_of_the_server_and_nothing_that_was_not_tried(tmp_path):
    context = Context(ServedFolders.of([], tmp_path))
    log = context.served.session / "logs" / "log.csv"
    log.parent.mkdir(parents=True)
    rows = "".join(f"{t / 2},{300 + t % 50},40\n" for t in range(1200))
    log.write_text("timestamp,input_tokens,output_tokens\n" + rows)
    data = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "workload": {"trace": str(log)}}
    options = FIRST_ANSWER | {"vary": {"hardware.tensor_parallel": [1], "engine.max_num_batched_tokens": [2048]}}
    result = command.plan(data, slo={"p99_ttft_ms": 1000, "p99_tpot_ms": 60}, **options)
    folder = context.served.session / "plan"
    folder.mkdir()
    (folder / "plan.json").write_text(json_text(result.document))
    chart = next(iter(CHARTS))
    shown = compute(context, {"plan": "this session/plan", "chart": chart, "job": {"state": FIRST}})
    assert shown["pareto"] is None
    texts = str(shown)
    assert "its busiest 1,000 requests" in texts
    assert str(tmp_path) not in texts
    assert "not tried" not in texts


def test_a_log_is_read_once_whole_and_once_for_its_window(tmp_path, monkeypatch):
    log = tmp_path / "log.csv"
    log.write_text("timestamp,input_tokens,output_tokens\n" + "".join(f"{t / 2},{300 + t},40\n" for t in range(60)))
    reads = []

    def read(*arguments, **options):
        reads.append(options["limit"])
        return read_requests(*arguments, **options)

    read_requests = traces.read_requests
    monkeypatch.setattr(traces, "read_requests", read)
    whole = WorkloadConfig(trace=str(log))
    window = WorkloadConfig(trace=str(log), num_requests=20, skip_requests=10)
    for workload in (whole, window, whole, window):
        generate_requests(workload, 0)
    assert reads == [None, 30]


def test_a_background_plan_starts_without_dash_and_plotly():
    code = "import dashboards.app.plans, simulator.studies.plan.command, sys; "
    code += "sys.exit(not {'dash', 'dash_mantine_components', 'plotly'}.isdisjoint(sys.modules))"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
