"""The summary reproduces vLLM's definitions on runs small enough to work out by hand."""

import numpy as np
import pytest

from forerun.errors import ForerunError
from simulator.running.metrics import LATENCIES, PERCENTILES, slo_limits, summarise
from simulator.running.metrics.summary import slo_report
from simulator.serving.records import GapCounts

CONTRACT_KEYS = {
    *("completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("request_goodput", "output_throughput", "total_token_throughput"),
    *(f"{statistic}_{name}_ms" for name in LATENCIES for statistic in ("mean", "median", "std")),
    *(f"p{percent}_{name}_ms" for name in LATENCIES for percent in PERCENTILES),
}


@pytest.fixture
def two(make_requests):
    return make_requests(arrival_s=[1.0, 2.0], first_token_s=[1.5, 3.0], finished_s=[2.5, 5.0], output_tokens=[11, 5])


def test_keys_are_those_of_the_contract(make_result, two):
    assert set(summarise(make_result(two))) == CONTRACT_KEYS


def test_definitions(make_result, two):
    expected = {
        "duration": 4.0, "completed": 2, "failed": 0, "total_input_tokens": 200, "total_output_tokens": 16,
        "request_throughput": 0.5, "output_throughput": 4.0, "total_token_throughput": 54.0, "mean_ttft_ms": 750.0,
        "std_ttft_ms": 250.0, "p90_ttft_ms": 950.0, "mean_tpot_ms": 300.0, "mean_e2el_ms": 2250.0,
        "mean_itl_ms": 12.5, "p50_itl_ms": 10.0,
    }  # fmt: skip
    summary = summarise(make_result(two))
    assert {key: summary[key] for key in expected} == pytest.approx(expected)
    assert summary["request_goodput"] is None


def test_single_token_outputs_have_no_tpot_and_no_itl(make_result, make_requests):
    requests = make_requests(arrival_s=[0.0], first_token_s=[1.0], finished_s=[1.0], output_tokens=[1])
    summary = summarise(make_result(requests, gaps=GapCounts(np.empty(0), np.empty(0, dtype=np.int64))))
    absent = [key for key in summary if "tpot" in key or "itl" in key]
    assert len(absent) == 14
    assert all(summary[key] is None for key in absent)
    assert summary["mean_ttft_ms"] == 1000.0


def test_failed_requests_count_only_as_failed(make_result, make_requests):
    requests = make_requests(
        arrival_s=[0.0, 0.5], first_token_s=[1.0, np.nan], finished_s=[2.0, np.nan], input_tokens=[10, 99]
    )
    summary = summarise(make_result(requests))
    assert (summary["completed"], summary["failed"], summary["total_input_tokens"]) == (1, 1, 10)
    assert summary["p99_ttft_ms"] == 1000.0


def test_nothing_finished_leaves_rates_unknown(make_result, make_requests):
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
def test_goodput_counts_requests_within_every_limit(make_result, two, slo, goodput):
    assert summarise(make_result(two, slo=slo))["request_goodput"] == goodput


def test_a_request_without_tpot_cannot_break_its_limit(make_result, make_requests):
    requests = make_requests(arrival_s=[0.0], first_token_s=[1.0], finished_s=[1.0], output_tokens=[1])
    assert summarise(make_result(requests, slo={"p99_tpot_ms": 1}))["request_goodput"] == 1.0


def test_slo_report_names_value_and_verdict(make_result, two):
    result = make_result(two, slo={"p99_ttft_ms": 600, "p99_itl_ms": 20})
    report = slo_report(result, summarise(result))
    assert report["limits"]["p99_ttft_ms"]["met"] is False
    assert report["limits"]["p99_ttft_ms"]["value"] == pytest.approx(995.0)
    assert report["limits"]["p99_itl_ms"]["met"] is True
    assert (report["met"], report["good_share"]) == (False, 0.5)


def test_a_failed_request_fails_the_slo(make_result, make_requests):
    requests = make_requests(arrival_s=[0.0, 0.5], first_token_s=[0.1, np.nan], finished_s=[2.0, np.nan])
    result = make_result(requests, slo={"p99_ttft_ms": 600})
    report = slo_report(result, summarise(result))
    assert report["limits"]["p99_ttft_ms"]["met"] is True
    assert (report["met"], report["good_share"]) == (False, 0.5)


@pytest.mark.parametrize("key", ["p99_ttft", "ttft_ms", "p99_latency_ms", "max_ttft_ms"])
def test_an_unknown_limit_is_refused_by_name(key):
    with pytest.raises(ForerunError, match=f"slo.{key}"):
        slo_limits({key: 1.0})


@pytest.mark.parametrize(
    ("counted", "rate", "length", "by_position"),
    [((10, 30, 18, (9, 6, 3)), 60.0, 2.8, [0.9, 0.6, 0.3]), ((0, 0, 0, (0, 0)), None, None, None)],
)
def test_speculation_counters_as_vllm_prints_them(make_result, two, counters, counted, rate, length, by_position):
    summary = summarise(make_result(two, speculation=counters(*counted)))
    assert summary["spec_decode_num_drafts"] == counted[0]
    assert summary["spec_decode_acceptance_rate"] == pytest.approx(rate)
    assert summary["spec_decode_acceptance_length"] == pytest.approx(length)
    if by_position is not None:
        assert summary["spec_decode_per_position_acceptance_rates"] == by_position
