"""Conversations of several turns: what a turn finds in the cache, and when it is sent."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from one_pool import one_pool
from plain_scenario import plain_scenario
from stub_timers import LinearTimer
from test_fast_equals_exact import TIMER

from forerun.errors import ForerunError
from simulator.running.run import simulate
from simulator.serving import EngineLimits
from simulator.workload import WorkloadConfig, generate_requests

ENDLESS = EngineLimits(64, 4096, 16, 10**6, 0, None, True)


def sessions(count=60, seed=0, rate=5.0, new=40, output=30, **fields):
    fields = {"turns": {"distribution": "uniform", "min": 1, "max": 6}, "think_time_s": 0.5} | fields
    workload = {
        "arrivals": {"process": "poisson", "request_rate": rate},
        "input_tokens": {"distribution": "uniform", "min": 1, "max": new},
        "output_tokens": {"distribution": "uniform", "min": 1, "max": output},
        "num_requests": count,
        "sessions": fields,
    }
    return generate_requests(WorkloadConfig.model_validate(workload), seed)


def turn_before(stream) -> np.ndarray:
    """The turn that each waits for; -1 for none."""
    result = np.full(len(stream), -1)
    result[stream.follows[:, 1]] = stream.follows[:, 0]
    return result


def test_a_prompt_is_everything_stated_before_and_new_tokens():
    stream = sessions(system_prompt_tokens=100)
    turns = turn_before(stream)
    assert (turns < np.arange(len(stream))).all()
    for request, before in enumerate(turns.tolist()):
        message = 100 if before < 0 else stream.input_tokens[before] + stream.output_tokens[before]
        assert 1 <= stream.input_tokens[request] - message <= 40
        known = stream.prefix_hashes.of(request)
        assert len(known) == (stream.input_tokens[request] + stream.output_tokens[request] - 1) // 16
        if before >= 0:
            earlier = stream.prefix_hashes.of(before)
            assert_array_equal(known[: len(earlier)], earlier)
        else:
            assert_array_equal(known[:6], stream.prefix_hashes.of(0)[:6])
    custom = [set(stream.prefix_hashes.of(r)[6:].tolist()) for r in range(len(stream)) if turns[r] < 0]
    assert sum(map(len, custom)) == len(set().union(*custom)), "beyond the system prompt, sessions share nothing"


def test_applications_share_their_own_system_prompt_only():
    stream = sessions(200, system_prompt_tokens=32, system_prompts=3)
    firsts = np.flatnonzero(turn_before(stream) < 0)
    starts = {tuple(stream.prefix_hashes.of(request)[:2].tolist()) for request in firsts}
    assert starts == {(0, 1), (2, 3), (4, 5)}


@pytest.mark.parametrize("replicas", [1, 3])
def test_turns_find_all_that_their_replica_computed_before(replicas):
    """Counted from lengths alone: all whole blocks of the turn before, answer included but for its last token."""
    stream = sessions(120, system_prompt_tokens=50)
    cluster = one_pool(replicas, "kv-aware", "vllm-v1", "fast", ENDLESS, TIMER, prefix_caching=True)
    log = cluster.run(stream)
    seen = [False] * replicas
    on = list(log.replica)
    order = np.argsort(np.asarray(log.scheduled_s), kind="stable")
    latest: dict[tuple[int, int], int] = {}
    session = np.cumsum(turn_before(stream) < 0) - 1
    for request in order.tolist():
        prompt, replica = int(stream.input_tokens[request]), on[request]
        result = latest.get((session[request], replica), 48 if seen[replica] else 0)
        assert log.cached_tokens[request] == min(result, (prompt - 1) // 16 * 16)
        seen[replica] = True
        latest[session[request], replica] = (prompt + int(stream.output_tokens[request]) - 1) // 16 * 16


def test_a_turn_is_sent_when_its_user_has_thought():
    stream = sessions(100)
    log = one_pool(2, "prefix-aware", "vllm-v1", "fast", ENDLESS, TIMER, prefix_caching=True).run(stream)
    assert log.completed == 100
    turns = turn_before(stream)
    follow = np.flatnonzero(turns >= 0)
    finished, arrival = np.asarray(log.finished_s), np.asarray(log.arrival_s)
    assert_allclose(arrival[follow], finished[turns[follow]] + stream.think_s[follow], rtol=1e-12)
    assert_allclose(arrival[turns < 0], stream.arrival_s[turns < 0], rtol=1e-12)
    assert stream.think_s.mean() == pytest.approx(0.5, rel=0.4)


def test_turns_after_one_that_can_never_be_served_are_refused_too():
    stream = sessions(30, rate=100.0, turns=30)
    limit = EngineLimits(8, 512, 16, 1000, 0, 300, True)
    log = one_pool(1, "round-robin", "vllm-v1", "fast", limit, LinearTimer()).run(stream)
    assert log.completed == 30
    failed = np.asarray(log.failed)
    assert 0 < failed.sum() < 30
    assert (np.diff(failed) >= 0).all()


def scenario(**changes):
    workload = {"arrivals": {"process": "poisson", "request_rate": 2.0}}
    workload |= {"sessions": {"turns": 4, "think_time_s": 2.0, "system_prompt_tokens": 512}} | changes
    return plain_scenario("llama-3.1-8b", "h100-sxm", 100, 50, 40, workload=workload)


def test_sessions_from_a_scenario():
    result = simulate(scenario())
    assert result.engine.exact_steps == 0
    assert result.kv.prefix_hit_tokens > 0.6 * result.requests.input_tokens.sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sessions": {"turns": 0, "think_time_s": 1.0}}, "workload.sessions.turns: must be greater than 0"),
        ({"sessions": {"turns": 2}}, "workload.sessions.think_time_s: missing"),
        (
            {"arrivals": {"process": "closed-loop", "max_concurrency": 2}},
            "cannot be combined with closed-loop arrivals",
        ),
    ],
)
def test_wrong_sessions_are_refused_by_name(changes, message):
    with pytest.raises(ForerunError, match=message):
        scenario(**changes)
