"""Weighted statistics equal numpy's on the expanded multiset; intervals equal scipy's, over replications too."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from simulator.running.metrics import WeightedSample, combine_replications, mean_interval
from simulator.running.metrics.statistics import T_QUANTILES

finite = st.floats(-1e6, 1e6, allow_nan=False)
multisets = st.lists(st.tuples(finite, st.integers(0, 9)), min_size=1, max_size=30).filter(
    lambda pairs: any(count for _, count in pairs)
)


@given(multisets, st.one_of(st.sampled_from([0.0, 50.0, 90.0, 95.0, 99.0, 100.0]), st.floats(0, 100)))
def test_percentile_equals_numpy_on_the_expanded_multiset(pairs, percent):
    values, counts = map(list, zip(*pairs, strict=True))
    expanded = np.repeat(values, counts)
    assert WeightedSample.of(values, counts).percentile(percent) == pytest.approx(
        np.percentile(expanded, percent), rel=1e-12, abs=1e-300
    )


@given(multisets)
def test_moments_and_median_equal_numpy_on_the_expanded_multiset(pairs):
    values, counts = map(list, zip(*pairs, strict=True))
    expanded, sample = np.repeat(values, counts), WeightedSample.of(values, counts)
    assert sample.size == len(expanded)
    assert sample.median() == np.median(expanded)
    assert sample.mean() == pytest.approx(np.mean(expanded), rel=1e-9, abs=1e-6)
    assert sample.std() == pytest.approx(np.std(expanded), rel=1e-6, abs=1e-6)


def test_a_billion_gaps_are_never_expanded():
    sample = WeightedSample.of([1.0, 2.0], [10**9, 10**9])
    assert sample.median() == 1.5
    assert sample.percentile(99) == 2.0


def test_nothing_has_no_statistics():
    sample = WeightedSample.of([1.0], [0])
    assert sample.size == 0
    assert all(np.isnan(value) for value in (sample.mean(), sample.std(), sample.median(), sample.percentile(50)))


def test_a_multiset_with_nan_is_refused():
    with pytest.raises(ValueError, match="NaN"):
        WeightedSample.of([np.nan], [1])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12).filter(lambda xs: np.std(xs) > 1e-6))
def test_mean_interval_equals_scipy(values):
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_stored_quantiles_are_scipys():
    for level, stored in T_QUANTILES.items():
        assert list(stored) == [special.stdtrit(degrees, 0.5 + level / 2) for degrees in range(1, len(stored) + 1)]


def test_interval_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(3)
    hits = 0
    for sample in rng.normal(10.0, 2.0, size=(2000, 5)):
        low, high = mean_interval(sample.tolist())
        hits += low <= 10.0 <= high
    assert 0.935 < hits / 2000 < 0.965


def test_one_value_has_no_interval():
    with pytest.raises(ValueError, match="two"):
        mean_interval([1.0])


BASE = {
    "load": {"request_rate": None, "arrival_rate": 4.0, "keeps_up": True, "api_server_busy": None},
    "summary": {
        "completed": 10,
        "failed": 0,
        "request_throughput": 3.5,
        "mean_ttft_ms": 1.0,
        "mean_tpot_ms": None,
        "spec": [0.5, 0.25],
    },
    "intervals": {},
    "interval_level": None,
    "slo": {"met": True, "good_share": 1.0, "limits": {"p99_ttft_ms": {"limit": 2.0, "value": 1.0, "met": True}}},
    "basis": "calibrated",
    "evidence": {"calibrated": 1.0},
    "bottleneck": {"memory": 0.75, "idle": 0.25},
    "kv_cache": {"num_blocks": 100, "peak_use": 0.5, "overridden": False},
    "energy_joules": None,
    "engine": {"steps": 5, "cpu_s": 0.5},
    "scenario": {"model": "m", "workload": {}},
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
