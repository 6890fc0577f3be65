"""Stores behind the prefix cache: lanes, visibility, loads outside the batch, and every layout of servers."""

from dataclasses import replace

import numpy as np
import pytest
from one_pool import one_pool
from plain_scenario import plain_scenario
from stub_timers import LinearTimer

import forerun as fr
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving import EngineLimits, StoreSpace
from simulator.serving.engine import Lane
from simulator.studies.plan.layouts import layouts
from simulator.studies.plan.search import Candidate
from simulator.studies.study_file import study_of
from simulator.workload import RequestStream
from traces import PrefixHashes

DISK = {"medium": "disk", "bytes": 1e12, "read_bytes_per_s": 6e9, "write_bytes_per_s": 3e9}
SHARED = {"bytes": 1e13, "read_bytes_per_s": 2e10, "write_bytes_per_s": 1e10}
SESSIONS = {
    "arrivals": {"process": "poisson", "request_rate": 3.0},
    "sessions": {"turns": 5, "think_time_s": 3.0, "system_prompt_tokens": 400},
}


def test_copies_on_a_lane_follow_one_another():
    lane = Lane(0.5, 10.0)
    assert lane.seconds(0.0) == 0.0
    assert lane.occupy(1.0, lane.seconds(20.0), 20.0) == 3.5
    assert lane.wait_s(2.0) == 1.5
    assert lane.occupy(2.0, lane.seconds(5.0), 5.0) == 4.5
    assert lane.booked_bytes == 25.0
    lane.gather(5.0)
    lane.gather(5.0)
    assert lane.copied_s(4.0) == 0.5 + 0.5 + 1.0
    assert lane.copied_s(4.0) == 0.0


def test_workers_of_a_lane_share_its_bandwidth():
    lane = Lane(0.0, 10.0, 2)
    assert [lane.occupy(0.0, lane.seconds(10.0), 10.0) for _ in range(4)] == [2.0, 2.0, 4.0, 4.0]
    assert lane.stream(0.0, 5.0) == 5.0


def stored(engine=None, inputs=600, outputs=60, requests=120, **sections):
    """Sessions whose KV is several times as large as the chip's."""
    engine = {"num_kv_blocks": 700} | (engine or {})
    scenario = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "engine": engine}
    load = SESSIONS | {"input_tokens": inputs, "output_tokens": outputs, "num_requests": requests}
    return scenario_from(scenario | {"workload": load} | sections, "stored")


