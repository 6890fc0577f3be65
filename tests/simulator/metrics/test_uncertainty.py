"""The model's error in a run: sources add up, what is shared cancels, queueing amplifies, and nothing is invented."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenario_parts import constant, drafts, on_h100, poisson

from hwprofiles import predict_kernel
from simulator.running.build import build_run
from simulator.running.metrics import own_errors, run_document, summarise, uncertainty
from simulator.running.metrics.served import without_served
from simulator.running.metrics.summary import request_latency_ms
from simulator.running.metrics.uncertainty import DRAWS, metric_draws, standard_draws, stated_probability, step_draws
from simulator.running.run import error_of_run, simulate
from simulator.studies.compare.command import compare
from simulator.studies.paired import Ratio, with_model_error
from simulator.workload import generate_requests


def chat(rate=2.0, **sections):
    return on_h100(**{"workload": poisson(rate, 60, 512, 48)} | sections)


EAGLE = {"speculation": drafts("eagle3", 3, acceptance={"per_position": [0.7, 0.5, 0.3]})}


@pytest.fixture(scope="module")
def quiet():
    return simulate(chat(), intervals=True)


def half_width(result, metric):
    low, high = run_document(result)["intervals"][metric]
    return np.log(high / low) / 2


def test_a_run_that_is_not_requested_has_no_intervals():
    document = run_document(simulate(chat()))
    assert document["intervals"] == {}
    assert document["interval_level"] is document["model_error"] is None


def test_intervals_hold_the_figure_and_say_what_is_in_them(quiet):
    document = run_document(quiet)
    assert (document["interval_level"], document["intervals_of"]) == (0.9, "model error and sampling")
    assert {"mean_ttft_ms", "p99_tpot_ms", "output_throughput"} <= document["intervals"].keys()
    assert document["likely"].keys() == document["intervals"].keys()
    for key, (low, high) in document["intervals"].items():
        likely = document["likely"][key]
        assert low <= likely[0] <= document["summary"][key] <= likely[1] <= high, key


def test_in_a_loop_that_stays_in_step_ttft_and_tpot_are_less_sure_than_their_sum():
    loop = {"arrivals": {"process": "closed-loop", "max_concurrency": 8}, "input_tokens": 4096, "num_requests": 40}
    equal, spread = (
        without_served(simulate(on_h100(workload=loop | {"output_tokens": answers}), intervals=True).model_error)
        for answers in (64, {"distribution": "uniform", "min": 48, "max": 80})
    )
    (phase,) = [axis for axis in equal["axes"] if axis["name"] == uncertainty.PHASE]
    low, high = phase["response"]["mean_ttft_ms"]
    assert low < 0 < high
    assert phase["response"]["mean_tpot_ms"][0] >= 0 >= phase["response"]["mean_tpot_ms"][1], "one gains what one loses"
    assert phase["response"]["mean_e2el_ms"] == [0.0, 0.0]
    assert uncertainty.PHASE not in [axis["name"] for axis in spread["axes"]]


def test_drafts_that_were_accepted_by_luck_do_not_make_an_end_of_the_phase():
    workload = {"arrivals": {"process": "closed-loop", "max_concurrency": 2}, "input_tokens": 64, "output_tokens": 64,
                "num_requests": 60}  # fmt: skip
    run = simulate(on_h100(workload=workload, **EAGLE), intervals=True)
    (phase,) = [axis for axis in run.model_error["axes"] if axis["name"] == uncertainty.PHASE]
    luckiest = np.nanmin(request_latency_ms(run.requests, "tpot")) / run_document(run)["summary"]["mean_tpot_ms"]
    assert luckiest < 0.8, "one request had far more accepted than the mean"
    assert min(phase["response"]["mean_tpot_ms"]) > np.log(0.9), "short prompts hardly delay a step of two requests"


def test_throughput_of_a_closed_loop_is_as_unsure_as_a_latency():
    closed = {"arrivals": {"process": "closed-loop", "max_concurrency": 8}, "input_tokens": 512, "num_requests": 40,
              "output_tokens": {"distribution": "uniform", "min": 32, "max": 64}}  # fmt: skip
    run = simulate(chat(workload=closed), intervals=True)
    assert half_width(run, "output_throughput") > half_width(run, "mean_e2el_ms") / 2


def test_looking_for_the_error_leaves_the_run_as_it_was(quiet):
    assert simulate(chat()).requests.finished_s.tolist() == quiet.requests.finished_s.tolist()


def test_a_finished_run_need_not_be_served_again_for_its_error(quiet, monkeypatch):
    expected = error_of_run(quiet.scenario, 0, summarise)
    own = own_errors(quiet.scenario, build_run(quiet.scenario), quiet)
    monkeypatch.setattr("simulator.running.run._served", None)
    assert error_of_run(quiet.scenario, 0, summarise, own) == expected == quiet.model_error | {"after_measuring": {}}


def test_shares_of_kernels_drafting_and_host_are_the_whole_step():
    for scenario in (chat(), chat(**EAGLE)):
        sources = simulate(scenario, intervals=True).model_error["sources"]
        for kind in ("prompts", "decode"):
            parts = [s["share"].get(kind, 0.0) for s in sources]
            assert sum(parts) == pytest.approx(1.0, abs=1e-6)
            assert all(source["low"].get(kind, 1.0) <= 1.0 <= source["high"].get(kind, 1.0) for source in sources)


def test_stretched_steps_stretch_the_time_per_token_alike():
    """One request at a time: TPOT is the time of a decode step, so it moves as the draws of decode steps do."""
    error = simulate(chat(workload=constant(0.1, 20, 64, 32)), intervals=True).model_error
    decode = step_draws(error["sources"])[1]
    draws = metric_draws(without_served(error), "mean_tpot_ms")
    assert np.corrcoef(decode, draws)[0, 1] > 0.99
    assert np.std(draws) == pytest.approx(np.std(decode), rel=0.1)


def test_queueing_amplifies_what_the_model_gets_wrong(quiet):
    """Near saturation a step that is a tenth slower costs more than a tenth of TTFT."""
    loaded = simulate(chat(workload=poisson(17.0, 200, 2048, 32)), intervals=True)
    steps = np.std(step_draws(loaded.model_error["sources"])[0])
    moved = [
        np.std(metric_draws({**run.model_error, "axes": run.model_error["axes"][:2]}, "mean_ttft_ms"))
        for run in (loaded, quiet)
    ]
    assert moved[0] > 2 * steps > moved[1]


def test_an_open_loop_below_saturation_serves_what_arrives_whatever_the_model_gets_wrong(quiet):
    assert half_width(quiet, "output_throughput") < 0.05 < half_width(quiet, "mean_tpot_ms")


def test_acceptance_moves_what_drafting_gives():
    with_drafts = simulate(chat(**EAGLE), intervals=True).model_error
    (axis,) = (axis for axis in with_drafts["axes"] if axis["name"] == "acceptance")
    low, high = axis["response"]["mean_tpot_ms"]
    assert low > 0 > high, "fewer accepted tokens make a token slower"


def test_draws_depend_on_the_name_of_a_source_alone():
    assert (standard_draws("a") == standard_draws("a")).all()
    assert abs(np.corrcoef(standard_draws("a"), standard_draws("b"))[0, 1]) < 0.2
    assert standard_draws("a").mean() == pytest.approx(0.0, abs=1e-12)
    assert len(standard_draws("a")) == DRAWS


MEASURED, NEVER_MEASURED = {"calibrated": 1.0}, {"calibrated": 0.0, "datasheet": 1.0}


def test_without_calibrated_evidence_neither_probability_nor_interval_is_surer_than_90_percent(quiet):
    error, drafting = quiet.model_error, simulate(chat(**EAGLE), intervals=True).model_error
    for ratio in (2.0, 0.5):
        sure, unsure = (
            with_model_error(Ratio(ratio, ratio, ratio), error, drafting, "mean_tpot_ms", (MEASURED, evidence))
            for evidence in (MEASURED, NEVER_MEASURED)
        )
        assert sure.verdict == (1 if ratio > 1 else -1)
        assert (sure.probability, unsure.probability) == ((1.0, 0.9) if ratio > 1 else (0.0, 0.1))
        assert unsure.low < 1 < unsure.high
        assert unsure.side == sure.verdict, "the likely side is named all the same"


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_probability_moves_with_the_share_of_time_that_was_measured_and_never_jumps(probability, share, other):
    stated, at_other = (
        stated_probability(probability, {"calibrated": 1.0 - part, "extrapolated": part}) for part in (share, other)
    )
    assert stated_probability(probability, MEASURED) == probability
    assert 0.1 <= stated_probability(probability, NEVER_MEASURED) <= 0.9
    assert abs(stated - at_other) <= 0.1 * abs(share - other) + 1e-12
    assert (abs(stated - 0.5) - abs(at_other - 0.5)) * (share - other) <= 1e-12, "the less measured, the less sure"
    assert (stated - stated_probability(other, {"calibrated": 1.0 - share})) * (probability - other) >= -1e-12


def test_a_ratio_does_not_jump_where_the_evidence_level_of_a_run_changes(quiet):
    error, drafting = quiet.model_error, simulate(chat(**EAGLE), intervals=True).model_error
    below, above = (
        with_model_error(Ratio(2.0, 2.0, 2.0), error, drafting, "mean_tpot_ms", [MEASURED, {"calibrated": 1.0 - share}])
        for share in (0.0498, 0.0502)
    )
    assert below.verdict == above.verdict == 1
    assert below.probability == pytest.approx(above.probability, abs=1e-4)
    assert below.low == pytest.approx(above.low, rel=1e-3)


def test_what_two_variants_share_cancels(quiet):
    error = quiet.model_error
    same = with_model_error(Ratio(1.0, 1.0, 1.0), error, error, "mean_e2el_ms", [MEASURED])
    assert (same.low, same.high, same.probability) == (1.0, 1.0, 0.5)
    drafting = simulate(chat(**EAGLE), intervals=True)
    ratio = with_model_error(Ratio(2.0, 2.0, 2.0), error, drafting.model_error, "mean_tpot_ms", [MEASURED])
    disaggregated = np.hypot(half_width(quiet, "mean_tpot_ms"), half_width(drafting, "mean_tpot_ms"))
    assert np.log(ratio.high / ratio.low) / 2 < 1.19 * disaggregated, "95 % of the difference, were the two independent"
    assert ratio.probability == 1.0


def test_the_cost_of_a_token_errs_as_the_throughput(quiet):
    drafting = simulate(chat(**EAGLE), intervals=True)
    cost, throughput = (
        with_model_error(Ratio(2.0, 1.9, 2.1), quiet.model_error, drafting.model_error, metric, [MEASURED])
        for metric in ("usd_per_million_output_tokens", "output_throughput")
    )
    assert cost == throughput
    assert cost.high > cost.low


def test_a_comparison_says_how_likely_the_better_one_is():
    few = {"replications": 2, "crossover": "none", "sensitivity": False, "jobs": 1}
    document, without = (
        compare({"plain": chat(), "drafting": chat(**EAGLE)}, interval=interval, **few).document
        for interval in (True, False)
    )
    speedup = document["variants"][1]["speedup"]["mean_tpot_ms"]
    assert speedup["low"] < speedup["ratio"] < speedup["high"]
    assert document["basis"] != "calibrated"
    assert 0.8 < speedup["probability"] < 0.9, "one published drafter in ten gained nothing"
    assert "likely to be better" in document["conclusion"]
    narrow = without["variants"][1]["speedup"]["mean_tpot_ms"]
    assert narrow["probability"] is None
    assert narrow["ratio"] == speedup["ratio"]
    assert narrow["high"] - narrow["low"] < speedup["high"] - speedup["low"]


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": {"chip": "h100-sxm", "pipeline_parallel": 2}},
        {"hardware": {"chip": "h100-sxm", "replicas": 2}, "engine": {"routing": "least-outstanding"}},
        EAGLE | {"speculation": EAGLE["speculation"] | {"policy": "goodput"}},
        {"engine": {"stepping": "exact-steps"}},
    ],
    ids=["pipeline", "router", "policy", "oracle"],
)
def test_every_way_of_serving_has_intervals(changes):
    run = simulate(chat(**changes), intervals=True)
    assert half_width(run, "mean_tpot_ms") > 0.01


def test_steps_that_take_a_factor_longer_do_so_in_either_engine():
    finished = []
    for stepping in ("fast", "exact-steps"):
        build = build_run(chat(engine={"stepping": stepping}))
        pools = tuple(replace(pool, step_factors=(1.5, 1.25), step_more_s=2e-3) for pool in build.pools)
        log = replace(build.fleet, pools=pools).run(generate_requests(chat().workload, 0))
        finished.append(np.asarray(log.finished_s))
    assert finished[0].tolist() == finished[1].tolist()
    plain = build_run(chat()).fleet.run(generate_requests(chat().workload, 0))
    assert (finished[0] > np.asarray(plain.finished_s)).all()


def test_of_very_long_runs_a_fixed_number_is_served_again(monkeypatch):
    monkeypatch.setattr(uncertainty, "MOST_REQUESTS", 300)
    long = chat(20.0).with_values({"workload.num_requests": 3000})
    error = simulate(long, 0, full_step_rows=0, intervals=True).model_error
    assert error["requests"] == 300


def test_other_figures_than_the_summary_can_be_requested():
    result = simulate(chat(), intervals=lambda run: {"longest_s": float(np.max(run.requests.finished_s))})
    assert set(result.model_error["axes"][0]["response"]) == {"longest_s"}


@pytest.mark.parametrize("chip", ["h100-sxm", "mi300x", "n150"])
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        ("gemm", {"m": 16, "n": 4096, "k": 4096}),
        ("attention_decode", {"batch": 8, "kv_len": 2048, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}),
        ("elementwise", {"bytes_moved": 1e6}),
        ("moe", {"tokens": 64, "num_experts": 64, "experts_per_token": 8, "hidden": 2048, "intermediate": 1024}),
        ("all_reduce", {"message_bytes": 1e6, "world_size": 2}),
    ],
)
def test_every_predicted_kernel_has_an_interval(chip, op, shape):
    result = predict_kernel(chip, op, shape | ({"link": "nvlink4"} if op == "all_reduce" else {}))
    low, high = result["interval"]
    assert low < result["seconds"] < high


@pytest.mark.parametrize(
    ("changes", "again"),
    [
        ({}, 120),
        ({"engine.stepping": "exact-steps"}, 32),
        ({"workload.arrivals": {"process": "closed-loop", "max_concurrency": 4}, "engine.stepping": "exact-steps"}, 12),
    ],
)
def test_fewer_requests_are_served_again_where_steps_are_decided_in_python(changes, again):
    """Intervals of 120 requests serve all of them again in the compiled engine, and a tenth or twice the load else."""
    run = simulate(chat().with_values({"workload.num_requests": 120} | changes), intervals=True)
    assert run.model_error["requests"] == again


def test_errors_of_steps_come_on_top_of_what_was_measured():
    build = build_run(chat()).with_pools(lambda pool: replace(pool, step_factors=(1.2, 1.5)))
    moved = uncertainty._with_factors(build, np.array([1.1, 2.0]))
    assert moved.pools[0].step_factors == pytest.approx((1.32, 3.0))
