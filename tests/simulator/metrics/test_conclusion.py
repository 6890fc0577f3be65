"""Whether an engine keeps up with its arrivals, in the first sentence of a run."""

import re
from dataclasses import fields

import numpy as np
import pytest
from plain_scenario import plain_scenario
from scenario_parts import on_h100, poisson

from simulator import simulate
from simulator.running.metrics.conclusion import load_section
from simulator.running.metrics.replications import combine_replications
from simulator.running.metrics.served import PART_WORDS, Stratum
from simulator.serving import RequestRecords
from simulator.timing.releases import BUILD_AGES

ARRIVALS = {
    "few": {"request_rate": 2.0},
    "soon over": {"request_rate": 30.0},
    "many": {"request_rate": 60.0},
    "while one is served": {"request_rate": 5000.0},
    "at once": {"process": "burst"},
    "in a loop": {"max_concurrency": 2},
}


@pytest.mark.parametrize(
    ("arrivals", "keeps_up", "words"),
    [
        ("few", True, "Keeps up with "),
        ("soon over", None, "Serves "),
        ("while one is served", None, "Serves "),
        ("many", False, "Cannot keep up: serves "),
        ("at once", None, "Serves "),
        ("in a loop", None, "Serves "),
    ],
)
def test_the_conclusion_says_whether_the_engine_keeps_up(arrivals, keeps_up, words):
    count = 10 if arrivals == "soon over" else 200
    scenario = plain_scenario("llama-3.1-8b", "h100-sxm", 1000, 200, count, engine={"max_num_seqs": 16})
    run = simulate(scenario.with_values({"workload.arrivals": ARRIVALS[arrivals]}))
    load = run.document["load"]
    assert load["keeps_up"] is keeps_up
    assert run.conclusion.startswith(words)
    assert ("too short a run to tell" in run.conclusion) is (arrivals == "soon over")
    assert "limited by" in run.conclusion
    assert (load["arrival_rate"] is None) == (arrivals in ("at once", "in a loop", "while one is served"))
    if keeps_up is False:
        assert run.summary["request_throughput"] < load["arrival_rate"] / 2


def test_every_class_has_words():
    words = Stratum("hybrid mixture", "newer", "near", "unmeasured", "fp4", "short").words.format(runs=1, deployments=1)
    assert words.endswith("of hybrid mixtures of experts on newer releases near capacity on chips without measurements "
                          "with four-bit floats with short answers")  # fmt: skip
    assert set(BUILD_AGES) <= set(PART_WORDS)


@pytest.mark.parametrize("count", [60, 600])
def test_the_cost_of_a_token_is_that_of_the_load_however_short_the_run(count):
    scenario = plain_scenario("llama-3.1-8b", "h100-sxm", 1000, 300, count, prices={"usd_per_chip_hour": 2.5})
    run = simulate(scenario.with_values({"workload.arrivals": {"request_rate": 6.0}}))
    by_hand = 2.5 / (3600 * 6.0 * 300 / 1e6)
    assert run.document["usd_per_million_output_tokens"] == pytest.approx(by_hand)
    drawn = f"{run.document['load']['arrival_rate']:.3g}"
    assert drawn != "6"
    assert run.conclusion.startswith(f"Keeps up with 6 requests/s ({drawn} in this draw of arrivals)")
    several = combine_replications([run.document, run.document])
    assert several["conclusion"].startswith(f"Keeps up with 6 requests/s ({drawn} in the mean of 2 draws of arrivals)")


def test_the_cost_of_a_token_beyond_capacity_is_that_of_the_throughput():
    prices, engine = {"usd_per_chip_hour": 2.5}, {"max_num_seqs": 16}
    scenario = plain_scenario("llama-3.1-8b", "h100-sxm", 1000, 200, 200, prices=prices, engine=engine)
    run = simulate(scenario.with_values({"workload.arrivals": ARRIVALS["many"]}))
    cost = 1e6 * run.document["cost_usd"] / run.summary["total_output_tokens"]
    assert run.document["load"]["keeps_up"] is False
    assert run.document["usd_per_million_output_tokens"] == pytest.approx(cost)


@pytest.mark.parametrize(("count", "words"), [(400, "Serves "), (8000, "Keeps up with 4 conversations/s (")])
def test_conversations_are_kept_up_with_once_the_first_have_ended(count, words):
    workload = {
        "arrivals": {"request_rate": 4.0},
        "sessions": {"turns": 10, "think_time_s": 2.0},
        "num_requests": count,
    }
    lengths = {"input_tokens": 100, "output_tokens": 50}
    run = simulate(on_h100(workload | lengths, prices={"usd_per_chip_hour": 2.5}))
    assert run.conclusion.startswith(words)
    requests = re.search(r"[(s ]([\d.]+) requests/s", run.conclusion)
    assert float(requests[1]) == pytest.approx(run.summary["request_throughput"], rel=0.005)
    by_hand = 2.5 / (3600 * 4.0 * 10 * 50 / 1e6)  # also where the run is too short to tell
    assert run.document["usd_per_million_output_tokens"] == pytest.approx(by_hand)


