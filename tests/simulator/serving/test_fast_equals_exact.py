"""The compiled engine and its source agree where scenarios do not reach; ``test_scenario_search`` does the rest."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from one_pool import changed, one_pool
from stub_timers import LinearTimer

from simulator.serving import (
    EngineLimits,
    Faults,
    FaultsConfig,
    Fleet,
    KvLink,
    Pool,
)
from simulator.serving.compiled import engine_module
from simulator.serving.fleet.fleet_config import FaultEvent
from simulator.serving.log import RunLog
from simulator.serving.rules import SCHEDULERS, SchedulerFacts
from simulator.speculation import AcceptanceSampler, ContextDrift, WindowFall
from simulator.workload import RequestStream
from traces import PrefixHashes

TIMER = LinearTimer(step_s=2e-3, token_s=3e-6, pair_s=1e-9, key_s=2e-8)
REQUEST_COLUMNS = ("arrival_s", "scheduled_s", "first_token_s", "finished_s")
EXACT_COLUMNS = ("replica", "preemptions", "cached_tokens", "drafts", "draft_tokens", "accepted_tokens", "failed")


@st.composite
def streams(draw):
    count = draw(st.integers(1, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate = draw(st.sampled_from([1.0, 20.0, 200.0, 5000.0]))
    burst = draw(st.booleans())
    return RequestStream(
        arrival_s=np.zeros(count) if burst else np.cumsum(rng.exponential(1 / rate, count)),
        input_tokens=rng.integers(1, draw(st.sampled_from([3, 40, 400])), count, endpoint=True),
        output_tokens=rng.integers(1, draw(st.sampled_from([1, 5, 60])), count, endpoint=True),
        max_concurrency=draw(st.one_of(st.none(), st.integers(1, 20))) if burst else None,
    )


@st.composite
def limits(draw, stream, query_len):
    """Limits that leave little more room than the longest request needs, so that requests push each other out."""
    seqs, slots = draw(st.sampled_from([1, 3, 8, 24])), draw(st.sampled_from([0, 0, 1, 4]))
    block = draw(st.sampled_from([1, 4, 16]))
    watermark = draw(st.integers(0, 2))
    longest = int((stream.input_tokens + stream.output_tokens).max()) + 2 * query_len
    capacity = -(-longest // block) + watermark + draw(st.sampled_from([-2, 0, 5, 40, 2000]))
    return EngineLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(query_len + slots, draw(st.sampled_from([5, 16, 64, 512]))),
        block_size=block,
        num_blocks=max(1, capacity),
        watermark_blocks=watermark,
        max_model_len=draw(st.sampled_from([300, 10_000])),
        chunked_prefill=draw(st.booleans()),
        reserve_full_isl=draw(st.booleans()),
        query_len=query_len,
        lookahead_tokens=query_len - 1,
        draft_slots=slots,
        api_server_s=draw(st.sampled_from([0.0, 0.0, 1e-3, 0.05])),
        api_server_work_s=draw(st.sampled_from([0.0, 2e-3])),
        tokenisation_per_token_s=draw(st.sampled_from([0.0, 1e-5])),
        streaming_s=draw(st.sampled_from([0.0, 0.0, 5e-5, 5e-3])),
        schedules_ahead=draw(st.booleans()),
    )


def assert_same(fast: RunLog, exact: RunLog) -> None:
    for name in REQUEST_COLUMNS:
        assert_array_equal(np.asarray(getattr(fast, name)), np.asarray(getattr(exact, name)), err_msg=name)
    for name in EXACT_COLUMNS:
        assert_array_equal(np.asarray(getattr(fast, name)), np.asarray(getattr(exact, name)), err_msg=name)
    assert_array_equal(fast.accepted_counts, exact.accepted_counts)
    assert fast.refusals == exact.refusals
    order = [np.lexsort((log.steps.column("start_s"), log.steps.column("replica"))) for log in (fast, exact)]
    for name in ("start_s", "seconds"):
        assert_array_equal(fast.steps.column(name)[order[0]], exact.steps.column(name)[order[1]], err_msg=name)
    for name in (
        "output_tokens",
        "running",
        "waiting",
        "kv_blocks",
        "prefill_tokens",
        "decode_seqs",
        "query_len",
        "trimmed",
    ):
        assert_array_equal(fast.steps.integers(name)[order[0]], exact.steps.integers(name)[order[1]], err_msg=name)
    mine, theirs = (log.steps.work(slice(None)) for log in (fast, exact))
    for a, b in zip(
        mine.decode_kv_tokens + mine.prefill_pairs, theirs.decode_kv_tokens + theirs.prefill_pairs, strict=True
    ):
        assert_array_equal(a[order[0]], b[order[1]])
    assert_array_equal(mine.longest_kv[order[0]], theirs.longest_kv[order[1]])
    assert_array_equal(mine.tail_kv[order[0]], theirs.tail_kv[order[1]])
    for name in ("written_blocks", "read_blocks"):
        assert [getattr(tier, name) for tier in fast.tiers] == [getattr(tier, name) for tier in exact.tiers]
    assert [tier.store.peak_blocks for tier in fast.tiers] == [tier.store.peak_blocks for tier in exact.tiers]
    assert fast.tier_hit_tokens == exact.tier_hit_tokens
    assert [lane.booked_bytes for _, lane in fast.lanes] == [lane.booked_bytes for _, lane in exact.lanes]
    assert_array_equal(gaps(fast), gaps(exact))
    assert fast.swapped_blocks == exact.swapped_blocks


def gaps(log: RunLog) -> np.ndarray:
    """Every gap between two deliveries of a request."""
    gaps = log.gaps()
    return np.sort(np.repeat(gaps.gap_s, gaps.count))


SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(("windows", "groups"), [((None,), 1), ((None, 64), 1), ((64,), 2)])
def test_sequences_that_only_decode_are_counted(windows, groups, monkeypatch):
    """The source does so too, and only exact steps visit each of them: what the two are compared for."""
    engine = engine_module(interpreted=True)
    counted, advance = [], engine.Steady.advance
    monkeypatch.setattr("simulator.serving.fleet.pool.engine_module", lambda _: engine)
    monkeypatch.setattr(engine.Steady, "advance", lambda self, now: counted.append(self.count) or advance(self, now))
    stream = RequestStream(np.arange(9) * 0.03, np.arange(9) + 50, np.arange(9) + 60, None)
    limit = EngineLimits(8, 64, 16, 25 // groups, 0, 10_000, True, groups=groups)
    cluster = one_pool(1, "round-robin", "vllm-v1", "fast", limit, dataclasses.replace(TIMER, windows=windows))
    fast, exact = cluster.run(stream), changed(cluster, stepping="exact-steps").run(stream)
    decoded = fast.steps.integers("decode_seqs").sum()
    assert decoded * 0.8 < sum(counted) <= decoded
    assert sum(fast.preemptions)
    assert_same(fast, exact)


@st.composite
def conversations(draw):
    """Requests whose prompts share their starts: some repeat, some extend an earlier one."""
    stream = draw(streams())
    per_block = draw(st.sampled_from([16, 32]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    fresh, lists = 1000, []
    for tokens in stream.input_tokens.tolist():
        count = -(-tokens // per_block)
        start = lists[rng.integers(len(lists))][: rng.integers(0, count + 1)] if lists and rng.random() < 0.8 else []
        lists.append([*start, *range(fresh, fresh + count - len(start))])
        fresh += count
    return dataclasses.replace(stream, prefix_hashes=PrefixHashes.from_lists(lists, per_block))


@pytest.mark.parametrize("spread", [0.0, 0.1])
@pytest.mark.parametrize("drift", [None, ContextDrift(0.7, 20), WindowFall(20, 1.0)])
def test_the_source_draws_what_the_compiled_engine_draws(spread, drift):
    """What a verify step accepts depends on seed, request, step and context alone."""
    sampler = AcceptanceSampler(np.cumprod([0.8, 0.6, 0.5]), seed=11, spread=spread, drift=drift)
    compiled, source = (engine_module(interpreted).Draws(sampler) for interpreted in (False, True))
    for request in range(40):
        for step in range(5, 60):
            assert compiled.accepted(request, step, 7 + 2 * step) == source.accepted(request, step, 7 + 2 * step)


def test_many_rows_are_shared_by_steps_of_one_batch():
    stream = RequestStream(np.zeros(4), np.full(4, 100), np.full(4, 500), None)
    limit = EngineLimits(8, 512, 16, 10_000, 0, 10_000, True)
    cluster = one_pool(1, "round-robin", "vllm-v1", "fast", limit, TIMER)
    log, merged = cluster.run(stream), cluster.run(stream, full_step_rows=1)
    assert len(log.steps) == 500
    assert len(merged.steps) < 500
    assert merged.steps.column("steps").max() == 64
    assert merged.steps.integers("steps").sum() == 500
    for name in ("seconds", "output_tokens"):
        assert merged.steps.column(name).sum() == pytest.approx(log.steps.column(name).sum())
    assert_array_equal(gaps(merged), gaps(log))


def own_rule(monkeypatch, interpreted=True):
    """A custom scheduler: the shortest prompt first."""

    class ShortestFirst(engine_module(interpreted).UnifiedScheduler):
        def plan(self):
            ordered = sorted(self.waiting, key=lambda sequence: sequence.input_tokens)
            self.waiting.clear()
            self.waiting.extend(ordered)
            return super().plan()

    monkeypatch.setitem(SCHEDULERS, "shortest-first", SchedulerFacts(ShortestFirst))
    return "shortest-first"


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_batching_rule_of_ones_own(interpreted, monkeypatch):
    """Built on the interpreted engine's classes or on those that run, it is requested every step."""
    rule = own_rule(monkeypatch, interpreted)
    stream = RequestStream(np.zeros(6), np.array([60, 10, 50, 20, 40, 30]), np.full(6, 3), None)
    limit = EngineLimits(1, 512, 16, 100, 0, 10_000, True)
    log = one_pool(1, "round-robin", rule, "fast", limit, TIMER).run(stream)
    assert np.argsort(log.finished_s).tolist() == [1, 3, 5, 4, 2, 0]


