"""Bands of served figures: the fitted share lies inside, no part narrows a band, a new build is never calibrated."""

import numpy as np
import pytest

from simulator.running.metrics.served import KINDS, Stratum, served_as, served_facts, served_response
from simulator.running.metrics.uncertainty import LEVEL, LIKELY
from simulator.running.run import simulate
from simulator.timing.releases import BUILD_AGES, build_age
from validation.served.bands import (
    PROMISED,
    ServedFigure,
    band_score,
    bands_page,
    coverage_of_builds,
    coverage_of_tables,
    ends_by_part,
    quantile_factors,
    read_facts,
    without_table,
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
        ServedFigure(f"t{i % tables}", kind, layers, "fitted", "below", "measured", float(ratio), 0.999, 1.001,
                     deployment=f"{layers} {i}")
        for kind in kinds
        for i, ratio in enumerate(np.exp(generator.normal(0.1, spread, count)))
    ]  # fmt: skip


def upper(own, known):
    return own.band(known)[1]


@pytest.mark.parametrize("level", [LEVEL, LIKELY])
def test_the_fitted_share_lies_within_each_end(level):
    own = figures(400, kinds=("tpot",))
    known = ends_by_part(own)
    bands = [(figure.error, *figure.band(known, level)) for figure in own]
    beyond = [np.mean([error < low for error, low, _ in bands]), np.mean([error > high for error, _, high in bands])]
    share = 1 - PROMISED["tpot"][level]
    assert beyond == pytest.approx([share, share], abs=0.02)


def test_a_band_that_is_wide_enough_gets_no_factor():
    wide = [figure._replace(low=0.5, high=2.0) for figure in figures(400, spread=0.02, kinds=("tpot",))]
    assert quantile_factors(wide, 0, LEVEL) == {}


def test_deployments_count_alike_however_many_rows_they_have():
    few = [figure._replace(ratio=3.0, table="few") for figure in figures(20, kinds=("tpot",))]
    many = [figure._replace(deployment="one") for figure in figures(990, spread=0.02, tables=1, kinds=("tpot",))]
    assert quantile_factors(many + few, 1, LEVEL)["all"] > 2.5


def test_a_class_with_better_runs_than_the_best_known_one_is_no_narrower():
    own = figures(300, spread=0.5, kinds=("tpot",)) + figures(300, "mixture", 0.05, kinds=("tpot",))
    assert "mixture" not in quantile_factors(own, 1, LEVEL)


def test_a_class_without_runs_of_its_own_takes_the_ends_of_those_that_contain_it():
    generator = np.random.default_rng(3)
    own = figures(300, kinds=("tpot",)) + [
        ServedFigure(f"t{i % 4}", "tpot", layers, "unknown", "below", "measured", float(3 * np.exp(off)), 0.999, 1.001,
                     deployment=f"u {i}")
        for i, off in enumerate(abs(generator.normal(0, 0.1, 300)))
        for layers in ("mixture", "dense")
    ]  # fmt: skip
    known = ends_by_part(own)
    newer, unknown = (
        upper(own[0]._replace(layers=layers, build=build), known)
        for layers, build in (("hybrid mixture", "newer"), ("mixture", "unknown"))
    )
    assert newer == unknown > np.log(2.5)


def test_throughput_is_scored_as_the_latency_of_a_closed_loop():
    slow = ServedFigure("t", "throughput", "dense", "fitted", "below", "measured", 0.25, 0.8, 1.1)
    known = ends_by_part([slow._replace(table=f"t{i}") for i in range(5)])
    assert set(known) == {"tpot"}
    assert slow.error == pytest.approx(np.log(4))
    assert slow.band(known) == pytest.approx((-np.log(1.1), np.log(4)), rel=0.01)


def test_a_table_is_scored_with_ends_that_have_not_seen_it():
    own = figures(60) + [figure._replace(table="far", ratio=9.0) for figure in figures(20, spread=0.0)]
    rows = {(row[0], row[1]): row for row in coverage_of_tables(own).rows}
    assert rows["far", "ttft"][3] == "0%"
    page = bands_page(own, coverage_of_tables(own), "1")
    assert "| far | ttft | 20 | 0% |" in page
    builds = coverage_of_builds([figure._replace(engine="vllm 0.9", card="H100") for figure in own])
    assert ["far", "vllm 0.9", "H100", "ttft", 20, "0%"] in [list(row[:6]) for row in builds.rows]


GATES = {"tpot": (2.1, 0.87, 4.0), "ttft": (4.5, 0.87, 13.0), "e2el": (1.9, 0.88, 3.6), "throughput": (2.15, 0.88, 4.2)}
"""By kind of figure, tables left out: largest interval score, least share inside, and largest width of nine in ten."""


@pytest.mark.parametrize("kind", GATES)
def test_bands_keep_their_score_on_tables_that_the_fit_has_not_seen(kind):
    """The facts of all measured runs, fitted again without each table."""
    facts = read_facts()
    own = [figure for figure in facts if figure.kind == kind]
    wide, likely = (band_score(own, lambda table: without_table(facts, table), level) for level in (LEVEL, LIKELY))
    score, inside, width = GATES[kind]
    assert wide.score <= score
    assert inside <= wide.inside <= 0.93
    assert wide.width <= width
    assert 0.43 <= likely.inside <= 0.6


def test_the_ends_that_ship_are_those_of_the_facts():
    known, facts = served_facts(), read_facts()
    assert ends_by_part(facts) == known["ends"]
    assert known["runs"] == {"runs": len({one.run for one in facts}), "deployments": len({o.deployment for o in facts})}


def test_every_class_of_a_run_has_ends_on_both_sides():
    for layers in ("dense", "mixture", "hybrid"):
        for build in BUILD_AGES:
            served = served_as(Stratum(layers, build, "near", "unmeasured"))
            assert all(low <= a <= 1.0 <= b <= high for low, a, b, high in served.factors.values())
            assert layers in served.words


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