@pytest.mark.parametrize(("rate", "places", "keeps_up"), [(0.2, 8, True), (3.0, 8, False), (2.0, 1024, True)])
def test_conversations_that_the_engine_cannot_serve_are_not_kept_up_with(rate, places, keeps_up):
    """Of a conversation of 40 turns at most one waits: far fewer than 5 % of all turns, however great the overload."""
    workload = {
        "arrivals": {"request_rate": rate},
        "sessions": {"turns": 40, "think_time_s": 1.0},
        "num_requests": 12_000,
    }
    lengths = {"input_tokens": 50, "output_tokens": 50}
    engine = {"max_num_seqs": places}
    run = simulate(on_h100(workload | lengths, engine=engine, prices={"usd_per_chip_hour": 2.5}))
    served, arriving = run.summary["request_throughput"], 40 * rate
    assert run.document["load"]["keeps_up"] is keeps_up
    assert keeps_up == (served > 0.5 * arriving)  # the last conversations end long after the last has begun
    cost = 1e6 * run.document["cost_usd"] / run.summary["total_output_tokens"]
    by_hand = 2.5 / (3600 * arriving * 50 / 1e6) if keeps_up else cost
    assert run.document["usd_per_million_output_tokens"] == pytest.approx(by_hand)


def test_work_that_runs_without_end_counts_though_nothing_waits():
    """Places for all: steps grow longer and none of the requests waits for a place."""
    requests = _records(np.arange(400) * 0.1, lambda n: 1.0 + 0.05 * n)
    assert np.all(requests.scheduled_s == requests.arrival_s)
    assert load_section(requests, _open_loop(400))["keeps_up"] is False
    steady = _records(np.arange(400) * 0.1, lambda n: 2.0 + 0.0 * n)
    assert load_section(steady, _open_loop(400))["keeps_up"] is True


def test_more_traffic_at_the_end_of_a_trace_is_no_growth_without_end():
    """Twice the arrivals keep twice the requests running: latency is what it was, and nothing waits."""
    arrival_s = np.concatenate([np.arange(400) * 0.1, 40.0 + np.arange(800) * 0.05])
    busier = _records(arrival_s, lambda n: 3.0 + 0.0 * n)
    assert load_section(busier, _open_loop(1200))["keeps_up"] is True
    slower = _records(arrival_s, lambda n: 3.0 + 0.02 * n)
    assert load_section(slower, _open_loop(1200))["keeps_up"] is False


@pytest.mark.parametrize(("rate", "count", "keeps_up"), [(20.0, 400, True), (52.0, 4000, False), (52.0, 400, None)])
def test_an_overload_in_which_all_run_is_one_and_a_run_too_short_to_tell_says_nothing(rate, count, keeps_up):
    """44 req/s can be served; places for 1,024 let a backlog run for minutes before any request waits."""
    lognormal = {"distribution": "lognormal"}
    lengths = {
        "input_tokens": lognormal | {"mean": 512, "cv": 0.8, "max": 4096},
        "output_tokens": lognormal | {"mean": 200, "cv": 0.6, "max": 1024},
    }
    run = simulate(on_h100({"arrivals": {"request_rate": rate}, "num_requests": count} | lengths), full_step_rows=0)
    assert run.document["load"]["keeps_up"] is keeps_up
    words = {True: "Keeps up with", False: "Cannot keep up", None: "Serves"}[keeps_up]
    assert run.conclusion.startswith(words)


def test_a_short_part_of_a_trace_far_below_capacity_is_kept_up_with():
    """Azure's first minute: its load varies more than chance alone explains."""
    run = simulate(
        {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}}
        | {"workload": {"trace": "azure-conv-2023", "num_requests": 200}}
    )
    assert run.document["load"]["keeps_up"] is True


def _records(arrival_s, latency_s):
    zeros = np.zeros(len(arrival_s), dtype=np.int64)
    columns = dict.fromkeys((field.name for field in fields(RequestRecords)), zeros)
    ended = arrival_s + latency_s(np.arange(len(arrival_s)))
    times = {"arrival_s": arrival_s, "scheduled_s": arrival_s, "first_token_s": arrival_s, "finished_s": ended}
    return RequestRecords(**(columns | times | {"output_tokens": zeros + 50, "failed": zeros > 0}))


def _open_loop(count):
    return on_h100(poisson(10.0, count, 100, 50)).workload