@settings(SETTINGS, suppress_health_check=list(HealthCheck))
@given(st.data(), conversations(), st.sampled_from(["both", "prefill", "decode"]), st.booleans())
def test_a_custom_scheduler_interprets_its_own_replicas_alone(monkeypatch, data, stream, where, fails):
    """Requests go from engine to engine, as KV and after failures, and come out as where all are interpreted."""
    names = ("a", "b")
    roles = ("both", "both") if where == "both" else ("prefill", "decode")
    own = "a" if where == "prefill" else "b"
    limit = dataclasses.replace(data.draw(limits(stream, 1)), num_blocks=2000, schedules_ahead=False)
    rule = own_rule(monkeypatch)
    pools = tuple(
        Pool(
            data.draw(st.integers(1, 2)),
            rule if name == own else "vllm-v1",
            "fast",
            limit,
            dataclasses.replace(TIMER, step_s=step_s),
            prefix_caching=data.draw(st.booleans()),
            name=name,
            role=role,
        )
        for name, role, step_s in zip(names, roles, (2e-3, 1.7e-3), strict=True)
    )
    links = {} if where == "both" else {names: KvLink(1e-5, 1e9, 1e3, data.draw(st.booleans()))}
    down = tuple(FaultEvent(replica=replica, at_s=0.01 * (1 + replica), down_s=0.02) for replica in (0, 1))
    faults = Faults(FaultsConfig(events=down), 0) if fails else None
    fleet = Fleet(pools, data.draw(st.sampled_from(["round-robin", "kv-aware"])), links=links, faults=faults)
    mixed, exact = fleet.run(stream), changed(fleet, stepping="exact-steps").run(stream)
    assert mixed.outputs.keys() == {engine_module().SOURCE, "interpreted"}
    assert_same(mixed, exact)


def test_the_source_runs_where_cython_is_not_installed():
    """Then its types are those of ``plain.py``, which say nothing."""
    program = (
        "import sys; sys.modules['cython'] = None\n"
        "from simulator.serving.compiled import engine_module\n"
        "engine = engine_module(interpreted=True)\n"
        "print(engine.cython.__name__, engine.Sequence(3, 4, 5).known_tokens)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert result.stdout.split() == ["simulator.serving.plain", "4"]
