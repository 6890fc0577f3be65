"""Requests of a trace that wait for others arrive when those have ended in simulated time, not when it was recorded."""

import json

import numpy as np
import pytest
from tiny_scenario import tiny_data

from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from traces import read_requests

ALONE = {"enable_prefix_caching": False}


def scenario_of(trace, engine=ALONE, **workload) -> Scenario:
    return Scenario(**(tiny_data() | {"engine": engine, "workload": {"trace": str(trace), **workload}}))


def recorded(folder, *requests):
    """A trace of (arrival, tokens in and out, rows waited for); what it says of ends is what a slow engine took."""
    path = folder / "recorded.jsonl"
    rows = [
        {"arrival_s": at_s, "input_tokens": prompt, "output_tokens": answer, "request": row, "after": after,
         "measured_e2e_s": 1.0}
        for row, (at_s, prompt, answer, after) in enumerate(requests)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def alone_s(folder, prompt: int, answer: int) -> float:
    """How long a request takes that has the engine to itself."""
    (lasts,) = latencies(simulate(scenario_of(recorded(folder, (0.0, prompt, answer, []))), 0))
    return float(lasts)


def latencies(run) -> np.ndarray:
    return run.requests.finished_s - run.requests.arrival_s


def test_a_chain_ends_after_its_services_and_its_tools(tmp_path):
    sizes = [(500, 40), (300, 10), (900, 25)]
    expected = sum(alone_s(tmp_path, *size) for size in sizes) + 0.5 + 2.0  # recorded: 1 s each, begun at 0, 1.5, 4.5
    starts, after = (0.0, 1.5, 4.5), ([], [0], [1])
    rows = [(at_s, *size, waits) for at_s, size, waits in zip(starts, sizes, after, strict=True)]
    run = simulate(scenario_of(recorded(tmp_path, *rows)), 0)
    assert run.requests.finished_s[-1] == pytest.approx(expected, rel=1e-9)
    assert run.requests.finished_s[-1] < 4.5, "before it was recorded to begin"


def test_a_join_waits_for_the_slowest_and_then_for_its_tool(tmp_path):
    rows = [(0.0, 200, 5, []), (1.0, 100, 40, [0]), (1.0, 100, 8, [0]), (1.25, 100, 20, [0]), (3.0, 50, 5, [1, 2, 3])]
    requests = simulate(scenario_of(recorded(tmp_path, *rows)), 0).requests
    np.testing.assert_allclose(requests.arrival_s[1:4] - requests.finished_s[0], [0, 0, 0.25], atol=1e-9)
    assert requests.arrival_s[4] - max(requests.finished_s[1:4]) == pytest.approx(3.0 - 2.25, abs=1e-9)


def test_who_is_waited_for_and_never_served_holds_nobody_up(tmp_path):
    rows = [(0.0, 10**6, 5, []), (1.0, 100, 4, [0]), (2.0, 100, 4, [0, 1])]
    run = simulate(scenario_of(recorded(tmp_path, *rows)), 0)
    assert run.document["summary"]["completed"] == 2
    assert run.requests.arrival_s[1] == 1.0


def test_drawn_arrivals_are_those_of_the_requests_that_begin(tmp_path):
    rows = [(0.0, 100, 5, []), (0.5, 100, 5, []), (2.0, 100, 5, [0]), (3.0, 100, 5, [1])]
    path = recorded(tmp_path, *rows)
    arrivals = {"process": "constant", "request_rate": 0.1}
    requests = simulate(scenario_of(path, arrivals=arrivals), 0).requests
    assert requests.arrival_s[:2].tolist() == [0.0, 10.0]
    assert requests.arrival_s[2] == pytest.approx(requests.finished_s[0] + 1.0)
    loop = simulate(scenario_of(path, arrivals={"process": "closed-loop", "max_concurrency": 4}), 0)
    assert loop.requests.arrival_s.tolist() == [0.0] * 4
    assert any("whatever they wait for" in note for note in loop.document["notes"])


@pytest.mark.parametrize("stepping", ["fast", "exact-steps"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_every_order_of_the_sample_is_kept(stepping, replicas):
    table = read_requests("agents")
    arrivals = {"process": "poisson", "request_rate": 2.0}
    scenario = scenario_of("agents", {"stepping": stepping}, arrivals=arrivals)
    scenario = scenario.with_values({"hardware.replicas": replicas, "engine.routing": "prefix-aware"})
    run = simulate(scenario, 3)
    before, waiting = table.follows.T
    ends = np.zeros(len(table))
    np.maximum.at(ends, waiting, run.requests.finished_s[before])
    held = np.unique(waiting)
    np.testing.assert_allclose(run.requests.arrival_s[held], ends[held] + table.think_time_s[held], rtol=0, atol=1e-9)
    assert run.kv.prefix_hit_tokens > 0.3 * table.input_tokens.sum(), "turns find the turns before them"
