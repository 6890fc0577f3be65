"""Priority scheduling as vLLM's ``--scheduling-policy priority``, and rules of a user's own."""

from functools import partial

import numpy as np
import pytest
from planned_steps import add, scheduler_of, step
from tiny_scenario import tiny_data

from forerun.errors import ForerunError, InvariantError
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving import rules
from simulator.serving.engine import PriorityScheduler, Sequence, UnifiedScheduler
from simulator.serving.fleet.router import QueueWhenFull
from simulator.serving.fleet.routing import LeastOutstanding

engine = partial(scheduler_of, PriorityScheduler)


def test_the_lowest_value_goes_first_then_the_first_to_arrive():
    scheduler = engine(max_num_seqs=3)
    add(scheduler, (4, 9, 5, 0.0), (4, 9, 1, 3.0), (4, 9, 1, 2.0), (4, 9, 0, 4.0))
    chunks, _ = step(scheduler)
    assert list(chunks) == [3, 2, 1]


def test_the_last_in_rank_is_preempted_in_any_order_of_arrival():
    """Each holds two or three blocks of five; the third block of the urgent one is taken from the least urgent, which
    had been admitted first, was planned for this step already, and waits in its place again."""
    scheduler = engine(num_blocks=5, max_num_batched_tokens=64)
    add(scheduler, (7, 9, 9, 0.0))
    step(scheduler)
    scheduler.add(Sequence(1, 7, 9, 0, 1.0))
    scheduler.add(Sequence(2, 90, 9, 5, 2.0))
    chunks, decodes = step(scheduler)
    assert (chunks, decodes) == ({1: 7}, [0])
    assert step(scheduler) == ({}, [0, 1])
    assert step(scheduler) == ({}, [1])
    assert [sequence.index for sequence in scheduler.preempted] == [0]
    assert [sequence.index for sequence in scheduler.waiting] == [2, 0]
    assert scheduler.used_blocks == 3


def run(scheduler="priority", priorities=(0, 5), seed=3, workload_changes=None, **changes):
    workload = {"arrivals": {"process": "poisson", "request_rate": 400.0}, "num_requests": 120}
    workload |= {"priorities": list(priorities)} | (workload_changes or {})
    engine = {"scheduler": scheduler, "max_num_seqs": 8, "num_kv_blocks": 120, "stepping": "exact-steps"}
    data = tiny_data(**workload) | {"engine": engine} | changes
    return simulate(scenario_from(data, "tiny"), seed)


@pytest.mark.parametrize(
    "sections", [{}, {"faults": {"mtbf_s": 0.5, "mttr_s": 0.05}, "hardware": {"chip": "h100-sxm", "replicas": 2}}]
)
def test_urgent_requests_wait_less(sections):
    plain, ranked = run("vllm-v1", **sections), run(**sections)
    urgent = np.random.default_rng([3, 0x9107]).choice([0, 5], 120) == 0

    def waited(result, who):
        return (result.requests.first_token_s - result.requests.arrival_s)[who].mean()

    assert ranked.kv.preemptions
    assert waited(ranked, urgent) < 0.6 * waited(plain, urgent)
    assert waited(ranked, ~urgent) > waited(plain, ~urgent)
    assert any("change nothing" in note for note in plain.notes)
    assert not any("change nothing" in note for note in ranked.notes)


def test_without_priorities_it_is_the_plain_rule():
    """All alike in an open loop, the last in rank is the last to have come."""
    plain, ranked = run("vllm-v1", (0,)), run(priorities=(0,))
    assert plain.kv.preemptions
    assert plain.requests.finished_s.tolist() == ranked.requests.finished_s.tolist()


@pytest.fixture
def tables():
    yield
    for table in (rules.SCHEDULERS, rules.ROUTING, rules.ADMISSION):
        table.pop("mine", None)


class ShortestFirst(UnifiedScheduler):
    """Prompts wait by their length."""

    def add(self, sequence):
        self.waiting.append(sequence)
        ordered = sorted(self.waiting, key=lambda waiting: waiting.known_tokens)
        self.waiting.clear()
        self.waiting.extend(ordered)


class MostLoaded(LeastOutstanding):
    """The busiest replica."""

    def choose(self, request, endpoints):
        return max(endpoints, key=lambda endpoint: endpoint.outstanding)


class NoneOfThree(QueueWhenFull):
    """Turns away when three wait."""

    def refusal(self, queued, up):
        return "three wait" if queued >= 3 else None


def test_rules_of_ones_own_stand_in_a_scenario_by_name(tables):
    rules.register_scheduler("mine", rules.SchedulerFacts(ShortestFirst))
    rules.register_routing("mine", MostLoaded)
    rules.register_admission("mine", NoneOfThree)
    router, hardware = {"max_outstanding": 10, "when_full": "mine"}, {"chip": "h100-sxm", "replicas": 2}
    engine = {"scheduler": "mine", "routing": "mine", "max_num_seqs": 4, "entry_point": "offline"}
    workload = {"arrivals": {"process": "burst"}, "num_requests": 40}
    result = simulate(
        scenario_from(tiny_data(**workload) | {"router": router, "hardware": hardware, "engine": engine}, "t")
    )
    served = ~result.requests.failed
    assert result.requests.failed.sum() == 40 - 2 * 10 - 3
    assert result.requests.replica[:10].tolist() == [0] * 10, "the most loaded until it may hold no more"
    first = [int(result.requests.input_tokens[served & (result.requests.replica == n)][:10].argmin()) for n in (0, 1)]
    for replica, shortest in enumerate(first):
        custom = np.flatnonzero(served & (result.requests.replica == replica))[:10]
        assert result.requests.scheduled_s[custom[shortest]] == result.requests.scheduled_s[custom].min()


def test_a_rule_that_reorders_arrivals_need_not_be_first_come(tables):
    """Requests that keep coming overtake one another; a rule that claims ``first_come`` is held to it."""
    lengths = {"input_tokens": {"distribution": "uniform", "min": 8, "max": 400}}
    rules.register_scheduler("mine", rules.SchedulerFacts(ShortestFirst))
    result = run("mine", workload_changes=lengths)
    waited = result.requests.scheduled_s - result.requests.arrival_s
    short = result.requests.input_tokens < np.median(result.requests.input_tokens)
    assert waited[short].mean() < waited[~short].mean()
    rules.SCHEDULERS.pop("mine")
    rules.register_scheduler("mine", rules.SchedulerFacts(ShortestFirst, first_come=True))
    with pytest.raises(InvariantError, match="was scheduled before"):
        run("mine", workload_changes=lengths)


def test_an_unknown_rule_is_refused_with_those_there_are():
    with pytest.raises(
        ForerunError, match=r"engine.scheduler: must be 'vllm-v1', 'priority', .*'static'.*; did you mean 'priority'"
    ):
        run("priorty")
    with pytest.raises(ForerunError, match=r"workload: priorities: must not be empty"):
        run(priorities=())
