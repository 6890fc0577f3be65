"""Pipeline stages with batches in flight: closed forms of the pipeline, nothing lost, one stage is no pipeline."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from one_pool import one_pool
from plain_scenario import ROUTINGS
from stub_timers import LinearTimer
from test_fast_equals_exact import TIMER, limits, streams

from simulator.serving import EngineLimits, Fleet, Pool, RouterConfig
from simulator.speculation import AcceptanceSampler
from simulator.timing import StepWork
from simulator.workload import RequestStream

ROOM = EngineLimits(64, 100, 16, 10_000, 0, 10_000, True)


@dataclasses.dataclass(frozen=True)
class Stages(LinearTimer):
    """Stages that each take a share of the linear time; the shares sum to one."""

    shares: tuple[float, ...] = (1.0,)
    host_s: float = 0.0

    @property
    def stages(self) -> int:
        return len(self.shares)

    def host_seconds(self, work: StepWork[Any]) -> float:
        return self.host_s

    def stage_seconds(self, work: StepWork[Any]) -> list[float]:
        return [share * LinearTimer.seconds(self, work) for share in self.shares]

    def seconds(self, work: StepWork[Any]) -> Any:
        return self.host_s + sum(self.shares) * LinearTimer.seconds(self, work)


def serve(timer, stream, limit=ROOM, sampler=None, replicas=1, routing="round-robin", most=None):
    router = RouterConfig(balance_abs_threshold=2, max_outstanding=most)
    cluster = one_pool(replicas, routing, "vllm-v1", "fast", limit, timer, sampler, prefix_caching=True, router=router)
    return cluster.run(stream)


def prompts(count, tokens, output=1, arrival=0.0):
    return RequestStream(np.full(count, arrival), np.full(count, tokens), np.full(count, output), None)


@pytest.mark.parametrize("shares", [(0.25,) * 4, (0.1, 0.5, 0.2, 0.2), (0.4, 0.6)])
def test_equal_batches_leave_every_longest_stage(shares):
    """Batch i of a flow shop with equal batches ends after the sum of all stages and i times the longest one."""
    log = serve(Stages(step_s=1.0, shares=shares), prompts(len(shares), 100))
    assert_allclose(np.sort(log.first_token_s), 1.0 + np.arange(len(shares)) * max(shares), rtol=1e-9)


@pytest.mark.parametrize("stages", [2, 3, 8])
def test_bubbles_of_one_flush(stages):
    """M = P equal batches keep P stages busy M / (M + P - 1) of the time (Huang et al., GPipe, arXiv:1811.06965)."""
    log = serve(Stages(step_s=1.0, shares=(1 / stages,) * stages), prompts(stages, 100))
    assert log.stage_busy_s / log.stage_open_s == pytest.approx(stages / (2 * stages - 1))


def test_as_many_groups_as_stages_decode_without_bubbles():
    """Four groups that entered one after the other: each gets a token every four stage times, no stage waits."""
    log = serve(Stages(step_s=1.0, shares=(0.25,) * 4), prompts(4, 100, output=41))
    assert_allclose(np.asarray(log.finished_s) - np.asarray(log.first_token_s), 40.0, rtol=1e-9)
    assert log.stage_busy_s / log.stage_open_s == pytest.approx(4 * 41 / (4 * 41 + 3))


def test_one_group_uses_one_stage_at_a_time():
    log = serve(Stages(step_s=1.0, shares=(0.25,) * 4), prompts(4, 25, output=41))
    assert_allclose(log.finished_s, 41.0, rtol=1e-9)
    assert log.stage_busy_s / log.stage_open_s == pytest.approx(0.25)


@pytest.mark.parametrize("groups", [1, 4])
def test_drafts_go_round_the_pipeline_with_their_token(groups):
    """A verify step is a round of all stages for K + 1 tokens; as many groups as stages follow one another."""
    timer = Stages(step_s=1.0, shares=(0.25,) * 4)
    sampler = AcceptanceSampler(np.ones(3), seed=0)
    limit = dataclasses.replace(ROOM, query_len=4, lookahead_tokens=3)
    log = serve(timer, prompts(groups, 100, output=41), limit, sampler)
    assert_allclose(np.asarray(log.finished_s) - np.asarray(log.first_token_s), 10.0, rtol=1e-9)
    assert log.stage_busy_s / log.stage_open_s == pytest.approx(groups * 11 / (groups * 11 + 3 if groups > 1 else 44))


def test_a_staged_step_verifies_no_more_than_the_budget():
    """Three sequences of four tokens and a budget of ten: ten tokens a round while all decode."""
    limit = dataclasses.replace(ROOM, max_num_batched_tokens=10, query_len=4, lookahead_tokens=3)
    timer = Stages(token_s=0.1, step_s=0.0, shares=(1.0,))
    log = serve(timer, prompts(3, 3, output=21), limit, AcceptanceSampler(np.ones(3), seed=0))
    work = log.steps.work(slice(None))
    assert max(work.prefill_tokens + work.decode_tokens) == 10
    assert list(log.draft_tokens) == [15, 15, 5 + 9], "one draft in each of five steps, until the others end"


def test_chunks_of_one_prompt_follow_one_another():
    """Four chunks of a prompt fill a pipeline of four as four prompts do."""
    log = serve(Stages(step_s=1.0, shares=(0.25,) * 4), prompts(1, 400))
    assert_allclose(log.first_token_s, [1.75], rtol=1e-9)


def test_a_later_request_does_not_wait_for_the_batch_in_flight():
    stream = RequestStream(np.array([0.0, 0.0]), np.array([100, 100]), np.array([2, 1]), None)
    log = serve(Stages(step_s=1.0, shares=(0.5, 0.5)), stream)
    assert_allclose(log.first_token_s, [1.0, 1.5], rtol=1e-9)


def test_the_scheduler_is_serial():
    """Host work of 0.4 per batch paces stages of 0.25; the first tokens, out at 1.4, wait for it to end at 1.6."""
    log = serve(Stages(step_s=1.0, shares=(0.25,) * 4, host_s=0.4), prompts(4, 100))
    assert_allclose(np.sort(log.first_token_s), [1.6, 1.8, 2.2, 2.6], rtol=1e-9)


def test_step_records_add_up_to_the_time_worked():
    log = serve(Stages(step_s=1.0, shares=(0.25,) * 4), prompts(9, 100, output=7))
    starts, seconds = log.steps.column("start_s"), log.steps.column("seconds")
    assert np.all(starts[1:] >= starts[:-1] + seconds[:-1] - 1e-9)
    assert seconds.sum() == pytest.approx(max(log.finished_s))


SETTINGS = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(st.data(), streams(), st.integers(1, 3))
def test_one_stage_is_the_plain_engine(data, stream, query_len):
    sampler = AcceptanceSampler(np.array([0.7, 0.4])[: query_len - 1], seed=3) if query_len > 1 else None
    limit = dataclasses.replace(data.draw(limits(stream, query_len)), schedules_ahead=False)
    columns = ("step_s", "token_s", "pair_s", "key_s")
    staged = Stages(**{name: getattr(TIMER, name) for name in columns}, shares=(1.0,))
    mine, plain = serve(staged, stream, limit, sampler), serve(TIMER, stream, limit, sampler)
    event("preempted" if sum(plain.preemptions) else "not preempted")
    for name in ("scheduled_s", "first_token_s", "finished_s"):
        assert_allclose(np.asarray(getattr(mine, name)), np.asarray(getattr(plain, name)), rtol=1e-9)
    assert_array_equal(mine.preemptions, plain.preemptions)
    assert mine.refusals == plain.refusals


@pytest.mark.parametrize("routing", ROUTINGS)
def test_staged_replicas_take_turns_behind_every_router(routing):
    """Two replicas, four prompts at once that share nothing: two each, the second of a replica one stage later."""
    log = serve(Stages(step_s=1.0, shares=(0.5, 0.5)), prompts(4, 100), replicas=2, routing=routing)
    assert sorted(log.replica) == [0, 0, 1, 1]
    assert_allclose(np.sort(log.first_token_s), [1.0, 1.0, 1.5, 1.5], rtol=1e-9)


def test_staged_and_plain_pools_stand_side_by_side():
    pools = (
        Pool(1, "vllm-v1", "fast", ROOM, Stages(step_s=1.0, shares=(0.5, 0.5)), name="staged"),
        Pool(1, "vllm-v1", "fast", ROOM, LinearTimer(step_s=1.0), name="plain"),
    )
    log = Fleet(pools, "least-outstanding").run(prompts(4, 100))
    assert_allclose(np.asarray(log.first_token_s)[np.asarray(log.replica) == 0], [1.0, 1.5], rtol=1e-9)
    assert_allclose(np.asarray(log.first_token_s)[np.asarray(log.replica) == 1], [1.0, 2.0], rtol=1e-9)
