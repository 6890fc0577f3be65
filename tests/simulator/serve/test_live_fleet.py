"""Requests handed in one by one run as they would in a run that knows all of them from the start."""

from itertools import count
from math import inf

import numpy as np
import pytest
from scenario_parts import drafts
from tiny_scenario import tiny_data

from simulator.running.build import build_run
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.serve.live import LiveFleet, rehearse
from simulator.workload import generate_requests

SPECULATION = drafts("eagle3", 3, 0.6)
KINDS = {
    "plain": {},
    "speculation": {"speculation": SPECULATION},
    "policy": {"speculation": SPECULATION | {"policy": "goodput"}},
    "replicas": {"hardware": {"chip": "h100-sxm", "replicas": 3}, "engine": {"routing": "least-outstanding"}},
    "pipeline": {"hardware": {"chip": "h100-sxm", "pipeline_parallel": 2}},
    "scarce": {"engine": {"num_kv_blocks": 120, "max_num_seqs": 16}},
    "failures": {
        "hardware": {"chip": "h100-sxm", "replicas": 2},
        "faults": {"events": [{"replica": 0, "at_s": 0.3, "down_s": 0.2}]},
    },
    "disaggregated": {
        "pools": {
            "first": {"role": "prefill", "hardware": {"replicas": 1}},
            "then": {"role": "decode", "hardware": {"replicas": 1}},
        }
    },
}


def scenario_of(kind: str) -> Scenario:
    return Scenario(**(tiny_data(num_requests=60) | KINDS[kind]))


def plain_fleet(**fields) -> LiveFleet:
    return LiveFleet(build_run(scenario_of("plain"), 0), **fields)


def served(scenario: Scenario, stream) -> tuple[LiveFleet, list]:
    build = build_run(scenario, 0)
    rehearse(build)  # which changes nothing
    fleet = LiveFleet(build, slots=len(stream) + 5)
    out = []
    for at_s, prompt, answer in zip(
        stream.arrival_s.tolist(), stream.input_tokens.tolist(), stream.output_tokens.tolist(), strict=True
    ):
        out += fleet.advance(at_s)
        fleet.submit(prompt, answer, at_s=at_s)
    out += fleet.advance(stream.arrival_s[-1] + 1000.0)
    assert not len(fleet.log.gaps().count), "gaps between tokens that nobody will ask for pile up"
    return fleet, out


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_leave_when_a_run_that_knows_all_requests_says(kind):
    scenario = scenario_of(kind)
    stream = generate_requests(scenario.workload, 0)
    expected = simulate(scenario, 0).requests
    fleet, out = served(scenario, stream)
    first, last = np.full(len(stream), inf), np.zeros(len(stream))
    tokens = np.zeros(len(stream), dtype=np.int64)
    for delivery in out:
        first[delivery.slot] = min(first[delivery.slot], delivery.at_s)
        last[delivery.slot] = delivery.at_s
        tokens[delivery.slot] += delivery.tokens
    assert tokens.tolist() == stream.output_tokens.tolist()
    assert first.tolist() == expected.first_token_s.tolist()
    assert last.tolist() == expected.finished_s.tolist()
    assert fleet.totals.preemptions == expected.preemptions.sum()
    assert fleet.log.accepted_tokens[: len(stream)].tolist() == expected.accepted_tokens.tolist()
    assert fleet.under_way == 0


def test_slots_are_used_again_and_nothing_grows():
    fleet = plain_fleet(slots=8)
    for number in range(200):
        assert fleet.submit(50, 5, at_s=float(number)) == number % 8
        assert sum(delivery.tokens for delivery in fleet.advance(number + 0.9)) == 5
    assert len(fleet.log.steps) <= 2048
    assert [fleet.submit(50, 5, at_s=1000.0) is None for _ in range(9)] == [False] * 8 + [True]


def test_a_prompt_heard_before_comes_from_the_cache_with_its_answer():
    fleet = plain_fleet()
    fleet.submit(64, 33, hashes=range(6), at_s=0.0)
    fleet.advance(10.0)
    fleet.submit(128, 5, hashes=[*range(6), 100, 101], at_s=10.0)
    fleet.advance(20.0)
    assert fleet.totals.cache_hits == 6 * 16


@pytest.mark.parametrize("tokens_before", [0, 7])
def test_a_request_that_nobody_waits_for_ends(tokens_before):
    fleet = plain_fleet()
    slot = fleet.submit(2000, 10_000, at_s=0.0)
    got = 0
    for step in count():
        got += sum(delivery.tokens for delivery in fleet.advance(step * 1e-3))
        if got >= tokens_before:
            break
    fleet.cancel(slot)
    assert fleet.under_way
    assert sum(delivery.tokens for delivery in fleet.advance(100.0)) == 1
    assert fleet.under_way == 0
    assert fleet.schedulers[0].used_blocks == 0


def test_a_request_still_in_the_queue_leaves_it():
    fleet = LiveFleet(build_run(Scenario(**(tiny_data() | {"engine": {"max_num_seqs": 1}})), 0))
    fleet.submit(100, 1000, at_s=0.0)
    waiting = fleet.submit(100, 1000, at_s=0.001)
    fleet.advance(0.5)
    fleet.cancel(waiting)
    assert fleet.advance(100.0)[-1].slot == 0
    assert fleet.under_way == 0
