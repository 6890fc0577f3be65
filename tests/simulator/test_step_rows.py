"""A run that keeps no step records says the same about itself."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from scenario_parts import burst, drafts, h100_data, on_h100, poisson, uniform

import simulator.running.run
import simulator.running.step_rows
import simulator.serving.log
from simulator.running.metrics import run_document
from simulator.running.run import simulate
from simulator.running.step_rows import joined, summed

SPECULATION = drafts("ngram", 3, 0.6)


def scenario(**changes):
    workload = poisson(60, 600, uniform(20, 600), uniform(2, 200))
    three = {"model": "llama-3.2-1b", "hardware": {"chip": "h100-sxm", "replicas": 3}}
    return on_h100(workload, **three | changes)


@pytest.mark.parametrize("changes", [{}, {"engine": {"stepping": "exact-steps"}}, {"speculation": SPECULATION}])
def test_sums_on_the_way_say_what_all_rows_say(changes, monkeypatch):
    monkeypatch.setattr(simulator.serving.log, "CONDENSED_AT", 1024)
    monkeypatch.setattr(simulator.running.step_rows, "GROUPS", 20)
    one, other = (simulate(scenario(**changes), full_step_rows=rows) for rows in (None, 0))
    assert other.engine.steps == other.steps.steps.sum() == one.engine.steps
    assert len(other.steps) < len(one.steps) / 5
    whole, thin = (json.loads(json.dumps(run_document(run))) for run in (one, other))
    for document in (whole, thin):
        del document["engine"]
    assert thin == whole


def test_a_large_plain_run_without_step_records_ends_well(tmp_path, forerun, monkeypatch):
    """A row of many steps is not held against the peak as one step, nor is a sum of rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulator.running.run, "FULL_ROWS", 10)
    monkeypatch.setattr(simulator.serving.log, "CONDENSED_AT", 64)
    (tmp_path / "a.json").write_text(json.dumps(h100_data(poisson(40, 100, 512, 256))))
    outcome = forerun("run", "a.json", "--no-steps", "--no-interval", "--no-progress")
    assert outcome.code == 0, outcome.err


def test_joining_rows_keeps_sums_replicas_and_time():
    steps = simulate(scenario()).steps
    for size in (1, 2, 7, 10**6):
        rows = summed(steps, size)
        for replica in range(3):
            custom = rows.replica == replica
            assert custom.sum() == -(-(steps.replica == replica).sum() // size)
            assert np.all(np.diff(rows.start_s[custom]) > 0)
        assert rows.flops.sum() == pytest.approx(steps.flops.sum())
        assert rows.steps.sum() == steps.steps.sum()
    assert len(joined([steps, steps])) == 2 * len(steps)


def test_no_step_records_means_none_in_the_files(tmp_path, forerun):
    (tmp_path / "a.json").write_text(json.dumps(h100_data(burst(3, 9, 9))))
    assert forerun("run", tmp_path / "a.json", "--no-steps", "--out", tmp_path / "o", "--no-progress").code == 0
    table = pq.read_table(tmp_path / "o" / "steps.parquet")
    assert table.num_rows == 0
    assert "seconds" in table.column_names
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert any("no step records" in note for note in summary["notes"])
    assert (tmp_path / "o" / "report.html").exists()
