"""Paired ratios: they cover a known difference, and sharing random numbers narrows them."""

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import t
from tiny_scenario import tiny_data

from forerun.workers import Workers
from simulator.running.scenario import scenario_from
from simulator.studies import runs
from simulator.studies.paired import HIGHER_IS_BETTER, metric_values, paired_ratio
from simulator.studies.runs import RunPool, run_document_of, with_seeds

REPEATS, RUNS = 200, 5


def unpaired_width(base, other):
    """Width, in logarithms, of the 95 % interval that unrelated runs would give (Welch)."""
    a, b = np.log(base), np.log(other)
    first, second = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    freedom = (first + second) ** 2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))
    return 2.0 * t.ppf(0.975, freedom) * sqrt(first + second)


def test_intervals_cover_a_known_difference():
    rng = np.random.default_rng(11)
    truth, covered = 1.25, 0
    for _ in range(REPEATS):
        common = rng.lognormal(0.0, 0.5, RUNS)
        other = common * truth * rng.lognormal(0.0, 0.03, RUNS)
        ratio = paired_ratio(list(common), list(other), higher_is_better=True)
        covered += ratio.low <= truth <= ratio.high
    assert 0.90 <= covered / REPEATS <= 0.99


def test_simulated_pairs_cover_their_difference_and_are_narrower_than_unpaired():
    """Ten groups of three seeds against the mean over all: their intervals hold it, and pairing pays."""
    base = scenario_from(tiny_data(), "base")
    variant = base.with_values({"hardware.chip": "h200-sxm"})
    seeds = range(30)
    pairs = [[metric_values(run_document_of(s, seed))["mean_e2el_ms"] for s in (base, variant)] for seed in seeds]
    before, after = (list(column) for column in zip(*pairs, strict=True))
    truth = exp(np.mean([log(b / a) for b, a in pairs]))
    groups = [paired_ratio(before[n : n + 3], after[n : n + 3], False) for n in range(0, 30, 3)]
    assert sum(ratio.low <= truth <= ratio.high for ratio in groups) >= 7
    whole = paired_ratio(before, after, False)
    assert unpaired_width(before, after[15:] + after[:15]) > 3 * log(whole.high / whole.low)


def test_same_seeds_give_the_same_requests():
    """Common random numbers: a variant without any effect gives a ratio of exactly 1 and an interval of no width."""
    base = scenario_from(tiny_data(), "base")
    same = base.with_values({"engine.num_kv_blocks": 60_000})
    values = [[metric_values(run_document_of(s, seed))["mean_e2el_ms"] for seed in range(3)] for s in (base, same)]
    assert paired_ratio(*values, higher_is_better=False)[:3] == pytest.approx((1.0, 1.0, 1.0), abs=1e-12)


@example([(3.0, 30.0)] * 6)
@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=2, max_size=8))
def test_turning_the_metric_or_the_pair_over_turns_the_ratio_over(pairs):
    base, other = zip(*pairs, strict=True)
    forward, backward = paired_ratio(base, other, True), paired_ratio(other, base, True)
    assert forward.ratio == pytest.approx(1.0 / backward.ratio)
    assert forward.low == pytest.approx(1.0 / backward.high)
    assert paired_ratio(base, other, False)[:3] == pytest.approx(backward[:3])
    assert forward.low <= forward.ratio <= forward.high


def test_what_was_not_measured_has_no_ratio():
    assert paired_ratio([1.0, None], [1.0, 2.0], True) is None
    assert paired_ratio([1.0, 0.0], [1.0, 2.0], True) is None
    assert paired_ratio([], [], True) is None
    assert paired_ratio([2.0], [1.0], False)[:3] == (2.0, None, None)


def test_every_compared_metric_has_a_direction_and_words():
    from simulator.studies.paired import metric_words

    assert HIGHER_IS_BETTER["output_throughput"]
    assert not HIGHER_IS_BETTER["p99_ttft_ms"]
    assert len({metric_words(name) for name in HIGHER_IS_BETTER}) == len(HIGHER_IS_BETTER)


@pytest.mark.parametrize(
    ("process", "made"), [({"process": "burst"}, 1), ({"process": "poisson", "request_rate": 20.0}, 3)]
)
def test_what_draws_nothing_is_run_once_for_all_seeds(monkeypatch, process, made):
    requested = []
    monkeypatch.setattr(runs, "run_document_of", lambda *run: requested.append(run) or run_document_of(*run))
    data = tiny_data(arrivals=process, input_tokens=100, output_tokens=20)
    with Workers(0) as workers:
        documents = RunPool(workers).documents_if_any(with_seeds(scenario_from(data, "s"), [3, 4, 5]))
    assert len(requested) == made
    assert [one["seed"] for one in documents] == [3, 4, 5]
    for seed, one in zip([3, 4, 5], documents, strict=True):
        single = run_document_of(scenario_from(data, "s"), seed)
        assert {name: one[name] for name in one if name != "engine"} == {
            name: single[name] for name in single if name != "engine"
        }
