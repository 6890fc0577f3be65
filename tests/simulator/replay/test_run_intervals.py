"""Intervals of benchmark results: from other configurations, as wide as those are off, and right nine times in ten."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.replay.requests import LEAST_CONFIGURATIONS, coverage90, run_intervals
from traces.benchmark_results import MeasuredRun

METRIC = "mean_tpot_ms"


def runs_of(generator, configurations, loads, shared, custom):
    """Runs whose errors have a part that a whole configuration shares, and one of their own; logarithms are normal."""
    runs, predicted = [], []
    for number in range(configurations):
        common = generator.normal(0, shared)
        for load in range(loads):
            value = generator.uniform(5, 50)
            error = np.exp(common + generator.normal(0, custom))
            run = MeasuredRun(f"{number}-{load}", "made", input_tokens=100 + number, measured={METRIC: value * error})
            runs.append(run)
            predicted.append({METRIC: value})
    return runs, predicted


@pytest.mark.parametrize(("shared", "custom"), [(0.2, 0.0), (0.0, 0.2), (0.15, 0.1)])
def test_nine_in_ten_are_inside_whatever_runs_share(shared, custom):
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(30):
        runs, predicted = runs_of(generator, 40, 6, shared, custom)
        rows.append(coverage90(METRIC, runs, run_intervals(runs, predicted)))
    assert 87 < np.mean(rows) < 95


def test_a_run_says_nothing_about_its_own_configuration():
    """Of one configuration all measurements double: its interval stays, that of the others grows or stays."""
    runs, predicted = runs_of(np.random.default_rng(1), 30, 3, 0.1, 0.02)
    before = run_intervals(runs, predicted)
    doubled = {run.name: {METRIC: 2 * run.measured[METRIC]} for run in runs if run.input_tokens == 100}
    after = run_intervals([replace(run, measured=doubled.get(run.name, run.measured)) for run in runs], predicted)
    for run, one, other in zip(runs, before, after, strict=True):
        if run.input_tokens == 100:
            assert one == other
        else:
            assert other[METRIC][1] >= one[METRIC][1]


def test_many_loads_of_one_configuration_weigh_as_one():
    runs, predicted = runs_of(np.random.default_rng(2), 30, 1, 0.1, 0.0)
    first = run_intervals(runs, predicted)
    again = run_intervals(runs + 50 * [runs[3]], predicted + 50 * [predicted[3]])
    assert [one[METRIC] for one in again[:30]] == [pytest.approx(one[METRIC]) for one in first]


def test_too_few_configurations_have_no_interval():
    for count in (1, LEAST_CONFIGURATIONS, LEAST_CONFIGURATIONS + 1):
        runs, predicted = runs_of(np.random.default_rng(3), count, 4, 0.1, 0.1)
        intervals = run_intervals(runs, predicted)
        assert all(bool(interval) == (count > LEAST_CONFIGURATIONS) for interval in intervals)
        assert (coverage90(METRIC, runs, intervals) is None) == (count <= LEAST_CONFIGURATIONS)
