"""Paired ratios cover a known difference and are narrowed by shared random numbers; crossovers lie where they must."""

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import t
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from forerun.workers import Workers
from simulator.running.scenario import scenario_from
from simulator.studies.compare.crossover import CurvePoint, crossings_of, grid_values
from simulator.studies.paired import HIGHER_IS_BETTER, Ratio, metric_values, paired_ratio
from simulator.studies.runs import RunPool, run_document_of, with_seeds
from simulator.studies.study_file import Range

REPEATS, RUNS = 200, 5


def unpaired_width(base, other):
    """Width, in logarithms, of the 95 % interval that unrelated runs would give (Welch)."""
    a, b = np.log(base), np.log(other)
    first, second = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    freedom = (first + second) ** 2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))
    return 2.0 * t.ppf(0.975, freedom) * sqrt(first + second)


def ends(ratio):
    return ratio.ratio, ratio.low, ratio.high


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
    assert ends(paired_ratio(*values, higher_is_better=False)) == pytest.approx((1.0, 1.0, 1.0), abs=1e-12)


@example([(3.0, 30.0)] * 6)
@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=2, max_size=8))
def test_turning_the_metric_or_the_pair_over_turns_the_ratio_over(pairs):
    base, other = zip(*pairs, strict=True)
    forward, backward = paired_ratio(base, other, True), paired_ratio(other, base, True)
    assert forward.ratio == pytest.approx(1.0 / backward.ratio)
    assert forward.low == pytest.approx(1.0 / backward.high)
    assert ends(paired_ratio(base, other, False)) == pytest.approx(ends(backward))
    assert forward.low <= forward.ratio <= forward.high


def test_what_was_not_measured_has_no_ratio():
    assert paired_ratio([1.0, None], [1.0, 2.0], True) is None
    assert paired_ratio([1.0, 0.0], [1.0, 2.0], True) is None
    assert paired_ratio([], [], True) is None
    assert paired_ratio([2.0], [1.0], False) == Ratio(2.0, None, None)


def test_every_compared_metric_has_a_direction_and_words():
    from simulator.studies.paired import metric_words

    assert HIGHER_IS_BETTER["output_throughput"]
    assert not HIGHER_IS_BETTER["p99_ttft_ms"]
    assert len({metric_words(name) for name in HIGHER_IS_BETTER}) == len(HIGHER_IS_BETTER)


@pytest.mark.parametrize("process", [{"process": "burst"}, {"process": "poisson", "request_rate": 20.0}])
def test_every_seed_has_the_figures_of_its_own_run(process):
    """Also where nothing is drawn, so that one run stands for all seeds."""
    scenario = scenario_from(tiny_data(arrivals=process, input_tokens=100, output_tokens=20), "s")
    with Workers(0) as workers:
        documents = RunPool(workers).documents_if_any(with_seeds(scenario, [3, 4, 5], "document"))
    for seed, one in zip([3, 4, 5], documents, strict=True):
        assert one["seed"] == seed
        assert one | {"engine": None} == run_document_of(scenario, seed) | {"engine": None}


@pytest.mark.parametrize("order", [("summary", "document"), ("document", "summary")])
def test_a_study_reads_no_more_of_a_run_than_it_needs(order):
    """A summary alone is that of the whole document, and does not stand in for it."""
    scenario = scenario_from(tiny_data(input_tokens=100, output_tokens=20), "s")
    with Workers(0) as workers:
        pool = RunPool(workers)
        first, last = [pool.documents_if_any(with_seeds(scenario, [3], need))[0] for need in order]
        both = pool.documents_if_any([run for need in order for run in with_seeds(scenario, [4], need)])
    assert first["summary"] == last["summary"] == run_document_of(scenario, 3)["summary"]
    assert "energy_joules" in last
    assert both[0] == both[1]


LOADS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def curve(exponent, centre, width=0.05):
    """A speedup that is a power of the load: it passes 1 exactly at ``centre``, its interval's ends beside it."""
    from math import exp

    points = []
    for load in LOADS:
        ratio = (load / centre) ** exponent
        points.append(CurvePoint(ratio, ratio * exp(-width), ratio * exp(width), value=load))
    return points


@given(st.floats(3.0, 12.0), st.floats(0.2, 1.0), st.booleans())
def test_a_power_law_crosses_where_it_must(centre, exponent, falling):
    signed = -exponent if falling else exponent
    result = crossings_of("b", curve(signed, centre))
    assert len(result) == 1
    assert result[0].value == pytest.approx(centre)
    assert result[0].better == ("below" if falling else "above")
    assert log(result[0].high / centre) == pytest.approx(0.05 / exponent, rel=1e-6)
    assert log(centre / result[0].low) == pytest.approx(0.05 / exponent, rel=1e-6)


def test_noise_around_one_is_no_crossover():
    wobble = [CurvePoint(1.0 + 0.002 * (-1) ** n, 0.99, 1.01, value=load) for n, load in enumerate(LOADS)]
    assert crossings_of("b", wobble) == ()
    exact = [CurvePoint(1.0 + 1e-9 * (-1) ** n, 1.0, 1.0, value=load) for n, load in enumerate(LOADS)]
    assert crossings_of("b", exact) == ()


def test_two_crossings():
    ratios = [0.8, 0.9, 1.2, 1.3, 0.9, 0.7]
    points = [CurvePoint(r, r * 0.99, r * 1.01, value=x) for x, r in zip(LOADS, ratios, strict=True)]
    result = crossings_of("b", points)
    assert [crossing.better for crossing in result] == ["above", "below"]
    assert 2.0 < result[0].value < 4.0
    assert 8.0 < result[1].value < 16.0


def test_a_single_pair_has_a_crossing_without_interval():
    points = [CurvePoint(2.0, None, None, value=1.0), CurvePoint(0.5, None, None, value=4.0)]
    crossing = crossings_of("b", points)[0]
    assert crossing.value == pytest.approx(2.0)
    assert (crossing.low, crossing.high, crossing.better) == (None, None, "below")


def test_grids():
    assert grid_values(None, 8.0, False, "x")[0] == 1.0
    assert grid_values(Range(1, 64), None, True, "x") == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    assert grid_values(Range(0, 1), None, False, "x") == [pytest.approx(n / 6) for n in range(7)]
    assert grid_values((4, 1, 2), None, False, "x") == [1.0, 2.0, 4.0]
    for values, base, message in (
        ((1,), None, "x: a crossover needs two values or more$"),
        (("a", "b"), None, "x: a crossover is looked for along numbers"),
        (None, None, "x: the scenario has no value there"),
    ):
        with pytest.raises(ForerunError, match=message):
            grid_values(values, base, False, "x")
