"""Paired ratios cover a known difference and are narrowed by shared random numbers; crossovers lie where they must."""

from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scenario_parts import closed_loop, drafts, on_h100
from scipy.stats import t
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from forerun.workers import Workers
from simulator.running.scenario import scenario_from
from simulator.studies.compare.command import compare
from simulator.studies.compare.crossover import CurvePoint, crossings_of, grid_values
from simulator.studies.paired import HIGHER_IS_BETTER, Ratio, metric_values, paired_ratio
from simulator.studies.runs import RunPool, run_document_of, with_seeds
from simulator.studies.study_file import Range
from simulator.studies.unshared import student, unshared_of

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


LOOP = on_h100(closed_loop(1, 3, 200, 100), speculation=drafts("eagle3", 3, 0.7))
PLAIN, DRAFTED = LOOP.with_values({"speculation": None}).model_dump(), LOOP.model_dump()
FEW = {"replications": 1, "crossover": "none", "sensitivity": False, "jobs": 1}


def speedup(metric="mean_tpot_ms", vary=(), scenario=LOOP):
    """Document of a comparison, and the speedup of its second variant."""
    result = compare(scenario, vary=dict(vary) or {"speculation.method": ["none", "eagle3"]}, **FEW)
    return result, result.data.variants[1].speedup[metric]


@pytest.mark.parametrize("changes", [
    {"engine.max_num_seqs": 8}, {"workload.arrivals.max_concurrency": 4}, {"hardware.replicas": 2},
    {"engine.enable_prefix_caching": False},
])  # fmt: skip
def test_load_and_scheduling_are_shared(changes):
    other = LOOP.with_values(changes).model_dump()
    assert unshared_of(DRAFTED, other, {"datasheet": 1.0}) is None


def test_what_is_accepted_is_shared():
    assert (
        unshared_of(DRAFTED, LOOP.with_values({"speculation.acceptance.alpha": 0.5}).model_dump(), {"calibrated": 1.0})
        is None
    )


@pytest.mark.parametrize("changes", [
    {"hardware.tensor_parallel": 4}, {"hardware.chip": "a100-sxm-80gb"}, {"engine.framework": "sglang"},
    {"weights_dtype": "fp8"},
])  # fmt: skip
def test_chips_engine_and_formats_are_not_shared(changes):
    error = unshared_of(DRAFTED, LOOP.with_values(changes).model_dump(), {"calibrated": 1.0})
    assert error.scale == error.of_prompts > 0
    assert error.lost == 0.0


def test_no_property_narrows():
    """Each level of weaker evidence, and a second difference, makes the error as wide or wider."""
    more = LOOP.with_values({"hardware.tensor_parallel": 4}).model_dump()
    for other in (DRAFTED, more):
        scales = [
            unshared_of(PLAIN, other, {level: 1.0}).scale for level in ("calibrated", "extrapolated", "datasheet")
        ]
        assert scales == sorted(scales)
    assert unshared_of(PLAIN, more, {"datasheet": 1.0}).scale > unshared_of(PLAIN, DRAFTED, {"datasheet": 1.0}).scale


def test_the_error_is_the_same_from_either_side():
    forward, backward = (unshared_of(*pair, {"calibrated": 1.0}) for pair in ((PLAIN, DRAFTED), (DRAFTED, PLAIN)))
    assert forward == backward._replace(drafts=1)
    runs = [{"summary": {"mean_tpot_ms": ms}, "load": {"keeps_up": None}} for ms in (12.0, 6.0)]
    rest = "mean_tpot_ms", np.zeros(512)
    there, back = (forward.draws(*runs, *rest), backward.draws(*reversed(runs), *rest))
    assert there == pytest.approx(-back)
    gained = np.exp(log(2.0) + there)
    assert np.mean(gained > 1.0) == pytest.approx(1.0 - forward.lost, abs=0.01), "never surer than drafting pays at all"
    assert np.median(gained) == pytest.approx(2.0, rel=0.03)


def test_student_has_four_degrees_of_freedom():
    shares = np.array([0.005, 0.05, 0.3, 0.5, 0.9, 0.999])
    assert student(shares) == pytest.approx(t.ppf(shares, 4), abs=1e-6)


def test_a_comparison_on_drafting_is_no_surer_than_published_ones():
    """Calibrated kernels alone gave 1.7x with over 99 %; one published table in ten gained nothing."""
    result, ratio = speedup()
    assert ratio.ratio > 1.4
    assert 0.8 < ratio.probability <= 0.9
    assert ratio.low < 1.0 < ratio.high
    assert ratio.side == 0
    assert "may improve" in result.conclusion
    assert "(95 % interval" in result.conclusion
    mirrored = compare(LOOP, vary={"speculation.method": ["eagle3", "none"]}, **FEW).data.variants[1]
    assert 1.0 / mirrored.speedup["mean_tpot_ms"].low == pytest.approx(ratio.high, rel=0.02)


def test_without_calibrated_evidence_a_sentence_says_likely_and_no_share():
    scenario = LOOP.with_values({"hardware.chip": "mi325x", "speculation": None})
    result, ratio = speedup(vary={"hardware.tensor_parallel": [1, 8]}, scenario=scenario)
    assert result.data.basis == "datasheet"
    assert ratio.probability == 0.9
    assert ", likely to be better: no surer without calibrated evidence)" in result.conclusion
    assert "Drafting" not in result.legend


@pytest.mark.parametrize(("streams", "off"), [(1, 0.02), (16, 0.06)])
def test_the_gain_is_gone_at_the_stated_acceptance(streams, off):
    """With several streams the prompts of others stay in a token's time, whatever is accepted."""
    scenario = on_h100(closed_loop(streams, 6 * streams, 400, 200), speculation=drafts("eagle3", 3, 0.8))
    result, _ = speedup("mean_e2el_ms", scenario=scenario)
    drafting = result.data.variants[1].drafting
    needed = drafting.break_even_acceptance_length
    assert 1.0 < needed < drafting.acceptance_length
    assert f"the gain is gone at an acceptance length below about {needed:.2f} (now" in result.conclusion
    assert f"Host work is {drafting.host_share:.0%} of a drafting step" in result.conclusion
    assert "Drafting gained nothing in one published deployment of ten" in result.legend
    there = scenario.with_values({"speculation.acceptance": {"acceptance_length": needed}})
    assert speedup("mean_e2el_ms", scenario=there)[1].ratio == pytest.approx(1.0, abs=off)


def test_drafting_that_no_acceptance_saves_says_so():
    """Sixteen draft tokens from a draft model as large as the target."""
    slow = {"draft": {"model": "llama-3.1-8b"}}
    scenario = LOOP.with_values({"speculation": drafts("draft-model", 4, 0.9, **slow)})
    result = compare(scenario, vary={"speculation.method": ["none", "draft-model"]}, **FEW)
    assert result.data.variants[1].drafting.break_even_acceptance_length is None
    assert "no acceptance makes it pay (now" in result.conclusion


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
