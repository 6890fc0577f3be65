"""Random fleets: nothing lost, nothing served twice, blocks conserved, whatever goes wrong."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from stub_timers import LinearTimer
from test_fast_equals_exact import conversations

from simulator.serving import EngineLimits, Faults, FaultsConfig, Fleet, Pool, RouterConfig, RunLog, StepLog
from simulator.serving.engine import Scheduler
from simulator.serving.fleet.fleet import FleetRun
from simulator.serving.fleet.transfer import KvLink
from simulator.serving.host_cache import HostSpace
from simulator.speculation import AcceptanceSampler

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ROUTINGS = ["round-robin", "least-outstanding", "prefix-aware", "kv-aware"]


@pytest.fixture(autouse=True, scope="module")
def conserved_at_every_plan():
    """After every plan of every replica: each block has one owner, and there are no more than there are."""
    plan = Scheduler.plan

    def checked(self):
        result = plan(self)
        known = self.everything()
        assert len({id(s) for s in known}) == len(known)
        assert self._held_blocks == sum(s.blocks for s in known)
        assert 0 <= self.used_blocks <= self.limits.num_blocks
        assert self.used_blocks + self.cache.idle_blocks <= self.limits.num_blocks
        assert self.swapped_blocks == sum(s.swapped_blocks for s in known)
        assert self.swapped_blocks <= (self.swap.num_blocks if self.swap else 0)
        assert len(self.running) <= self.limits.max_num_seqs
        assert all(s.blocks == 0 for s in [*self.waiting, *self.swapped])
        tokens = sum(n for _, n in result.chunks) + self.limits.query_len * len(result.decodes)
        assert tokens <= self.limits.max_num_batched_tokens + self.limits.query_len - 1
        return result

    Scheduler.plan = checked
    yield
    Scheduler.plan = plan


@st.composite
def pools(draw, stream, role, query_len, sampler):
    block = draw(st.sampled_from([4, 16]))
    longest = int((stream.input_tokens + stream.output_tokens).max()) + 2 * query_len
    limits = EngineLimits(
        max_num_seqs=draw(st.sampled_from([1, 3, 8])),
        max_num_batched_tokens=draw(st.sampled_from([16, 64, 512])),
        block_size=block,
        num_blocks=-(-longest // block) + 1 + draw(st.sampled_from([-2, 0, 5, 40])),
        watermark_blocks=draw(st.integers(0, 1)),
        max_model_len=10_000,
        chunked_prefill=True,
        query_len=query_len,
        lookahead_tokens=query_len - 1,
        api_server_s=draw(st.sampled_from([0.0, 0.0, 1e-3, 0.05])),
        api_server_work_s=draw(st.sampled_from([0.0, 2e-3])),
        tokenisation_per_token_s=draw(st.sampled_from([0.0, 1e-5])),
        schedules_ahead=draw(st.booleans()),
    )
    limits = dataclasses.replace(limits, num_blocks=max(1, limits.num_blocks))
    swap = draw(st.one_of(st.none(), st.integers(1, 60).map(lambda n: HostSpace(n, 1e-5, 1e-6))))
    timer = LinearTimer(step_s=draw(st.sampled_from([1e-3, 3e-3])), token_s=3e-6, key_s=2e-8)
    return Pool(
        draw(st.integers(1, 3)),
        "vllm-v1",
        "exact-steps",
        limits,
        timer,
        sampler,
        True,
        swap,
        None,
        f"pool-{role}",
        role,
    )


@st.composite
def fleets(draw, stream):
    drafted = draw(st.sampled_from([0, 0, 2]))
    sampler = AcceptanceSampler(np.array([0.7, 0.4]), seed=3) if drafted else None
    if draw(st.booleans()):
        parts = tuple(draw(pools(stream, role, drafted + 1, sampler)) for role in ("prefill", "decode"))
        names = [pool.name for pool in parts]
        link = KvLink(1e-4, 1e9, draw(st.sampled_from([1e2, 1e5])), draw(st.booleans()))
        links = {(names[0], names[1]): link}
    else:
        parts = tuple(draw(pools(stream, "both", drafted + 1, sampler)) for _ in range(draw(st.integers(1, 2))))
        links = {}
    replicas = sum(pool.replicas for pool in parts)
    config = FaultsConfig(mtbf_s=draw(st.sampled_from([0.05, 0.5])), mttr_s=draw(st.sampled_from([0.01, 0.3])))
    if draw(st.booleans()):
        events = [
            {
                "replica": draw(st.integers(0, replicas - 1)),
                "at_s": draw(st.sampled_from([0.0, 0.01, 0.2])),
                "down_s": 0.1,
            }
        ]
        config = FaultsConfig.model_validate({"events": events})
    most = draw(st.one_of(st.none(), st.integers(1, 5)))
    router = RouterConfig(balance_abs_threshold=2)
    if most is not None:
        refuse = draw(st.booleans()) and stream.max_concurrency is None
        queue = None if refuse else draw(st.one_of(st.none(), st.integers(0, 5)))
        router = RouterConfig(max_outstanding=most, when_full="refuse" if refuse else "queue", max_queue=queue)
    return Fleet(
        parts,
        draw(st.sampled_from(ROUTINGS)),
        router,
        draw(st.sampled_from(ROUTINGS)),
        links,
        draw(st.one_of(st.none(), st.just(Faults(config, 7)))),
    )


@SETTINGS
@given(st.data(), conversations())
def test_nothing_lost_nothing_twice_blocks_conserved(data, stream):
    fleet = data.draw(fleets(stream))
    positions = fleet.pools[0].limits.query_len - 1
    log = RunLog(stream, StepLog(1), positions)
    run = FleetRun(fleet, log, log.admit(fleet.refusal))
    run.run()
    log.settle()
    served = ~np.asarray(log.failed, dtype=bool)
    event(f"disaggregated {bool(fleet.links)}, restarts {sum(log.restarts) > 0}")
    event(f"swapped {log.swapped_blocks > 0}, refused {int((~served).sum()) > 0}")
    event("preempted" if sum(log.preemptions) else "not preempted")
    event(f"one ahead {any(pool.limits.schedules_ahead for pool in fleet.pools)}, restarts {sum(log.restarts) > 0}")
    event(f"under way {not all(pool.limits.instant_api_server for pool in fleet.pools)}, two pools {bool(fleet.links)}")
    arrival, first, finished = (np.asarray(getattr(log, f"{n}_s")) for n in ("arrival", "first_token", "finished"))
    assert log.completed == len(stream)
    assert np.isfinite(finished[served]).all(), "lost"
    assert np.isnan(finished[~served]).all()
    assert (arrival[served] <= first[served]).all()
    assert (first[served] <= finished[served]).all()
    assert log.steps.integers("output_tokens").sum() == stream.output_tokens[served].sum(), "lost or served twice"
    if not positions:
        assert log.gaps().count.sum() == (stream.output_tokens[served] - 1).sum()
        spans = np.bincount(log.replica, minlength=1) if served.all() else None
        assert spans is None or spans.sum() == len(stream)
    gaps_s = np.dot(log.gaps().gap_s, log.gaps().count)
    assert np.isclose(gaps_s, (finished - first)[served].sum()), "gaps fill the time from first to last token"
    for replica in run.replicas:
        scheduler = replica.scheduler
        assert scheduler.everything() == []
        assert scheduler.used_blocks == scheduler.swapped_blocks == 0
        assert scheduler.cache.shared_blocks == 0
    assert all(source.outstanding == 0 for source in run.sources)
