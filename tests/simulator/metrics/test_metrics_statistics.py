"""Weighted statistics equal numpy's on the expanded multiset; intervals equal scipy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.running.metrics import WeightedSample, mean_interval

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
