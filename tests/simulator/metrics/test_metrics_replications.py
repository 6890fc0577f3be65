"""Replications: means, intervals, and nothing invented for a single run."""

import copy

import pytest
from scipy import stats

from simulator.running.metrics import combine_replications

BASE = {
    "summary": {"completed": 10, "failed": 0, "mean_ttft_ms": 1.0, "mean_tpot_ms": None, "spec": [0.5, 0.25]},
    "intervals": {},
    "interval_level": None,
    "slo": {"met": True, "good_share": 1.0, "limits": {"p99_ttft_ms": {"limit": 2.0, "value": 1.0, "met": True}}},
    "basis": "calibrated",
    "bottleneck": {"memory": 0.75, "idle": 0.25},
    "kv_cache": {"num_blocks": 100, "peak_use": 0.5, "overridden": False},
    "energy_joules": None,
    "engine": {"steps": 5, "cpu_s": 0.5},
    "scenario": {"model": "m"},
    "seed": 0,
    "replications": 1,
    "version": "1",
    "notes": ["a remark"],
}


def variant(seed, ttft, **changes):
    document = copy.deepcopy(BASE) | {"seed": seed} | changes
    document["summary"]["mean_ttft_ms"] = ttft
    document["slo"]["limits"]["p99_ttft_ms"] |= {"value": ttft, "met": ttft <= 2.0}
    document["slo"]["met"] = ttft <= 2.0
    return document


def test_a_single_run_is_passed_through_without_intervals():
    assert combine_replications([BASE]) is BASE


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="no runs"):
        combine_replications([])


def test_means_and_student_intervals():
    combined = combine_replications([variant(0, 1.0), variant(1, 2.0), variant(2, 6.0)])
    assert combined["summary"]["mean_ttft_ms"] == 3.0
    expected = stats.t.interval(0.95, 2, loc=3.0, scale=stats.sem([1.0, 2.0, 6.0]))
    assert combined["intervals"]["mean_ttft_ms"] == pytest.approx(list(expected))
    assert combined["intervals"]["completed"] == [10.0, 10.0]
    assert combined["interval_level"] == 0.95
    assert combined["summary"]["completed"] == 10
    assert isinstance(combined["summary"]["completed"], int)


def test_what_was_never_measured_stays_none_and_has_no_interval():
    combined = combine_replications([variant(0, 1.0), variant(1, 2.0)])
    assert combined["summary"]["mean_tpot_ms"] is None
    assert "mean_tpot_ms" not in combined["intervals"]
    assert "spec" not in combined["intervals"]
    assert combined["summary"]["spec"] == [0.5, 0.25]
    assert combined["energy_joules"] is None


def test_engine_counters_add_up_and_the_weakest_basis_counts():
    combined = combine_replications([variant(4, 1.0), variant(5, 2.0, basis="datasheet")])
    assert combined["engine"] == {"steps": 10, "cpu_s": 1.0}
    assert combined["basis"] == "datasheet"
    assert combined["notes"] == ["a remark"]
    assert combined["seed"] == 4
    assert [run["seed"] for run in combined["per_replication"]] == [4, 5]


def test_limits_are_judged_on_the_mean_and_counted_per_run():
    combined = combine_replications([variant(0, 1.0), variant(1, 2.5)])
    row = combined["slo"]["limits"]["p99_ttft_ms"]
    assert (row["value"], row["met"], row["met_in"]) == (1.75, True, 1)
    assert (combined["slo"]["met"], combined["slo"]["met_in"]) == (True, 1)
