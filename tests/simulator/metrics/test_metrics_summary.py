"""Summary and use of a run: vLLM's definitions worked out by hand; shares, energy and cost by conservation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import make_requests, make_result, make_steps
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.running.metrics import (
    LATENCIES,
    PERCENTILES,
    bottleneck_shares,
    main_bottleneck,
    slo_limits,
    summarise,
    utilisation,
)
from simulator.running.metrics.summary import slo_report
from simulator.running.metrics.usage import BOUNDS, cost_usd, energy_joules, usd_per_million_tokens
from simulator.running.run import simulate
from simulator.running.step_rows import StepTotals
from simulator.serving.records import GapCounts, SpeculationCounters

CONTRACT_KEYS = {
    *("completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput"),
    *(f"{statistic}_{name}_ms" for name in LATENCIES for statistic in ("mean", "median", "std")),
    *(f"p{percent}_{name}_ms" for name in LATENCIES for percent in PERCENTILES),
}


@pytest.fixture
def two():
    return make_requests(arrival_s=[1.0, 2.0], first_token_s=[1.5, 3.0], finished_s=[2.5, 5.0], output_tokens=[11, 5])


def test_keys_are_those_of_the_contract(two):
    assert set(summarise(make_result(two))) == CONTRACT_KEYS


def test_definitions(two):
    expected = {
        "duration": 4.0, "completed": 2, "failed": 0, "total_input_tokens": 200, "total_output_tokens": 16,
        "request_throughput": 0.5, "output_throughput": 4.0, "total_token_throughput": 54.0, "mean_ttft_ms": 750.0,
        "std_ttft_ms": 250.0, "p90_ttft_ms": 950.0, "mean_tpot_ms": 300.0, "mean_e2el_ms": 2250.0,
        "mean_itl_ms": 12.5, "p50_itl_ms": 10.0,
    }  # fmt: skip
    summary = summarise(make_result(two))
    assert {key: summary[key] for key in expected} == pytest.approx(expected)
    assert summary["request_goodput"] is None


def test_single_token_outputs_have_no_tpot_and_no_itl():
    requests = make_requests(arrival_s=[0.0], first_token_s=[1.0], finished_s=[1.0], output_tokens=[1])
    summary = summarise(make_result(requests, gaps=GapCounts(np.empty(0), np.empty(0, dtype=np.int64))))
    absent = [key for key in summary if "tpot" in key or "itl" in key]
    assert len(absent) == 14
    assert all(summary[key] is None for key in absent)
    assert summary["mean_ttft_ms"] == 1000.0


def test_failed_requests_count_only_as_failed():
    requests = make_requests(
        arrival_s=[0.0, 0.5], first_token_s=[1.0, np.nan], finished_s=[2.0, np.nan], input_tokens=[10, 99]
    )
    summary = summarise(make_result(requests))
    assert (summary["completed"], summary["failed"], summary["total_input_tokens"]) == (1, 1, 10)
    assert summary["p99_ttft_ms"] == 1000.0


def test_nothing_finished_leaves_rates_unknown():
    requests = make_requests(arrival_s=[0.0], first_token_s=[np.nan], finished_s=[np.nan])
    summary = summarise(make_result(requests))
    assert summary["completed"] == 0
    for key in ("duration", "request_throughput", "output_throughput", "mean_ttft_ms", "p99_e2el_ms"):
        assert summary[key] is None


@pytest.mark.parametrize(
    ("slo", "goodput"),
    [
        ({"p99_ttft_ms": 600}, 0.25),
        ({"p99_ttft_ms": 1000, "p99_tpot_ms": 500}, 0.5),
        ({"p99_ttft_ms": 600, "mean_tpot_ms": 99}, 0.0),
        ({"p99_itl_ms": 5}, None),
    ],
)
def test_goodput_counts_requests_within_every_limit(two, slo, goodput):
    assert summarise(make_result(two, slo=slo))["request_goodput"] == goodput


def test_a_request_without_tpot_cannot_break_its_limit():
    requests = make_requests(arrival_s=[0.0], first_token_s=[1.0], finished_s=[1.0], output_tokens=[1])
    assert summarise(make_result(requests, slo={"p99_tpot_ms": 1}))["request_goodput"] == 1.0


def test_slo_report_names_value_and_verdict(two):
    result = make_result(two, slo={"p99_ttft_ms": 600, "p99_itl_ms": 20})
    report = slo_report(result, summarise(result))
    assert report["limits"]["p99_ttft_ms"]["met"] is False
    assert report["limits"]["p99_ttft_ms"]["value"] == pytest.approx(995.0)
    assert report["limits"]["p99_itl_ms"]["met"] is True
    assert (report["met"], report["good_share"]) == (False, 0.5)


@pytest.mark.parametrize(("key", "most"), [("p99_ttft_ms", 1), ("p95_ttft_ms", 5), ("mean_ttft_ms", 1)])
def test_refused_requests_miss_an_slo_only_beyond_its_percentile(key, most):
    for refused in (most, most + 1):
        first = np.where(np.arange(100) < refused, np.nan, 0.1)
        requests = make_requests(arrival_s=np.zeros(100), first_token_s=first, finished_s=2.0 + first)
        result = make_result(requests, slo={key: 600})
        report = slo_report(result, summarise(result))
        assert report["met"] is report["limits"][key]["met"] is (refused == most)
        assert report["good_share"] == 1 - refused / 100


@pytest.mark.parametrize("key", ["p99_ttft", "ttft_ms", "p99_latency_ms", "max_ttft_ms"])
def test_an_unknown_limit_is_refused_by_name(key):
    with pytest.raises(ForerunError, match=f"slo.{key}"):
        slo_limits({key: 1.0})


@pytest.mark.parametrize(
    ("counted", "rate", "length", "by_position"),
    [((10, 30, 18, (9, 6, 3)), 60.0, 2.8, [0.9, 0.6, 0.3]), ((0, 0, 0, (0, 0)), None, None, None)],
)
def test_speculation_counters_as_vllm_prints_them(two, counted, rate, length, by_position):
    summary = summarise(make_result(two, speculation=SpeculationCounters(*counted)))
    assert summary["spec_decode_num_drafts"] == counted[0]
    assert summary["spec_decode_acceptance_rate"] == pytest.approx(rate)
    assert summary["spec_decode_acceptance_length"] == pytest.approx(length)
    if by_position is not None:
        assert summary["spec_decode_per_position_acceptance_rates"] == by_position


def totals(steps, replicas=1, peak_flops_per_s=1e15, bandwidth_bytes_per_s=1e12):
    """Sums over the steps of equal replicas."""
    result = StepTotals.none([peak_flops_per_s] * replicas, [bandwidth_bytes_per_s] * replicas)
    result.add(steps)
    return result


times = st.lists(st.floats(0, 10), min_size=5, max_size=5)


@given(st.lists(times, min_size=1, max_size=8), st.integers(1, 4), st.floats(0.001, 100))
def test_shares_are_a_partition_of_engine_time(rows, replicas, duration_s):
    parts = np.array(rows).T
    seconds = parts.sum(axis=0)
    steps = make_steps(np.arange(len(rows)).tolist(), seconds.tolist(), **_by_bound(parts))
    shares = bottleneck_shares(totals(steps, replicas), replicas, duration_s)
    assert shares is not None
    assert list(shares) == [*BOUNDS, "idle"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(0.0 <= share <= 1.0 for share in shares.values())


def _by_bound(parts):
    return {f"{bound}_s": column for bound, column in zip(BOUNDS, parts, strict=True)}


def test_idle_is_what_the_steps_leave():
    shares = bottleneck_shares(totals(make_steps([0.0, 3.0], [1.0, 1.0])), replicas=2, duration_s=4.0)
    assert shares["memory"] == 0.25
    assert shares["idle"] == 0.75
    assert main_bottleneck(shares) == "memory"


def test_no_engine_time_has_no_bottleneck():
    assert bottleneck_shares(totals(make_steps([], [])), 1, 0.0) is None
    assert main_bottleneck(None) is None
    assert main_bottleneck(bottleneck_shares(totals(make_steps([], [])), 1, 5.0)) == "idle"


def test_utilisation_over_the_whole_run():
    steps = make_steps([0.0, 1.0], [1.0, 1.0], flops=[4.0, 0.0], bytes=[1.0, 2.0])
    used = utilisation(totals(steps, 2, peak_flops_per_s=20.0, bandwidth_bytes_per_s=2.0), duration_s=4.0)
    # 4 FLOPs of 4 chips * 10 FLOP/s * 4 s; 3 bytes of 4 chips * 1 byte/s * 4 s.
    assert used.mfu == pytest.approx(4 / 160)
    assert used.mbu == pytest.approx(3 / 16)
    # Two steps of a second that memory bounds, one at 4 / 20 of its peak and so at TDP; 2 engines * 4 s in total.
    assert used.power_share == pytest.approx((min(1, 0.25 + 0.63 + 0.62 * 4 / 20) + 0.25 + 0.63) / 8)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (energy_joules(100.0, 700.0, 2, 10.0, 0.0), 2000.0),
        (energy_joules(100.0, 700.0, 2, 10.0, 0.5), 8000.0),
        (energy_joules(100.0, 700.0, 2, 10.0, 1.0), 14000.0),
        (energy_joules(None, 700.0, 1, 1.0, 0.5), None),
        (energy_joules(50.0, None, 1, 1.0, 0.5), None),
        (cost_usd(2.5, 8, 1800.0), 10.0),
        (cost_usd(None, 1, 1.0), None),
        (usd_per_million_tokens(10.0, 4_000_000), 2.5),
        (usd_per_million_tokens(None, 10), None),
        (usd_per_million_tokens(1.0, 0), None),
    ],
)
def test_energy_and_cost_are_none_where_they_are_not_known(value, expected):
    assert value == expected


def test_kv_shares_are_of_the_capacity_and_hits_of_the_prompts_that_were_scheduled():
    data = tiny_data() | {"engine": {"num_kv_blocks": 1800}}
    data["workload"] = {"trace": "mooncake-conversation", "num_requests": 30}
    run = simulate(data)
    kv, requests = run.kv, run.requests
    assert kv.capacity_tokens == 1800 * kv.block_size
    assert (kv.peak_use, kv.mean_use) == (kv.peak_blocks / 1800, kv.mean_blocks / 1800)
    assert np.isnan(requests.scheduled_s).any()
    scheduled = requests.input_tokens[np.isfinite(requests.scheduled_s)]
    assert kv.prefix_hit_rate == kv.prefix_hit_tokens / scheduled.sum()
