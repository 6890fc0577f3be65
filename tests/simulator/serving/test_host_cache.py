"""Prefix-cache blocks in host memory: kept in order of use, found again, paid for over the link."""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_pool import one_pool
from plain_scenario import plain_scenario
from stub_timers import LinearTimer

from forerun.errors import ForerunError
from hwprofiles import ProfileError
from simulator.running.metrics import run_document
from simulator.running.run import simulate
from simulator.serving import EngineLimits, StoreSpace
from simulator.serving.engine import Lane, Store, Tier
from simulator.workload import RequestStream
from traces import PrefixHashes


@given(st.lists(st.tuples(st.sampled_from(["put", "load"]), st.integers(0, 12)), max_size=200), st.integers(1, 30))
def test_oldest_leave_first_and_never_more_than_fit(events, capacity):
    """Held against an ordered dictionary; every block has its own number of blocks."""
    host, model = Store(capacity), OrderedDict()
    tier = Tier(host, Lane(), Lane(), StoreSpace(num_blocks=capacity, block_bytes=8.0, read_bytes_per_s=1e9))
    copied = back = 0
    for kind, block in events:
        blocks = block % 4 + 1
        if kind == "load":
            if block in model:
                assert tier.load(block, 0.0) == blocks
                model.move_to_end(block)
                back += blocks
        else:
            tier.save(block, blocks, 0.0)
            if block not in model and blocks <= capacity:
                copied += blocks
                model[block] = blocks
                while sum(model.values()) > capacity:
                    model.popitem(last=False)
            elif block in model:
                model.move_to_end(block)
        assert host.used_blocks == sum(model.values()) <= capacity
        assert [block for block in range(13) if host.held(block, 0.0)] == sorted(model)
    assert (tier.written_blocks, tier.read_blocks) == (copied, back)
    tier.read.copied_s(0.0)
    assert (tier.write.booked_bytes, tier.read.booked_bytes) == (8.0 * copied, 8.0 * back)


LIMITS = EngineLimits(
    max_num_seqs=4, max_num_batched_tokens=512, block_size=16, num_blocks=64, watermark_blocks=0, max_model_len=None,
    chunked_prefill=True,
)  # fmt: skip
TIMER = LinearTimer(step_s=1e-3, token_s=1e-5)


