"""The files of a run: whole or absent, valid JSON, a timeline whose slices never cross."""

import json
import os
from itertools import pairwise
from math import inf, nan
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_requests, make_result, make_steps
from tiny_scenario import tiny_data

from forerun.document import plain_json
from simulator.running.metrics import json_text
from simulator.running.metrics.files import writable_folder, write_text_atomically
from simulator.running.metrics.run_folder import write_run
from simulator.running.metrics.timeline import step_kind, timeline_events, track_numbers, write_timeline
from simulator.running.run import simulate
from simulator.running.scenario import Scenario


@pytest.fixture
def result():
    requests = make_requests(
        arrival_s=[0.0, 0.25, 0.5],
        first_token_s=[1.0, 1.5, nan],
        finished_s=[2.0, 3.0, nan],
        scheduled_s=[0.5, 1.0, nan],
    )
    n = 10
    steps = make_steps(
        np.arange(n) / 3, np.full(n, 1 / 3), replica=np.arange(n) % 2, prefill_tokens=[64] + [0] * (n - 1)
    )
    return make_result(requests, steps=steps)


def no_constants(word):
    raise AssertionError(f"{word} is not JSON")


def test_json_never_contains_nan_or_infinity():
    text = json_text({"a": nan, "b": [inf, -inf, np.float64("nan")], "c": np.int64(3), "d": Path("x")})
    assert json.loads(text, parse_constant=no_constants) == {"a": None, "b": ["inf", "-inf", None], "c": 3, "d": "x"}


def test_what_json_cannot_say_is_refused():
    with pytest.raises(TypeError, match="object"):
        plain_json(object())


def test_run_folder_has_every_file_and_round_trips(tmp_path, result):
    written = write_run(tmp_path / "new" / "run", result, {"summary": {"x": nan}})
    folder = tmp_path / "new" / "run"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["requests.parquet", "steps.parquet", "summary.json", "trace.json"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == plain_json(written)
    assert summary.keys() == {"summary", "notes", "run", "files"}
    assert summary["summary"] == {"x": None}
    requests = pq.read_table(folder / "requests.parquet")
    assert requests["finished_s"].to_pylist() == [2.0, 3.0, None]
    assert requests["ttft_ms"].to_pylist() == [1000.0, 1250.0, None]
    assert requests["failed"].to_pylist() == [False, False, True]
    assert pq.read_table(folder / "steps.parquet").num_rows == 10


def test_a_link_is_followed_not_replaced(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_text_atomically(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_a_pipe_is_written_in_place(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text_atomically(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_an_unused_folder_is_removed_again(tmp_path):
    with pytest.raises(RuntimeError), writable_folder(tmp_path / "run"):
        raise RuntimeError
    assert not (tmp_path / "run").exists()


def test_timeline_is_valid_and_in_microseconds(tmp_path, result):
    path = tmp_path / "trace.json"
    write_timeline(path, result)
    trace = json.loads(path.read_text(), parse_constant=no_constants)
    assert trace["otherData"]["notes"] == []
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C", "b", "e"}
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == 10
    assert slices[0]["ts"] == 0.0
    assert slices[0]["dur"] == pytest.approx(1e6 / 3, abs=1e-3)
    assert slices[0]["name"] == "mixed"
    first = [event for event in events if event["ph"] in "be" and event["id"] == 0]
    assert [(event["ph"], event["name"], event["ts"]) for event in first] == [
        ("b", "request 0", 0.0),
        ("b", "queued", 0.0),
        ("e", "queued", 0.5e6),
        ("b", "prefill", 0.5e6),
        ("e", "prefill", 1e6),
        ("b", "decode", 1e6),
        ("e", "decode", 2e6),
        ("e", "request 0", 2e6),
    ]
    assert {event["id"] for event in events if event["ph"] == "b"} == {0, 1}


def test_a_long_run_is_thinned_out_and_says_so(tmp_path, result):
    write_timeline(tmp_path / "trace.json", result, max_slices=4, max_requests=1)
    remarks = json.loads((tmp_path / "trace.json").read_text())["otherData"]["notes"]
    assert len(remarks) == 2
    assert "10 engine steps" in remarks[0]
    assert "first 1 of 3 requests" in remarks[1]
    events = list(timeline_events(result, max_slices=4, max_requests=1))
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["args"]["steps"] for event in slices] == [3, 2, 3, 2]
    assert sum(event["args"]["output_tokens"] for event in slices) == int(result.steps.output_tokens.sum())
    assert sum(event["args"]["busy_ms"] for event in slices) == pytest.approx(result.steps.seconds.sum() * 1e3)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=30))
def test_slices_of_one_track_never_overlap(pairs):
    pairs.sort()
    start = np.array([a for a, _ in pairs], dtype=np.int64)
    end = np.array([a + b for a, b in pairs], dtype=np.int64)
    tracks = track_numbers(start, end)
    for track in set(tracks):
        rows = [row for row, other in enumerate(tracks) if other == track]
        assert all(start[later] >= end[earlier] for earlier, later in pairwise(rows))
    most = max((sum(1 for a, b in pairs if a <= t < a + b) for t, _ in pairs), default=0)
    assert max(tracks, default=0) == most


@pytest.mark.parametrize(
    ("prefill", "decode", "query", "kind"),
    [(1, 0, 1, "prefill"), (0, 2, 1, "decode"), (0, 2, 4, "verify"), (5, 2, 4, "mixed"), (0, 0, 1, "idle")],
)
def test_step_kinds(prefill, decode, query, kind):
    assert step_kind(prefill, decode, query) == kind


def test_a_timeline_names_pools_and_marks_transfers_and_failures():
    pools = {"prefill": {"role": "prefill"}, "decode": {"role": "decode", "hardware": {"replicas": 2}}}
    faults = {"events": [{"replica": 1, "at_s": 0.1, "down_s": 0.2}]}
    run = simulate(Scenario.model_validate(tiny_data(num_requests=20) | {"pools": pools, "faults": faults}))
    events = list(timeline_events(run))
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named >= {"replica 0 (prefill)", "replica 2 (decode)"}
    down = [(event["ph"], event["pid"], event["ts"]) for event in events if event["name"] == "down"]
    assert down == [("b", 3, pytest.approx(0.1e6)), ("e", 3, pytest.approx(0.3e6))]
    moved = [event for event in events if event["name"] == "KV transfer"]
    assert len(moved) == 2 * run.transfers.transfers > 0
    seconds = sum(event["ts"] * (1 if event["ph"] == "e" else -1) for event in moved) / 1e6
    assert seconds == pytest.approx(run.transfers.mean_s * run.transfers.transfers, abs=1e-7 * len(moved))
