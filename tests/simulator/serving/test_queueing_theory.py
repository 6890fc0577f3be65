"""The event engine against queueing theory and conservation."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from one_pool import one_pool
from scipy import stats
from stub_timers import LinearTimer

from simulator.serving import EngineLimits
from simulator.workload import RequestStream

ONE_AT_A_TIME = EngineLimits(1, 4096, 16, 10_000, 0, 10_000, True)


def mean_wait(outputs: np.ndarray, arrivals: np.ndarray, step_s: float, stepping: str = "fast") -> float:
    stream = RequestStream(arrivals, np.ones(len(outputs), dtype=np.int64), outputs, None)
    log = one_pool(1, "round-robin", "vllm-v1", stepping, ONE_AT_A_TIME, LinearTimer(step_s=step_s)).run(stream)
    return float(np.mean(np.asarray(log.scheduled_s) - arrivals))


def check_against(theory: float, waits: list[float]) -> None:
    error = float(stats.sem(waits))
    assert error < 0.04 * theory, "too few requests to say anything"
    assert abs(np.mean(waits) - theory) < 4 * error


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_m_d_1_waiting_time(load):
    """Pollaczek-Khinchine with constant service: W = rho D / (2 (1 - rho))."""
    service = 0.01
    waits = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(service / load, 9_000))
        waits.append(mean_wait(np.ones(9_000, dtype=np.int64), arrivals, service))
    check_against(load * service / (2 * (1 - load)), waits)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_m_m_1_waiting_time(load):
    """Exponential service as geometrically many equal steps: W = rho / (mu - lambda), with the lattice's correction."""
    mean_steps, step_s = 8, 1.25e-3
    service = mean_steps * step_s
    waits = []
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        arrivals = np.cumsum(rng.exponential(service / load, 9_000))
        waits.append(mean_wait(rng.geometric(1 / mean_steps, 9_000), arrivals, step_s))
    second_moment = step_s**2 * (2 - 1 / mean_steps) * mean_steps**2
    theory = load / service * second_moment / (2 * (1 - load))
    assert math.isclose(theory, load * service / (1 - load), rel_tol=0.07)
    check_against(theory, waits)


def busy_run(stepping: str, closed_loop: int | None = None):
    rng = np.random.default_rng(5)
    count = 400
    stream = RequestStream(
        np.zeros(count) if closed_loop else np.cumsum(rng.exponential(0.01, count)),
        rng.integers(1, 600, count),
        rng.integers(1, 80, count),
        closed_loop,
    )
    limits = EngineLimits(16, 512, 16, 4000, 0, 10_000, True)
    timer = LinearTimer(step_s=2e-3, token_s=3e-6, key_s=2e-8)
    return one_pool(1, "round-robin", "vllm-v1", stepping, limits, timer).run(stream)


@pytest.mark.parametrize("stepping", ["fast", "exact-steps"])
def test_sequence_seconds_are_conserved(stepping):
    """Little's law for the batch, exactly: integral of its size over time = sum of the times requests spend in it."""
    log = busy_run(stepping)
    assert sum(log.preemptions) == 0
    area = float((log.steps.column("running") * log.steps.column("seconds")).sum())
    stays = np.asarray(log.finished_s) - np.asarray(log.scheduled_s)
    assert math.isclose(area, stays.sum(), rel_tol=1e-9)


@pytest.mark.parametrize("stepping", ["fast", "exact-steps"])
@pytest.mark.parametrize("closed_loop", [None, 7])
def test_tokens_are_conserved(stepping, closed_loop):
    log = busy_run(stepping, closed_loop)
    steps = log.steps
    assert steps.integers("output_tokens").sum() == sum(log.output_tokens)
    assert steps.integers("prefill_tokens").sum() == sum(log.input_tokens)
    starts, seconds = steps.column("start_s"), steps.column("seconds")
    assert (starts[1:] >= starts[:-1] + seconds[:-1] - 1e-12).all(), "steps overlap"
    for early, late in (
        ("arrival_s", "scheduled_s"),
        ("scheduled_s", "first_token_s"),
        ("first_token_s", "finished_s"),
    ):
        assert (np.asarray(getattr(log, early)) <= np.asarray(getattr(log, late))).all()


@pytest.mark.parametrize("replicas", [1, 3])
def test_closed_loop_obeys_littles_law(replicas):
    """Throughput x mean latency <= concurrency, and close to it when the loop is long."""
    rng = np.random.default_rng(6)
    stream = RequestStream(np.zeros(600), rng.integers(1, 200, 600), rng.integers(2, 60, 600), 12)
    limits = EngineLimits(64, 512, 16, 4000, 0, 10_000, True)
    timer = LinearTimer(step_s=2e-3, token_s=3e-6)
    log = one_pool(replicas, "least-outstanding", "vllm-v1", "fast", limits, timer).run(stream)
    arrival, finished = np.asarray(log.arrival_s), np.asarray(log.finished_s)
    in_flight = (finished - arrival).sum() / finished.max()
    assert 0.97 * 12 < in_flight <= 12 * (1 + 1e-9)


@pytest.mark.parametrize("scheduler", ["vllm-v1", "prefill-first", "sglang", "static"])
def test_every_scheduler_serves_everything_within_its_blocks(scheduler):
    rng = np.random.default_rng(7)
    stream = RequestStream(
        np.cumsum(rng.exponential(0.002, 300)), rng.integers(1, 300, 300), rng.integers(1, 80, 300), None
    )
    limits = EngineLimits(32, 512, 16, 120, 1, 10_000, scheduler != "prefill-first")
    log = one_pool(1, "round-robin", scheduler, "exact-steps", limits, LinearTimer(step_s=2e-3)).run(stream)
    assert not any(log.failed)
    assert np.isfinite(np.asarray(log.finished_s)).all()
    assert log.steps.integers("output_tokens").sum() == stream.output_tokens.sum()
    assert log.steps.integers("kv_blocks").max() <= 120
    assert log.steps.integers("running").max() <= 32
    assert (log.steps.integers("prefill_tokens") + log.steps.integers("decode_seqs")).max() <= 512


def test_static_batching_waits_for_its_longest():
    """Two requests of 10 and 100 tokens in one batch: a third starts only when the longer is done."""
    stream = RequestStream(np.zeros(3), np.full(3, 8), np.array([10, 100, 5]), None)
    limits = EngineLimits(2, 512, 16, 1000, 0, 10_000, True)
    cluster = one_pool(1, "round-robin", "static", "exact-steps", limits, LinearTimer(step_s=0.5))
    log = cluster.run(stream)
    assert_allclose(np.asarray(log.finished_s), [5.0, 50.0, 52.5])
    decoding = log.steps.integers("decode_seqs")
    assert decoding[20] == 2, "a finished request keeps computing as padding"


def test_requests_that_can_never_fit_are_refused_not_lost():
    stream = RequestStream(np.zeros(3), np.array([10, 5000, 10]), np.array([5, 5, 50_000]), None)
    limits = EngineLimits(4, 512, 16, 100, 0, 10_000, True)
    log = one_pool(1, "round-robin", "vllm-v1", "fast", limits, LinearTimer()).run(stream)
    assert list(log.failed) == [0, 1, 1]
    assert log.completed == 3
    begins = {"needs 313 KV blocks, the replica has 100", "longer than the context of 10000 tokens (max_model_len)"}
    assert {words.partition(": ")[0] for words in log.refusals} == begins
