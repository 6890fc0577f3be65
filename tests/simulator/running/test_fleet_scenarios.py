"""Pools, KV transfer, failures and swap from a scenario to the JSON of its run."""

import json

import numpy as np
import pytest
from both_engines import both_engines
from scenario_parts import burst, on_h100, poisson

from forerun.errors import ForerunError
from hwprofiles import load_link
from simulator.running.build import build_replica, build_run
from simulator.running.metrics.document import run_document
from simulator.running.run import simulate
from simulator.timing import DraftStep, StepWork, causal_pairs, drafting_seconds, load_framework
from simulator.workload import RequestStream

WORKLOAD = poisson(20.0, 60, 800, 20)
DISAGGREGATED = {
    "prompts": {"role": "prefill", "hardware": {"chip": "h200-sxm", "replicas": 2}, "usd_per_chip_hour": 4.0},
    "answers": {"role": "decode", "hardware": {"tensor_parallel": 2}},
}

STAGED = {"chip": "h100-sxm", "pipeline_parallel": 2}


def scenario(**sections):
    return on_h100(**{"workload": WORKLOAD} | sections)


def test_chips_and_cost_are_counted_over_pools():
    document = run_document(simulate(scenario(pools=DISAGGREGATED, prices={"usd_per_chip_hour": 2.0})))
    assert document["chips"] == 2 + 2
    assert [pool["chips"] for pool in document["pools"]] == [2, 2]
    hours = document["summary"]["duration"] / 3600
    assert document["cost_usd"] == pytest.approx(hours * (2 * 4.0 + 2 * 2.0))
    assert document["energy_joules"] == pytest.approx(sum(pool["energy_joules"] for pool in document["pools"]))
    assert document["kv_transfer"]["transfers"] == 60
    assert sum(row["requests"] for row in document["replicas"][2:]) == 60
    assert sum(row["prompt_tokens"] for row in document["replicas"][:2]) == 60 * 800
    assert sum(document["bottleneck"].values()) == pytest.approx(1.0)
    work = sum(pool["utilisation"]["mfu"] * pool["peak_flops"] for pool in document["pools"])
    assert document["utilisation"]["mfu"] * sum(p["peak_flops"] for p in document["pools"]) == pytest.approx(work)


def test_a_single_pool_is_the_scenario_itself():
    plain = run_document(simulate(scenario(hardware={"chip": "h100-sxm", "replicas": 2})))
    pooled = run_document(simulate(scenario(pools={"only": {"hardware": {"replicas": 2}}})))
    assert pooled["summary"] == plain["summary"]
    assert pooled["kv_cache"] == plain["kv_cache"]
    assert pooled["engine"]["exact_steps"] == 0


