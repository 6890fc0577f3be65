"""A run that keeps no step records says the same about itself, and no run computes what nobody reads."""

import json
import pickle

import pyarrow.parquet as pq
import pytest
from scenario_parts import burst, drafts, h100_data, on_h100, poisson, uniform

import simulator.running.run
import simulator.serving.log
from hwprofiles.correction import Correction
from simulator.running.metrics import run_document
from simulator.running.run import simulate
from simulator.timing.step import StepTimer

SPECULATION = drafts("ngram", 3, 0.6)


def scenario(**changes):
    workload = poisson(60, 600, uniform(20, 600), uniform(2, 200))
    three = {"model": "llama-3.2-1b", "hardware": {"chip": "h100-sxm", "replicas": 3}}
    return on_h100(workload, **three | changes)


@pytest.mark.parametrize("changes", [{}, {"engine": {"stepping": "exact-steps"}}, {"speculation": SPECULATION}])
def test_sums_on_the_way_say_what_all_rows_say(changes, monkeypatch):
    monkeypatch.setattr(simulator.serving.log, "CONDENSED_AT", 1024)
    one, other = (simulate(scenario(**changes), full_step_rows=rows) for rows in (None, 0))
    assert other.engine.steps == other.totals.steps.sum() == one.engine.steps
    assert not len(other.steps)
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


def test_no_step_records_means_none_in_the_files(tmp_path, forerun):
    (tmp_path / "a.json").write_text(json.dumps(h100_data(burst(3, 9, 9))))
    assert forerun("run", tmp_path / "a.json", "--no-steps", "--out", tmp_path / "o", "--no-progress").code == 0
    table = pq.read_table(tmp_path / "o" / "steps.parquet")
    assert table.num_rows == 0
    assert "seconds" in table.column_names
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert any("no step records" in note for note in summary["notes"])
    assert (tmp_path / "o" / "report.html").exists()


def test_kernels_of_a_timeline_are_listed_when_it_is_read_or_pickled(monkeypatch):
    listed, kernels = [], StepTimer.kernels
    monkeypatch.setattr(StepTimer, "kernels", lambda *work: listed.append(work) or kernels(*work))
    runs = [simulate(scenario()) for _ in range(3)]
    assert runs[0].document["evidence"]
    assert not listed
    assert len(runs[0].detail.sampled) == len(listed) > 1
    again = pickle.loads(pickle.dumps(runs[1]))
    once = len(listed)
    assert again.detail.sampled == runs[0].detail.sampled
    assert again.detail.devices == 1
    assert again.detail.draft_s is None
    assert len(listed) == once
    assert simulate(scenario(), full_step_rows=0).detail is None


def test_a_run_in_a_warm_process_prices_decode_attention_from_the_tables_of_its_engine(monkeypatch):
    corrected, seconds = [], Correction.seconds
    monkeypatch.setattr(Correction, "seconds", lambda *of: corrected.append(of[1]) or seconds(*of))
    first = simulate(scenario())
    corrected.clear()
    again = simulate(scenario())
    assert "attention_decode" not in corrected
    assert again.steps.memory_s.tolist() == first.steps.memory_s.tolist()
