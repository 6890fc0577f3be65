"""Objectives in numbers and words: how near a value is to its limit, goodput, and resamples of one run."""

from math import inf

import numpy as np
import pytest
from tiny_scenario import tiny_data

from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.studies.plan.objectives import GOODPUT, latency_words, limits_words, objective_of, reached, resampled

SHARE = ("goodput=0.9", "ttft_ms=500", "tpot_ms=50")


@pytest.fixture(scope="module")
def result():
    return simulate(scenario_from(tiny_data(num_requests=80), "test"))


def test_slo_ratio_is_a_share_of_the_limit_or_of_the_bad_requests_allowed():
    latency, share = objective_of({}, ("p99_ttft_ms=200",)), objective_of({}, SHARE)
    assert latency.slo_ratio("p99_ttft_ms", 50.0) == 0.25
    assert latency.slo_ratio("p99_ttft_ms", None) == 0.0, "what was never measured breaks no limit"
    assert share.slo_ratio(GOODPUT, 0.95) == pytest.approx(0.5)
    assert share.slo_ratio(GOODPUT, 0.8) == pytest.approx(2.0)
    all_of_them = objective_of({}, ("goodput=1", "ttft_ms=500"))
    assert [all_of_them.slo_ratio(GOODPUT, value) for value in (1.0, 0.999)] == [0.0, inf]


def test_what_was_reached_is_what_the_requests_say(result):
    requests = result.requests
    ttft = 1e3 * (requests.first_token_s - requests.arrival_s)
    tpot = 1e3 * (requests.finished_s - requests.first_token_s) / (requests.output_tokens - 1)
    values = reached(objective_of({}, ("mean_ttft_ms=900", "p99_itl_ms=900", *SHARE)), result)
    assert values["mean_ttft_ms"] == pytest.approx(ttft.mean())
    gaps = np.repeat(result.gaps.gap_s, result.gaps.count) * 1e3
    assert gaps.min() <= values["p99_itl_ms"] <= gaps.max()
    assert values["p99_itl_ms"] >= np.quantile(gaps, 0.98)
    fine = (ttft <= 500) & ~(tpot > 50)
    assert values[GOODPUT] == pytest.approx(fine.mean())


def test_resamples_scatter_about_the_run(result):
    objective = objective_of({}, ("mean_ttft_ms=900", *SHARE))
    values = reached(objective, result)
    rows = resampled(objective, result, seed=1)
    assert rows == resampled(objective, result, seed=1) != resampled(objective, result, seed=2)
    for key, value in values.items():
        drawn = np.array([row[key] for row in rows])
        assert abs(drawn.mean() - value) <= 4 * drawn.std() / np.sqrt(len(rows)) + 0.02 * value
    assert np.std([row["mean_ttft_ms"] for row in rows]) > 0
    assert resampled(objective_of({}, ("p99_itl_ms=9", "p99_ttft_ms=9")), result) is None


def test_objectives_read_as_sentences():
    objective = objective_of({}, ("p99_ttft_ms=1000", *SHARE))
    assert limits_words(objective) == "p99 TTFT <= 1,000 ms and 0.9 of requests within TTFT <= 500 ms, TPOT <= 50 ms"
    assert latency_words(GOODPUT, 0.875) == "goodput 87.5%"
    assert latency_words(GOODPUT, None) == "goodput unknown"
    assert latency_words("p99_ttft_ms", 812.0) == "p99 TTFT 812 ms"
    assert latency_words("p99_ttft_ms", None) == "p99 TTFT unknown"