@st.composite
def repeating(draw):
    """One request at a time; prompts of whole blocks that begin like earlier ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lists: list[list[int]] = []
    for request in range(40):
        start = lists[rng.integers(request)][: rng.integers(1, 9)] if request and rng.random() < 0.7 else []
        lists.append([*start, *range(100 * request + 100, 100 * request + 100 + rng.integers(1, 20))])
    tokens = np.array([16 * len(hashes) for hashes in lists])
    ones = np.ones(len(lists), dtype=np.int64)
    return RequestStream(
        np.zeros(40), tokens, 2 * ones, max_concurrency=1, prefix_hashes=PrefixHashes.from_lists(lists, 16)
    )


def served(stream, num_blocks, offload):
    limits = replace(LIMITS, num_blocks=num_blocks)
    stores = () if offload is None else (offload,)
    return one_pool(1, "round-robin", "vllm-v1", "fast", limits, TIMER, None, True, stores=stores).run(stream)


@settings(max_examples=40, deadline=None)
@given(repeating(), st.integers(32, 80))
def test_host_memory_without_end_is_as_good_as_a_chip_without_end(stream, num_blocks):
    """What hits does not depend on the tier, only on whether anything is ever lost."""
    offload = StoreSpace(num_blocks=10**9, block_bytes=1.0, read_bytes_per_s=1e6)
    small, large = served(stream, num_blocks, offload), served(stream, 10**6, None)
    assert list(small.cached_tokens) == list(large.cached_tokens)
    assert 0 <= small.tier_hit_tokens["host"] <= sum(small.cached_tokens)
    host = small.tiers[0]
    assert host.read_blocks * 16 >= small.tier_hit_tokens["host"]
    lost = served(stream, num_blocks, None)
    assert sum(lost.cached_tokens) <= sum(small.cached_tokens)


@pytest.mark.parametrize(("block_s", "waits"), [(1e-6, False), (5e-3, True)])
def test_a_hit_in_host_memory_costs_its_copy_beside_the_step(block_s, waits):
    """A, then B that pushes A out of the chip, then A again: it comes back over the link but for its last block."""
    lists = [list(range(30)), list(range(50, 90)), list(range(30))]
    tokens = np.array([16 * len(hashes) for hashes in lists])
    stream = RequestStream(
        np.zeros(3), tokens, np.full(3, 2), max_concurrency=1, prefix_hashes=PrefixHashes.from_lists(lists, 16)
    )
    limits = replace(LIMITS, num_blocks=45, max_num_batched_tokens=2048)
    space = StoreSpace(num_blocks=100, block_bytes=1.0, read_bytes_per_s=1 / block_s, latency_s=1e-4)
    log = one_pool(1, "round-robin", "vllm-v1", "fast", limits, TIMER, None, True, stores=(space,)).run(stream)
    assert list(log.cached_tokens) == [0, 0, 29 * 16]
    on_chip = log.cached_tokens[2] - log.tier_hit_tokens["host"]
    blocks = log.tiers[0].read_blocks
    assert blocks == 30 - on_chip // 16
    step_s = 1e-3 + 16 * 1e-5
    copy_s = 1e-4 + blocks * block_s
    assert (copy_s > step_s) == waits
    assert log.first_token_s[2] - log.finished_s[1] == pytest.approx(max(step_s, copy_s), abs=1e-9)


ENGINE = {"enable_prefix_caching": True, "num_kv_blocks": 1500, "kv_offloading_bytes": 64e9}


def offloading(inputs=100, outputs=10, requests=4, **sections):
    return plain_scenario("llama-3.1-8b", "h100-sxm", inputs, outputs, requests, engine=ENGINE, **sections)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("engine.enable_prefix_caching", False, "enable_prefix_caching is false"),
        ("engine.kv_offloading_bytes", 1e3, "holds no block"),
        ("engine.kv_offloading_bytes", -1.0, "kv_offloading_bytes"),
        ("engine.host_link", "pcie9", "engine.host_link"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(path, value, message):
    with pytest.raises((ForerunError, ProfileError), match=message):
        simulate(offloading().with_values({path: value}))


def test_the_summary_tells_hits_by_tier():
    single = run_document(simulate(offloading()))
    assert single["kv_cache"]["host"]["hit_tokens"] is None
    assert any("kv_offloading_bytes changes nothing" in note for note in single["notes"])
    sessions = {"arrivals": {"process": "poisson", "request_rate": 3}, "sessions": {"turns": 6, "think_time_s": 5.0}}
    scenario = offloading(600, 100, 200, workload=sessions)
    run = run_document(simulate(scenario))["kv_cache"]
    without = run_document(simulate(scenario.with_values({"engine.kv_offloading_bytes": None})))["kv_cache"]
    assert "host" not in without
    assert run["host"]["hit_tokens"] > 0
    assert run["host"]["peak_blocks"] <= run["host"]["num_blocks"]
    assert run["prefix_hit_tokens"] >= run["host"]["hit_tokens"]
    assert run["prefix_hit_rate"] > without["prefix_hit_rate"]
    assert run["host"]["hit_rate"] <= run["prefix_hit_rate"]


def test_the_table_of_a_router_is_as_large_as_all_tiers_of_a_server():
    """Ten long prompts in turn on two servers: each server's chip holds three of them, its host memory all."""
    prompts = {"system_prompt_tokens": 4000, "system_prompts": 10, "turns": 1, "think_time_s": 1.0}
    sections = {"arrivals": {"process": "poisson", "request_rate": 2}, "sessions": prompts}
    engine = {"routing": "prefix-aware", "num_kv_blocks": 1000}
    scenario = offloading(50, 5, 400, hardware={"replicas": 2}, workload=sections)
    scenario = scenario.with_values({f"engine.{name}": value for name, value in engine.items()})
    both, chip = (simulate(scenario.with_values({"router.table_tokens": tokens})) for tokens in (None, 16_000))
    hits = [run.document["kv_cache"]["prefix_hit_tokens"] for run in (both, chip)]
    loads = [run.document["kv_cache"]["host"]["hit_tokens"] for run in (both, chip)]
    assert hits[0] > hits[1]
    assert hits[0] / 400 / 4000 > 0.9
    limits = simulate(scenario.with_values({"router.table_tokens": 10**9})).document
    assert limits["summary"] == both.document["summary"], loads
