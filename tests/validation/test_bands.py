"""Bands of served figures: the fitted share lies inside, no part narrows a band, a new build is never calibrated."""

import numpy as np
import pytest

from simulator.running.metrics.served import KINDS, Stratum, served_as, served_response
from simulator.running.run import simulate
from simulator.timing.releases import BUILD_AGES, build_age
from validation.bands import (
    END,
    ServedFigure,
    bands_page,
    coverage_of_tables,
    ends_by_part,
    ends_for,
    halves,
    quantile_factors,
)

RUN = {
    "model": "llama-3.1-8b",
    "hardware": {"chip": "h100-sxm"},
    "workload": {
        "arrivals": {"process": "closed-loop", "max_concurrency": 4},
        "input_tokens": 256,
        "output_tokens": 32,
        "num_requests": 12,
    },
}


def figures(count, layers="dense", spread=0.3, tables=4, kinds=tuple(KINDS)):
    generator = np.random.default_rng(len(layers))
    return [
        ServedFigure(f"t{i % tables}", kind, layers, "fitted", "below", "measured", float(ratio), 0.9, 1.1)
        for kind in kinds
        for i, ratio in enumerate(np.exp(generator.normal(0.1, spread, count)))
    ]


def test_the_fitted_share_lies_within_each_end():
    own = figures(400, kinds=("tpot",))
    known = ends_by_part(own)
    beyond = [sum(s[side] > 0 and not f.inside(known) for f in own for s in [f.scores]) for side in (0, 1)]
    assert all(abs(count / len(own) - (1 - END["tpot"])) <= 0.01 for count in beyond)
    quiet = figures(400, spread=0.02, kinds=("tpot",))
    assert quantile_factors(quiet, 0, END["tpot"]) == {}, "kernels' own band is enough"


def test_a_table_of_many_rows_counts_as_one():
    few = [figure._replace(ratio=3.0, table="few") for figure in figures(20, kinds=("tpot",))]
    assert quantile_factors(figures(990, spread=0.02, tables=1, kinds=("tpot",)) + few, 1, END["tpot"])["all"] > 2.5


def test_factors_of_parts_are_recovered_and_multiply():
    """Ratios drawn with a spread that mixtures and older releases widen by known factors."""
    generator = np.random.default_rng(5)
    spreads = {"dense": 1.0, "mixture": 1.6}, {"fitted": 1.0, "older": 1.4}
    own = [
        ServedFigure(f"t{i % 4}", "tpot", layers, build, "below", "measured", float(np.exp(off)), 1.0, 1.0)
        for layers, wide in spreads[0].items()
        for build, wider in spreads[1].items()
        for i, off in enumerate(abs(generator.normal(0, 0.1, 400)) + np.log(wide * wider))
    ]
    upper = quantile_factors(own, 1, END["tpot"])
    assert upper["mixture"] == pytest.approx(1.6, rel=0.06)
    assert upper["older"] == pytest.approx(1.4, rel=0.06)
    ends = ends_by_part(own)
    widest, narrowest = (ends_for(figure, ends)[1] for figure in (own[-1], own[0]))
    assert widest == pytest.approx(narrowest * upper["mixture"] * upper["older"])


def test_a_class_with_better_runs_than_the_best_known_one_is_no_narrower():
    own = figures(300, spread=0.5, kinds=("tpot",)) + figures(300, "mixture", 0.05, kinds=("tpot",))
    assert "mixture" not in quantile_factors(own, 1, END["tpot"])


def test_a_class_without_runs_of_its_own_takes_the_ends_of_those_that_contain_it():
    generator = np.random.default_rng(3)
    own = figures(300, kinds=("tpot",)) + [
        ServedFigure(f"t{i % 4}", "tpot", layers, "unknown", "below", "measured", float(3 * np.exp(off)), 0.9, 1.1)
        for i, off in enumerate(abs(generator.normal(0, 0.1, 300)))
        for layers in ("mixture", "dense")
    ]
    known = ends_by_part(own)
    newer, unknown = (
        ends_for(own[0]._replace(layers=layers, build=build), known)
        for layers, build in (("hybrid mixture", "newer"), ("mixture", "unknown"))
    )
    assert newer == unknown
    assert unknown[1] > 2.5


