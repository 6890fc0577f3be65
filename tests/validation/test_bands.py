"""Bands of served figures: nine of ten lie inside, small strata take wider ones, a new build is never calibrated."""

import numpy as np
import pytest

from simulator.running.metrics.served import KINDS, Stratum, served_as, served_response
from simulator.running.run import simulate
from simulator.timing.releases import BUILD_AGES, build_age
from validation.bands import (
    ServedFigure,
    bands_page,
    conformal_ends,
    coverage_of_tables,
    ends_for,
    strata,
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


def test_nine_of_ten_lie_inside_and_few_beyond():
    own = figures(400, kinds=("tpot",))
    ends = conformal_ends(own)
    assert 0.88 <= np.mean([figure.inside(ends) for figure in own]) <= 0.93
    assert conformal_ends(figures(400, spread=0.02, kinds=("tpot",)))[0] == 1.0, "kernels' own band is enough"


def test_a_table_of_many_rows_counts_as_one():
    few = [figure._replace(ratio=3.0, table="few") for figure in figures(20, kinds=("tpot",))]
    assert conformal_ends(figures(990, spread=0.02, tables=1, kinds=("tpot",)) + few)[1] > 2.5


def test_small_strata_take_the_ends_of_wider_ones():
    own = figures(60) + figures(5, "mixture", 1.0)
    known = strata(own)
    assert "dense / fitted / below / measured" in known
    assert not any(name.startswith("mixture") for name in known)
    assert ends_for(own[-1], known) == tuple(known["all"][own[-1].kind]["ends"])


def test_a_table_is_also_scored_with_ends_that_have_not_seen_it():
    own = figures(60) + [figure._replace(table="far", ratio=9.0) for figure in figures(20, spread=0.0)]
    rows = {(row[0], row[1]): row for row in coverage_of_tables(own).rows}
    assert rows["far", "ttft"][3:5] == ["100%", "0%"]
    assert "| far | ttft | 20 | 100% | 0% |" in bands_page(own, "1.0")


def test_every_stratum_of_a_run_has_ends_on_both_sides():
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