TWO = {"kv_stores": [{"bytes": 2e9}, DISK]}
LAYOUTS = {
    "host": ({"kv_stores": [{"bytes": 2e9}]}, {}),
    "host in the background": ({"kv_stores": [{"bytes": 4e9, "loads": "background", "saves": "computed"}]}, {}),
    "several lanes": ({"kv_stores": [{"bytes": 2e9, "lanes": 3}, DISK | {"lanes": 4}]}, {}),
    "host and disk": (TWO, {}),
    "faster": ({"kv_stores": [{"bytes": 2e9, "fetch": "faster"}, DISK | {"fetch": "faster"}]}, {}),
    "shared": ({}, {"kv_store": SHARED, "hardware": {"chip": "h100-sxm", "replicas": 3}}),
    "pipeline": (TWO, {"kv_store": SHARED, "hardware": {"chip": "h100-sxm", "pipeline_parallel": 2}}),
    "groups": (
        TWO,
        {
            "kv_store": SHARED,
            "model": "gpt-oss-20b",
            "hardware": {"chip": "h100-sxm", "attention_data_parallel": 2, "expert_parallel": 2},
        },
    ),
    "failures": (
        TWO | {"routing": "least-outstanding"},
        {"kv_store": SHARED, "hardware": {"chip": "h100-sxm", "replicas": 2}, "faults": {"mtbf_s": 9.0, "mttr_s": 1.0}},
    ),
    "prefill and decode": (
        TWO,
        {"kv_store": SHARED, "pools": {"p": {"role": "prefill", "hardware": {"replicas": 2}}, "d": {"role": "decode"}}},
    ),
    "swap": (TWO | {"preemption": "swap"}, {"kv_store": SHARED}),
    "sglang": (TWO | {"framework": "sglang", "prefix_cache": "radix"}, {}),
    "prefill first": (TWO | {"scheduler": "prefill-first"}, {}),
    "no eviction": (TWO | {"scheduler": "guaranteed-no-evict"}, {}),
    "priority": (TWO | {"scheduler": "priority"}, {}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_keeps_more_than_the_chips_and_both_engines_agree(layout):
    """Invariants of each run hold lane bytes against copied blocks; the oracle gives the same document."""
    engine, sections = LAYOUTS[layout]
    scenario = stored(engine, **sections)
    run, oracle = (simulate(scenario.with_values({"engine.stepping": how})) for how in ("fast", "exact-steps"))
    kv = run.document["kv_cache"]
    assert kv == oracle.document["kv_cache"]
    assert run.document["summary"] == oracle.document["summary"]
    without = stored(
        {key: value for key, value in engine.items() if key != "kv_stores"}, **sections | {"kv_store": None}
    )
    assert kv["prefix_hit_tokens"] > simulate(without).document["kv_cache"]["prefix_hit_tokens"]
    stores = {store["name"]: store for store in kv["stores"]}
    rates = kv["hit_rate_by_tier"]
    assert list(rates) == ["device", *stores]
    assert min(rates.values()) >= 0.0
    assert sum(rates.values()) == pytest.approx(kv["prefix_hit_rate"])
    parts = kv["hit_rate_over_time"]
    assert list(parts) == ["until_s", *rates]
    assert all(rate is None or 0 <= rate <= 1 for name in rates for rate in parts[name])
    for name, store in stores.items():
        assert store["peak_bytes"] <= store["bytes"]
        assert store["hit_rate"] == rates[name]
        assert (store["read_busy"] > 0) == (store["read_bytes"] > 0)
        assert (store["write_busy"] > 0) == (store["written_bytes"] > 0)
        assert kv["lane_bytes"][f"{name} read"] == pytest.approx(store["read_bytes"])
        assert kv["lane_bytes"][f"{name} write"] == pytest.approx(store["written_bytes"])


LIMITS = EngineLimits(
    max_num_seqs=4, max_num_batched_tokens=2048, block_size=16, num_blocks=45, watermark_blocks=0, max_model_len=None,
    chunked_prefill=True,
)  # fmt: skip
TIMER = LinearTimer(step_s=1e-3, token_s=1e-5)
SPACE = StoreSpace(num_blocks=1000, block_bytes=1.0, read_bytes_per_s=1e3, write_bytes_per_s=1e6, background=True)


def served(lists, space, arrivals=None, outputs=2, num_blocks=45, concurrency=1):
    tokens = np.array([16 * len(hashes) for hashes in lists])
    times = np.zeros(len(lists)) if arrivals is None else np.array(arrivals)
    outputs = np.broadcast_to(np.array(outputs), len(lists)).copy()
    most = concurrency if arrivals is None else None
    hashes = PrefixHashes.from_lists(lists, 16)
    stream = RequestStream(times, tokens, outputs, max_concurrency=most, prefix_hashes=hashes)
    limits = replace(LIMITS, num_blocks=num_blocks)
    fleet = one_pool(1, "round-robin", "vllm-v1", "fast", limits, TIMER, None, True, stores=(space,))
    return fleet.run(stream)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("saves", ["evicted", "computed"])
@pytest.mark.parametrize("seed", range(10))
def test_a_store_without_limits_is_as_good_as_chips_without_limits(background, saves, seed):
    """Requests one after the other: what hits does not depend on where it was kept."""
    rng, lists = np.random.default_rng(seed), []
    for request in range(40):
        start = lists[rng.integers(request)][: rng.integers(1, 9)] if request and rng.random() < 0.7 else []
        lists.append([*start, *range(100 * request + 100, 100 * request + 100 + rng.integers(1, 20))])
    space = StoreSpace(
        num_blocks=10**9,
        block_bytes=1.0,
        read_bytes_per_s=1e300,
        write_bytes_per_s=1e300,
        background=background,
        saves=saves,
    )
    small, large = served(lists, space), served(lists, space, num_blocks=10**6)
    assert list(small.cached_tokens) == list(large.cached_tokens)
    assert small.tier_hit_tokens["host"] > 0 == large.tier_hit_tokens["host"]


A, B = list(range(30)), list(range(50, 90))


def test_a_prefix_from_a_slow_store_delays_its_request_alone():
    """A long answer runs on while 30 blocks come at 1 ms each; in a step, the answer waits for them too."""
    lists, arrivals, outputs = [A, B, list(range(200, 204)), A], [0.0, 0.1, 0.2, 0.21], [2, 2, 60, 2]
    slow, beside = (
        served(lists, space, arrivals, outputs, num_blocks=80) for space in (SPACE, replace(SPACE, background=False))
    )
    small, other = (
        served(lists, space, arrivals, outputs, num_blocks=50) for space in (SPACE, replace(SPACE, background=False))
    )
    assert slow.tier_hit_tokens == beside.tier_hit_tokens == {}
    hit = small.tier_hit_tokens["host"]
    assert hit > 0
    assert small.cached_tokens[3] == other.cached_tokens[3]
    blocks = small.tiers[0].read_blocks
    assert small.first_token_s[3] - 0.21 > blocks * 1e-3
    alone_s = slow.finished_s[2] - slow.arrival_s[2]
    assert small.finished_s[2] - small.arrival_s[2] == pytest.approx(alone_s, rel=0.02)
    assert other.finished_s[2] - other.arrival_s[2] > alone_s + 0.5 * blocks * 1e-3


@pytest.mark.parametrize(("bandwidth", "hits"), [(1e6, True), (1e2, False)])
def test_a_block_is_found_once_its_write_has_landed(bandwidth, hits):
    log = served([A, B, A], replace(SPACE, write_bytes_per_s=bandwidth))
    assert (log.tier_hit_tokens["host"] > 0) == hits
    assert log.tiers[0].written_blocks > 0


@pytest.mark.parametrize(("read", "copies"), [(1e6, True), (1e2, False)])
def test_a_prefix_is_computed_again_where_that_is_faster(read, copies):
    space = replace(SPACE, read_bytes_per_s=read, picky=True)
    tokens = np.array([16 * len(hashes) for hashes in (A, B, A)])
    hashes = PrefixHashes.from_lists([A, B, A], 16)
    stream = RequestStream(np.zeros(3), tokens, np.full(3, 2), max_concurrency=1, prefix_hashes=hashes)
    pool = {"stores": (space,), "recompute_s": (1e-5, 0.0)}
    log = one_pool(1, "round-robin", "vllm-v1", "fast", LIMITS, TIMER, None, True, **pool).run(stream)
    assert (log.tier_hit_tokens["host"] > 0) == copies


@pytest.mark.parametrize(("medium", "kept"), [("host", False), ("disk", True)])
def test_a_disk_outlasts_the_failure_of_its_server(medium, kept):
    store = {"medium": medium, "bytes": 1e12, "read_bytes_per_s": 6e9, "write_bytes_per_s": 6e9, "saves": "computed"}
    prompts = {"sessions": {"turns": 1, "system_prompt_tokens": 4000, "system_prompts": 1, "think_time_s": 1.0}}
    arrivals = {"arrivals": {"process": "constant", "request_rate": 0.5}}
    scenario = plain_scenario("llama-3.1-8b", "h100-sxm", 20, 2, 4, engine={"kv_stores": [store]})
    faults = {"events": [{"replica": 0, "at_s": 3.0, "down_s": 0.1}]}
    run = simulate(
        scenario.with_values({"workload": scenario.workload.model_dump() | prompts | arrivals, "faults": faults})
    )
    assert (run.document["kv_cache"]["stores"][0]["hit_tokens"] > 0) == kept


def test_a_server_reads_from_the_shared_store_what_another_one_computed():
    prompts = {"turns": 1, "system_prompt_tokens": 4000, "system_prompts": 1, "think_time_s": 1.0}
    scenario = plain_scenario("llama-3.1-8b", "h100-sxm", 20, 2, 4, hardware={"replicas": 2}, kv_store=SHARED)
    arrivals = {"process": "constant", "request_rate": 1.0}
    run = simulate(scenario.with_values({"workload.arrivals": arrivals, "workload.sessions": prompts}))
    kv = run.document["kv_cache"]
    assert kv["stores"][0]["hit_tokens"] == 4000
    assert kv["prefix_hit_tokens"] == 3 * 4000
    assert kv["lane_bytes"]["shared link read"] == kv["lane_bytes"]["shared read"] > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("saves", ["evicted", "computed"])
def test_a_larger_store_finds_no_less_where_size_alone_changes(saves, seed):
    """Requests one after the other through lanes that take no time."""
    rng, lists = np.random.default_rng(seed), []
    for request in range(60):
        start = lists[rng.integers(request)][: rng.integers(1, 9)] if request and rng.random() < 0.7 else []
        lists.append([*start, *range(100 * request + 100, 100 * request + 100 + rng.integers(1, 20))])
    space = replace(SPACE, read_bytes_per_s=1e300, write_bytes_per_s=1e300, saves=saves)
    hits = [sum(served(lists, replace(space, num_blocks=size)).cached_tokens) for size in (20, 60, 150, 400, 2000)]
    assert hits == sorted(hits)


def test_a_sweep_over_the_size_of_a_store_says_what_is_enough():
    host = {"bytes": 1e8, "usd_per_gb_month": 10.0}
    scenario = stored({"kv_stores": [host]}, prices={"usd_per_chip_hour": 2.0})
    sweep = fr.sweep(scenario, vary={"engine.kv_stores.0.bytes": [1e8, 2e9, 2e10, 4e10]}, jobs=1)
    curve = sweep.data.kv_tier
    assert [one.bytes for one in curve.sizes] == [1e8, 2e9, 2e10, 4e10]
    assert curve.enough_bytes == 2e10
    assert sweep.conclusion.startswith("20 GB of host is enough: beyond it")
    assert "It costs $1,660 a month and server, 100 MB $1,461" in sweep.conclusion
    rates = [one.hit_rate for one in curve.sizes]
    assert rates[0] < rates[1] < rates[2] == rates[3] <= curve.most_hit_rate + 1e-9
    assert curve.sizes[3].usd_per_month - curve.sizes[2].usd_per_month == pytest.approx(200.0)
    assert sweep.document["kv_tier"]["field"] == "engine.kv_stores.0.bytes"
    assert sweep.tables()[0].name == "tiers"
    assert fr.plot.kv_tier(sweep).data


def test_the_rent_of_stores_is_in_the_dollars_of_a_run_and_of_a_plan():
    stores = {"kv_stores": [{"bytes": 1e11, "usd_per_gb_month": 7.3}]}
    shared, prices = {"kv_store": SHARED | {"usd_per_gb_month": 0.73}}, {"prices": {"usd_per_chip_hour": 2.0}}
    priced, plain = (
        simulate(stored(one, **prices, **two)).document
        for one, two in ((stores, shared), ({"kv_stores": [{"bytes": 1e11}]}, {"kv_store": SHARED}))
    )
    hours = priced["summary"]["duration"] / 3600
    assert priced["cost_usd"] - plain["cost_usd"] == pytest.approx((1.0 + 10.0) * hours)
    assert (
        "engine.kv_stores.0, kv_store: no usd_per_gb_month, so dollars are those of the chips alone" in plain["notes"]
    )
    scenario = stored(stores, **shared, **prices)
    layout = layouts(study_of(scenario), {"hardware.tensor_parallel": (1,)}, 0)[0]
    assert Candidate(layout, 3, "meets").usd_per_hour == pytest.approx(3 * (2.0 + 1.0) + 10.0)


def test_a_run_report_draws_its_tiers():
    run = simulate(stored(TWO))
    figure = fr.plot.tiers(run)
    assert [trace.name for trace in figure.data[:3]] == ["device", "host", "disk"]
    assert list(figure.data[3].y) == ["host read", "host write", "disk read", "disk write"]
    with pytest.raises(fr.ForerunError, match="tiers"):
        fr.plot.tiers(simulate(stored()))
