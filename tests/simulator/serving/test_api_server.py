"""One queue of an API server for requests and streamed tokens."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from one_pool import one_pool
from scenario_parts import closed_loop
from stub_timers import LinearTimer

from simulator.running.build import build_replica
from simulator.running.metrics.conclusion import api_server_remedy
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving import EngineLimits
from simulator.serving.engine_config import EngineConfig
from simulator.studies.steady_state.averages import ApiServer
from simulator.workload import RequestStream

STEP_S = 0.0625
LIMITS = EngineLimits(256, 4096, 16, 10_000, 0, 10_000, True)
STREAMING = replace(LIMITS, streaming_s=0.0078125)


def run(limits, arrivals, outputs, concurrency=None, stepping="fast", replicas=1):
    count = len(outputs)
    arrivals = np.zeros(count) if arrivals is None else np.asarray(arrivals, dtype=float)
    stream = RequestStream(arrivals, np.full(count, 16), np.asarray(outputs), concurrency)
    routing = "round-robin" if replicas == 1 else "least-outstanding"
    return one_pool(replicas, routing, "vllm-v1", stepping, limits, LinearTimer(step_s=STEP_S)).run(stream)


def mean_ttft(log):
    return float(np.mean(np.asarray(log.first_token_s) - np.asarray(log.arrival_s)))


def test_a_client_has_each_token_after_the_work_on_it():
    log = run(STREAMING, None, [4])
    assert_allclose(log.first_token_s[0], STEP_S + STREAMING.streaming_s)
    assert_allclose(log.finished_s[0], 4 * STEP_S + STREAMING.streaming_s)
    assert_allclose(log.gaps().gap_s, STEP_S)


def test_tokens_of_one_step_are_streamed_one_after_another():
    """All come when the middle one does, and a step's tokens wait for those of the step before."""
    log = run(STREAMING, None, [4] * 15)
    assert_allclose(log.first_token_s[:], STEP_S + 8 * STREAMING.streaming_s)
    log = run(STREAMING, None, [4] * 31)
    late_s = 31 * STREAMING.streaming_s - STEP_S  # by which each step's tokens come later than those of the one before
    assert_allclose(log.finished_s[:], 4 * STEP_S + 16 * STREAMING.streaming_s + 3 * late_s)


@pytest.mark.parametrize("concurrency", [None, 40])
def test_a_saturated_api_server_is_busy_with_the_work_booked(concurrency):
    """From the first request to the last token it works on nothing else: 600 requests and 600 x 8 chunks."""
    limits = replace(STREAMING, api_server_work_s=0.015625)
    log = run(limits, None, [8] * 600, concurrency)
    booked_s = limits.api_server_busy_s(600, 0, 600 * 8)
    assert booked_s <= max(log.finished_s) <= booked_s + 3.0
    both = [log.gaps().gap_s @ log.gaps().count, np.sum(log.finished_s) - np.sum(log.first_token_s)]
    assert_allclose(*both)


def test_tokens_go_before_requests_that_wait():
    """Sixty-four requests keep the server busy for 4 s; the tokens of the first come as if they did not wait."""
    limits = replace(STREAMING, api_server_work_s=0.0625)
    log = run(limits, None, [4, *[1] * 63])
    assert log.finished_s[0] < 0.0625 + 5 * STEP_S + 2 * 0.0625
    assert log.first_token_s[63] > 64 * 0.0625 + 67 * STREAMING.streaming_s


@pytest.mark.parametrize("concurrency", [None, 32])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", ["api_server_work_s", "streaming_s", "tokenisation_per_token_s"])
def test_ttft_rises_with_the_work(concurrency, replicas, name):
    work = [LIMITS if not factor else replace(LIMITS, **{name: factor * 5e-4}) for factor in (0, 1, 2, 4, 8)]
    ttft = [mean_ttft(run(limits, np.arange(300) * 0.05, [6] * 300, concurrency, "fast", replicas)) for limits in work]
    assert np.all(np.diff(ttft) > 0)


def test_more_servers_share_the_work_of_one():
    data = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "workload": closed_loop(8, 8, 64, 4)}
    one, four = (
        build_replica(scenario_from(data | {"engine": {"api_server_count": n}}, "s")).main.limits for n in (1, 4)
    )
    for name in ("api_server_work_s", "tokenisation_per_token_s", "streaming_s"):
        assert_allclose(getattr(one, name), 4 * getattr(four, name))
        assert getattr(one, name) > 0
    assert one.api_server_s == four.api_server_s


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([0.0, 1e-3, 3e-2]),
    st.sampled_from([1e-4, 4e-3]),
    st.sampled_from([None, 5, 40]),
    st.integers(1, 2),
    st.integers(0, 99),
)
def test_the_compiled_engine_streams_as_the_interpreted_one(work_s, streaming_s, concurrency, replicas, seed):
    random = np.random.default_rng(seed)
    arrivals, outputs = np.sort(random.random(60) * 4), random.integers(1, 30, 60)
    limits = replace(LIMITS, api_server_work_s=work_s, streaming_s=streaming_s)
    both = [run(limits, arrivals, outputs, concurrency, one, replicas) for one in ("fast", "exact-steps")]
    for name in ("arrival_s", "scheduled_s", "first_token_s", "finished_s"):
        assert_array_equal(*(np.asarray(getattr(log, name)) for log in both))


def test_means_of_the_queue_follow_the_load():
    """Without tokens Pollaczek and Khinchine's wait; tokens make it longer, up to the rate that the server carries."""
    plain, streaming = ApiServer(0.0, 2e-3, 4e-6), ApiServer(0.0, 2e-3, 4e-6, streaming_s=5e-5, chunks=64)
    assert_allclose(plain.mean_s(100), 2e-3 + 100 * 4e-6 / 2 / 0.8)
    assert_allclose(streaming.most_rate, 1 / (2e-3 + 64 * 5e-5))
    waits = [streaming.mean_s(rate, 50) for rate in (1, 50, 100, 150, 190)]
    assert np.all(np.diff(waits) > 0)


@pytest.mark.parametrize(
    ("framework", "remedy"),
    [(name, "engine.api_server_count: 2") for name in ("vllm", "sglang")] + [("trtllm", "more replicas")],
)
def test_the_remedy_is_one_that_the_engine_takes(framework, remedy):
    assert api_server_remedy(EngineConfig(framework=framework).model_dump()).startswith(remedy)


def test_one_server_of_sglang_limits_eight_chips_with_a_small_model():
    """512 streams of Llama-3.1-8B on eight H200: 19.6 k tokens/s and 3.2 s to the first token were measured (0.5.6, in
    NVIDIA's aiconfigurator); four servers would answer at once."""
    data = {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h200-sxm", "tensor_parallel": 8},
        "engine": {"framework": "sglang", "release": "0.5.6", "max_num_seqs": 512},
        "workload": closed_loop(512, 2560, 1000, {"distribution": "uniform", "min": 900, "max": 1100}),
    }
    one, four = (
        simulate(scenario_from(data | {"engine": data["engine"] | {"api_server_count": n}}, "s")).data for n in (1, 4)
    )
    assert "limited by the API server" in one.conclusion
    assert_allclose(one.summary["output_throughput"], 19_600, rtol=0.15)
    assert 2_000 < one.summary["mean_ttft_ms"] < 4_000
    assert four.summary["mean_ttft_ms"] < 500