def test_throughput_is_scored_as_the_latency_of_a_closed_loop():
    slow = ServedFigure("t", "throughput", "dense", "fitted", "below", "measured", 0.25, 0.8, 1.1)
    known = ends_by_part([slow._replace(table=f"t{i}") for i in range(5)])
    assert set(known) == {"e2el"}
    low, high = ends_for(slow, known)
    assert low == 1.0
    assert np.hypot(np.log(high), np.log(1 / 0.8)) == pytest.approx(np.log(4), rel=0.01)
    assert slow.inside(known)
    assert not slow._replace(ratio=4.0).inside(known)


def test_throughput_is_no_better_known_than_the_tokens_that_it_consists_of():
    fast = ServedFigure("t", "throughput", "dense", "fitted", "below", "measured", 0.4, 0.8, 1.1)
    known = {"e2el": {"low": {}, "high": {}}, "tpot": {"low": {"all": 0.5}, "high": {"all": 4.0}}}
    assert fast.band(known) == pytest.approx((1 / 1.1, 1 / 0.8))
    decoding = fast._replace(decoding=0.5, tpot=(1.0, 1.0))
    assert decoding.band(known) == pytest.approx((0.75, 2.5)), "half of the latency takes half and four times as long"
    assert decoding.inside(known)
    assert not fast.inside(known)


def test_small_classes_are_described_by_wider_ones():
    known = halves(figures(60) + figures(5, "mixture", 1.0))
    assert "dense / fitted" in known
    assert not any(name.startswith("mixture") for name in known)
    assert known["all"]["ttft"][0] == 65


def test_a_table_is_also_scored_with_ends_that_have_not_seen_it():
    own = figures(60) + [figure._replace(table="far", ratio=9.0) for figure in figures(20, spread=0.0)]
    rows = {(row[0], row[1]): row for row in coverage_of_tables(own).rows}
    assert rows["far", "ttft"][3:5] == ["100%", "0%"]
    page = bands_page([figure._replace(engine="vllm 0.9", card="H100") for figure in own], "1.0")
    assert "| far | ttft | 20 | 100% | 0% |" in page
    assert "| far | vllm 0.9 | H100 | ttft | 20 | 100% | 0% |" in page


def test_every_class_of_a_run_has_ends_on_both_sides():
    for layers in ("dense", "mixture", "hybrid"):
        for build in BUILD_AGES:
            served = served_as(Stratum(layers, build, "near", "unmeasured"))
            assert all(low <= a <= 1.0 <= b <= high for low, a, b, high in served.factors.values())
            assert "times the predicted time per token" in served.words


def test_slower_engines_have_longer_latencies_and_less_throughput():
    ends = dict.fromkeys(KINDS, (0.5, 0.9, 1.2, 2.0))
    response = served_response({"p99_ttft_ms": 1.0, "output_throughput": 2.0, "mean_power_w": 3.0, "failed": 1}, ends)
    assert response["p99_ttft_ms"][-1] > 0 > response["output_throughput"][-1]
    assert response["mean_power_w"] == [0.0] * 4
    assert "failed" not in response


@pytest.mark.parametrize(
    ("release", "basis"), [(None, "calibrated"), ("0.15.1", "calibrated"), ("nightly", "extrapolated")]
)
def test_a_build_that_the_fits_do_not_know_is_never_calibrated(release, basis):
    result = simulate({**RUN, "engine": {"release": release}}, intervals=True)
    assert result.basis == basis
    assert result.model_error["stratum"]["build"] == build_age("vllm", release, "llama-3.1-8b")