def test_layouts_of_pools_are_counted_by_their_chips():
    """A stage of four chips in two attention groups, two stages: experts' work and KV are those of all of them."""
    moe = {"model": "qwen3-30b-a3b", "workload": WORKLOAD | {"num_requests": 8}}
    hardware = {"chip": "h100-sxm", "tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 4}
    grouped = scenario(hardware=hardware, **moe)
    pooled = scenario(pools={"only": {"hardware": hardware}}, **moe)
    build = build_run(pooled, 0)
    assert (build.chips, build.pools[0].chips, build.pools[0].chips_per_stage) == (4, 4, 4)
    single, one = simulate(grouped), simulate(pooled)
    assert one.steps.flops.sum() == single.steps.flops.sum()
    assert one.kv == single.kv
    disaggregated = {"a": {"role": "prefill", "hardware": hardware}, "b": {"role": "decode", "hardware": hardware}}
    links = build_run(scenario(pools=disaggregated, **moe), 0).fleet.links
    assert links["a", "b"].bytes_per_token == build.memory.replica_kv_bytes_per_token == single.kv.bytes_per_token


def test_pipelines_stand_in_pools_that_do_all_of_the_work():
    pools = {"staged": {"role": "both", "hardware": STAGED}, "plain": {"hardware": {"replicas": 2}}}
    result = simulate(scenario(pools=pools, engine={"routing": "least-outstanding"}))
    assert result.chips == 2 + 2
    assert np.isfinite(result.requests.finished_s).all()
    assert {use.pool for use in result.replicas if use.requests} == {"staged", "plain"}
    assert any("pipeline" in note for note in result.notes)


def test_assumed_parameters_reach_every_pool():
    """Twice the latency of the link, twice the host's work per step: both show, in each pool."""
    offline = scenario(pools=DISAGGREGATED, engine={"entry_point": "offline"}, kv_transfer={"link": "infiniband-ndr"})
    link = load_link("infiniband-ndr")
    factors = {"infiniband-ndr.latency_s": 2.0, "vllm.step_s": 2.0}
    plain, scaled = build_run(offline, 0), build_run(offline, 0, factors=factors)
    assert scaled.fleet.links["prompts", "answers"].latency_s == 2 * link.latency_s
    work = StepWork(0, 0, (0,), (0,), 0, (0,), 4, 1, (4000,))
    added = load_framework("vllm").step_s
    for before, after in zip(plain.pools, scaled.pools, strict=True):
        more = after.timer.seconds(work) - before.timer.seconds(work)
        assert more == pytest.approx(added)


def test_a_stream_is_served_by_a_fleet():
    stream = RequestStream(np.array([0.0, 0.5]), np.array([100, 200]), np.array([3, 4]), None)
    result = simulate(scenario(pools=DISAGGREGATED), stream=stream)
    assert result.requests.input_tokens.tolist() == [100, 200]
    assert result.transfers is not None
    assert result.transfers.transfers == 2


def test_the_way_into_the_engine_counts_in_fleets():
    """vLLM's API server takes 6 ms, at a prefill and a decode replica, and streams a token; offline, there is none."""
    first_s = {}
    for front in ("server", "offline"):
        engine = {"entry_point": front, "async_scheduling": False}
        run = simulate(scenario(pools=DISAGGREGATED, workload=WORKLOAD | {"num_requests": 1}, engine=engine))
        first_s[front] = run.requests.first_token_s[0]
    framework = load_framework("vllm")
    way = framework.api_server_s + framework.api_server_work_s + 800 * framework.tokenisation_per_token_s
    assert first_s["server"] - first_s["offline"] == pytest.approx(2 * way + framework.streaming_s, rel=1e-6)


@pytest.mark.parametrize("pools", [None, DISAGGREGATED])
def test_a_router_takes_its_time_once_before_a_request_reaches_a_replica(pools):
    one = {"workload": WORKLOAD | {"num_requests": 1}, **({} if pools is None else {"pools": pools})}
    first_s = [
        simulate(scenario(**one, router={"latency_s": latency_s})).requests.first_token_s[0]
        for latency_s in (0.0, 0.0625)
    ]
    assert first_s[1] - first_s[0] == pytest.approx(0.0625, abs=1e-9)


def test_first_token_follows_the_framework():
    def samples_first(**changes):
        return next(iter(build_run(scenario(pools=DISAGGREGATED, **changes), 0).fleet.links.values())).samples_first

    assert not samples_first()
    assert samples_first(engine={"framework": "sglang"})
    assert not samples_first(engine={"framework": "vllm", "release": "0.11.0"})
    assert samples_first(kv_transfer={"first_token": "prefill"})


def test_the_link_is_as_wide_as_the_smaller_replica():
    pools = {
        "a": {"role": "prefill", "hardware": {"tensor_parallel": 4}},
        "b": {"role": "decode", "hardware": {"tensor_parallel": 2}},
    }
    one, two = (
        build_run(scenario(pools=pools, kv_transfer=transfer), 0).fleet.links["a", "b"]
        for transfer in ({"link": "nvlink4", "links": 1}, {"link": "nvlink4"})
    )
    assert two.bandwidth_bytes_per_s == 2 * one.bandwidth_bytes_per_s
    # 32 layers, 8 KV heads of 128, K and V, 2 bytes
    assert one.bytes_per_token == 32 * 8 * 128 * 2 * 2


EAGLE = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": {"alpha": 0.7}}
POOLS = {"prompts": {"role": "prefill"}, "answers": {"role": "decode"}}


def drafting_in_pools(draft_kv, speculation=EAGLE, **sections):
    transfer = {"link": "infiniband-ndr", "draft_kv": draft_kv}
    return scenario(pools=POOLS, kv_transfer=transfer, speculation=speculation, **sections)


def test_a_drafter_whose_kv_is_not_sent_computes_the_prompt_again():
    """One prompt of 800 tokens: the drafter's pass over them, less the time on the link that its KV would take."""
    alone = {"workload": WORKLOAD | {"num_requests": 1}}
    ways = [drafting_in_pools(kv, **alone) for kv in ("send", "recompute")]
    builds, (sent, again) = [build_run(way, 0) for way in ways], [simulate(way) for way in ways]
    timer, links = builds[1].pools[1].timer, [build.fleet.links["prompts", "answers"] for build in builds]
    assert links[0].bytes_per_token - links[1].bytes_per_token == timer.drafter.kv_bytes_per_token == 2 * 8 * 128 * 2
    tokens = 799  # vLLM computes the last one at the decode replica
    skipped = DraftStep(3, 0, 1, tokens, (causal_pairs(tokens, 0, None),), (tokens,))
    added = drafting_seconds(timer.drafter.catch_up(skipped)) - (links[0].seconds(tokens) - links[1].seconds(tokens))
    ttft = [run.requests.first_token_s[0] for run in (sent, again)]
    assert ttft[1] - ttft[0] == pytest.approx(added, abs=1e-9)
    assert sent.speculation == again.speculation


@pytest.mark.parametrize(("recovery_tokens", "accepted"), [(1, 0.95), (10**9, 0.0)])
def test_a_drafter_that_never_sees_the_prompt_is_accepted_as_what_it_missed_is_forgotten(recovery_tokens, accepted):
    policy = {"name": "batch-table", "table": [[1, 512, 3]], "while_off": "starve", "recovery_tokens": recovery_tokens}
    sent, skipped = (
        simulate(drafting_in_pools(kv, EAGLE | {"policy": policy})).speculation.accepted_tokens
        for kv in ("send", "skip")
    )
    assert accepted * sent <= skipped <= accepted / 0.95 * sent


@pytest.mark.parametrize("draft_kv", ["recompute", "skip"])
@pytest.mark.parametrize("method", ["eagle3", "parallel-draft"])
def test_both_engines_agree_on_drafters_without_their_kv(method, draft_kv):
    fast, _ = both_engines(drafting_in_pools(draft_kv, EAGLE | {"method": method}))
    assert fast.speculation.accepted_tokens > 0


@pytest.mark.parametrize(
    ("draft_kv", "speculation", "reason"),
    [
        ("recompute", None, "there is none"),
        ("skip", EAGLE | {"method": "ngram"}, "there is none"),
        ("skip", EAGLE | {"policy": "confidence-budget"}, "goes with policy fixed, or one with while_off: starve"),
        ("recompute", EAGLE | {"policy": {"name": "ema", "while_off": "starve"}}, "another while_off than starve"),
    ],
)
def test_draft_kv_is_refused_where_nothing_would_change(draft_kv, speculation, reason):
    with pytest.raises(ForerunError, match=reason):
        drafting_in_pools(draft_kv, speculation)


def test_failures_restart_requests_and_lose_none():
    faults = {"events": [{"replica": 0, "at_s": 1.0, "down_s": 0.5}]}
    failing = scenario(faults=faults, hardware={"chip": "h100-sxm", "replicas": 2})
    first, again = (run_document(simulate(failing)) | {"engine": None} for _ in range(2))
    assert first["summary"]["completed"] == 60
    assert first["restarts"] > 0
    assert json.dumps(first) == json.dumps(again)


def test_swap_is_reported_and_bound_by_the_interconnect():
    workload = burst(60, 150, 200)
    result = simulate(scenario(engine={"num_kv_blocks": 70, "preemption": "swap"}, workload=workload))
    swapped, plain = run_document(result), run_document(simulate(scenario(workload=workload)))
    assert swapped["kv_cache"]["swapped_blocks"] > 0
    assert swapped["kv_cache"]["preemptions"] > 0
    assert result.steps.interconnect_s.sum() > 0
    assert result.steps.prefill_tokens.sum() == 60 * 150
    assert plain["kv_cache"]["swapped_blocks"] is None
    assert plain["bottleneck"]["interconnect"] == 0


def test_what_looks_at_equal_replicas_refuses_others():
    with pytest.raises(ForerunError, match="pools: this looks at equal replicas"):
        build_replica(scenario(pools=DISAGGREGATED), 0)


def test_values_are_set_by_pool_name():
    changed = scenario(pools=DISAGGREGATED).with_values({"pools.answers.hardware.replicas": 3})
    assert sum(pool.replicas for pool in build_run(changed, 0).pools) == 5


def test_a_radix_cache_shares_token_by_token():
    """Three turns of 100 + 50 tokens: of the 149 and 299 tokens computed before, blocks of 16 find 144 and 288."""
    sessions = {"turns": 3, "think_time_s": 1.0, "block_tokens": 16}
    workload = WORKLOAD | {"num_requests": 3, "input_tokens": 100, "output_tokens": 50, "sessions": sessions}
    blocks, radix = (
        simulate(
            scenario(engine={"prefix_cache": kind, "num_kv_blocks": 200}, workload=workload | {"sessions": custom})
        )
        for kind, custom in (("blocks", sessions), ("radix", sessions | {"block_tokens": 1}))
    )
    assert list(blocks.requests.cached_tokens) == [0, 144, 288]
    assert list(radix.requests.cached_tokens) == [0, 149, 299]
    assert (radix.kv.num_blocks, radix.kv.block_size) == (3200, 1)


def test_what_arrives_in_a_decode_pool_is_a_row_of_a_decode_step():
    """SGLang's decode pool captures its steps: no step of it may hold a prompt, so that each replays a graph."""
    engine = {"framework": "sglang", "scheduler": "sglang"}
    steps = simulate(scenario(pools=DISAGGREGATED, engine=engine), 0).steps
    answers = steps.replica >= 2
    assert answers.sum() > 20
    assert (steps.prefill_seqs[answers] == 0).all()
    assert (steps.decode_seqs[answers].sum(), steps.prefill_tokens[~answers].sum()) == (60 * 19, 60 * 800)


@pytest.mark.parametrize(
    ("pools", "roles"),
    [
        ({"prefill": {}, "decode": {}}, ["prefill", "decode"]),
        ({"prefill-h100": {"engine": {"max_num_seqs": 8}}, "decode_2": {}}, ["prefill", "decode"]),
        ({"ctx": {}, "gen": {}}, ["prefill", "decode"]),
        ({"generation-1": {}, "ctx_0": {}}, ["decode", "prefill"]),
        ({"context": {"hardware": {"replicas": 2}}, "generation": {}}, ["prefill", "decode"]),
        ({"prefill": {"role": "both"}, "large": {}}, ["both", "both"]),
    ],
)
def test_pools_called_prefill_and_decode_have_these_roles(pools, roles):
    scenario = on_h100(burst(4, 64, 8), pools=pools)
    assert [pool.role for pool in scenario.pools.values()] == roles
    assert (simulate(scenario).transfers is not None) == ("decode" in roles)
