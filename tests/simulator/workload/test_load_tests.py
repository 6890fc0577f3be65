"""Workloads as benchmarks make them: groups that share a prefix, stages of one rate each, a warm-up."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plain_scenario import plain_data

from forerun.errors import ForerunError
from simulator.running.metrics import run_document, run_tables
from simulator.running.run import simulate
from simulator.workload import WorkloadConfig, generate_requests

STAGES = [{"rate": 10.0, "seconds": 3.0}, {"rate": 40.0, "seconds": 1.0}]
SHARED = {"groups": 6, "prompts": 5, "system_tokens": 500, "question_tokens": 60}


def workload(**fields):
    return {"arrivals": {"stages": STAGES}, "shared_prefixes": SHARED, "output_tokens": 20} | fields


def generated(seed=0, **fields):
    return generate_requests(WorkloadConfig.model_validate(workload(**fields)), seed)


def served(seed=0, replicas=1, **fields):
    hardware = {"chip": "h100-sxm", "replicas": replicas}
    return simulate({"model": "llama-3.1-8b", "hardware": hardware, "workload": workload(**fields)}, seed)


def test_prompts_share_their_group_s_system_prompt_and_nothing_else():
    stream = generated(arrivals={"process": "burst"})
    assert len(stream) == 30, "each prompt once"
    assert (stream.input_tokens == 560).all()
    shared = 500 // 16
    starts = [tuple(stream.prefix_hashes.of(request)[:shared]) for request in range(30)]
    assert {starts.count(start) for start in starts} == {5}
    assert len(set(starts)) == 6
    assert any(one != other for one, other in pairwise(starts)), "groups are shuffled"
    rest = [number for request in range(30) for number in stream.prefix_hashes.of(request)[shared:]]
    assert len(set(rest)) == len(rest)


def test_every_stage_begins_with_the_first_prompt_and_a_long_stage_repeats_them():
    stream = generated()
    assert_array_equal(np.bincount(stream.stages.of), [30, 40])
    whole = 560 // 16

    def prompt(request):
        return tuple(stream.prefix_hashes.of(request)[:whole])

    first, second = range(30), range(30, 70)
    assert [prompt(request) for request in first] == [prompt(request) for request in second][:30]
    assert prompt(60) == prompt(30), "the 31st request of a stage is its first prompt again"
    answers = [number for request in range(70) for number in stream.prefix_hashes.of(request)[whole:]]
    assert len(set(answers)) == len(answers), "answers are never sent"


def test_a_stage_sends_rate_times_seconds_within_its_seconds():
    for process in ("poisson", "constant"):
        stream = generated(arrivals={"process": process, "stages": STAGES})
        for stage, (begin, end) in enumerate([(0, 3), (3, 4)]):
            times = stream.arrival_s[stream.stages.of == stage]
            assert begin <= times[0] <= times[-1] < end
    assert_allclose(np.diff(times), 1 / 40)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_drained_stage_begins_when_the_stage_before_has_ended(replicas):
    run = served(replicas=replicas, output_tokens=200, arrivals={"stages": STAGES, "drain": 0.5})
    requests = run.requests
    ends = requests.finished_s[requests.stage == 0].max()
    later = requests.arrival_s[requests.stage == 1]
    nominal = generated(arrivals={"stages": STAGES, "drain": 0.5}).arrival_s[requests.stage == 1] - 3.0
    assert_allclose(later, ends + 0.5 + nominal)
    free = served(replicas=replicas, output_tokens=200).requests
    assert free.arrival_s[free.stage == 1].min() < free.finished_s[free.stage == 0].max(), (
        "without drain it does not wait"
    )


def test_refused_requests_do_not_hold_up_the_next_stage():
    lengths = {"distribution": "empirical", "values": [100, 10**6]}
    fields = {"shared_prefixes": None, "input_tokens": lengths, "arrivals": {"stages": STAGES, "drain": True}}
    run = served(**fields)
    assert run.requests.failed.any()
    assert run.completed + run.failed == 70


def test_figures_of_a_stage_are_those_of_its_requests():
    run = served(arrivals={"stages": STAGES, "drain": True})
    document, requests = run_document(run), run.requests
    for number, stage in enumerate(document["stages"]):
        own = requests.take(requests.stage == number)
        assert stage["rate"] == STAGES[number]["rate"]
        assert stage["completed"] == len(own)
        assert_allclose(stage["mean_ttft_ms"], 1e3 * (own.first_token_s - own.arrival_s).mean())
        seconds = own.finished_s.max() - own.arrival_s.min()
        assert_allclose(stage["output_throughput"], own.output_tokens.sum() / seconds)
    assert "stages" in [table.name for table in run_tables(document)]


@pytest.mark.parametrize("warm_up", [{"stages": 1}, {"requests": 30}, {"seconds": 3.0}])
def test_a_warm_up_is_served_and_left_out_of_the_figures(warm_up):
    run, whole = served(warm_up=warm_up), served()
    assert_array_equal(run.requests.finished_s, whole.requests.finished_s)
    own = run.requests.take(run.requests.stage == 1)
    assert run.completed == 40
    assert_allclose(run.ttft_ms.mean, 1e3 * (own.first_token_s - own.arrival_s).mean())
    assert_allclose(run.duration_s, own.finished_s.max() - own.arrival_s.min())


REFUSED = [
    (workload(input_tokens=5), "input_tokens and shared_prefixes both describe the prompts"),
    (workload(num_requests=71), "the stages send 70"),
    (workload(arrivals={"stages": STAGES, "request_rate": 3}), "has no use for request_rate"),
    (workload(arrivals={"process": "burst", "drain": True}), "drain is about stages"),
    (workload(arrivals={"stages": [{"rate": 0.1, "seconds": 1}]}), "none of them lasts until its first request"),
    (workload(warm_up={"stages": 2}), "fewer than the arrivals.stages"),
    (workload(warm_up={"stages": 1, "requests": 2}), "give one of requests, seconds, stages"),
    (workload(warm_up={"seconds": 1e6}), "it takes in every request"),
]


@pytest.mark.parametrize(("section", "says"), REFUSED)
def test_contradicting_fields_are_refused(section, says):
    with pytest.raises(ForerunError, match=says):
        simulate(plain_data() | {"workload": section})
