"""Attention data parallelism: groups of chips with a scheduler, a token budget and a cache each, in step."""

from __future__ import annotations

import pytest
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from simulator import simulate
from simulator.running.build import build_replica
from simulator.serving.compiled import engine_module
from simulator.serving.fleet.pool import ReplicaBuilder
from simulator.serving.log import RunLog, StepLog
from simulator.serving.request_source import OpenLoopSource
from simulator.workload.generate import generate_requests


def grouped(groups=4, engine=None, workload=None, **hardware):
    """Qwen3-30B-A3B on H100, experts spread over all groups."""
    hardware = {"attention_data_parallel": groups, "expert_parallel": groups} | hardware
    limits = {"max_num_seqs": 16, "max_num_batched_tokens": 1024, "entry_point": "offline"}
    sections = {"hardware": hardware, "engine": limits | (engine or {}), "workload": workload or {}}
    return plain_scenario("qwen3-30b-a3b", "h100-sxm", 1000, 4, groups, **sections)


def test_every_group_has_a_token_budget_of_its_own():
    """Four prompts of 1000 tokens under a budget of 1024 are one step over four groups and four steps over one."""
    together = simulate(grouped(), 0).steps
    assert together.prefill_tokens[0] == 4000
    assert (together.prefill_tokens[1:] == 0).all()
    single = simulate(grouped(1, workload={"num_requests": 4}), 0).steps
    assert single.prefill_tokens.max() <= 1024


def test_sglang_divides_its_limits_among_the_groups():
    limits = build_replica(grouped(engine={"framework": "sglang", "scheduler": "sglang"}), 0).main.limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.groups, limits.round_robin) == (256, 4, 4, True)
    limits = build_replica(grouped(), 0).main.limits
    assert (limits.max_num_batched_tokens, limits.max_num_seqs, limits.round_robin) == (1024, 16, False)


def test_a_request_has_to_fit_one_group():
    """What all groups hold together is no use to a request that none of them holds."""
    workload = {"input_tokens": 900, "num_requests": 1}
    assert simulate(grouped(engine={"num_kv_blocks": 60}, workload=workload), 0).summary["completed"] == 1
    with pytest.raises(ForerunError, match="57 KV blocks, the replica has 40"):
        simulate(grouped(engine={"num_kv_blocks": 40}, workload=workload), 0)


def test_a_measured_block_count_is_that_of_each_group():
    build = build_replica(grouped(engine={"num_kv_blocks": 60}), 0)
    assert (build.main.limits.num_blocks, build.memory.num_blocks) == (60, 240)


def test_host_work_is_done_by_every_group_for_its_own_sequences():
    """Sixteen times the groups with sixteen times the requests: a step takes no more host time than before."""
    engine = {"framework": "sglang", "scheduler": "sglang", "max_num_seqs": 4096, "max_num_batched_tokens": 65536}
    engine["gpu_memory_utilization"] = 0.8  # SGLang's own rule leaves nothing beside steps of so many tokens
    host_s = []
    for groups in (2, 32):
        workload = {"input_tokens": 100, "output_tokens": 40, "num_requests": 8 * groups}
        steps = simulate(grouped(groups, engine=engine, workload=workload), 0).steps
        host_s.append(steps.host_s[steps.decode_seqs == 8 * groups].mean())
    assert host_s[1] <= host_s[0]


@pytest.mark.parametrize(("framework", "expected"), [("vllm", 2), ("sglang", 3)])
def test_requests_go_to_the_group_with_the_fewest_or_in_turn(framework, expected):
    """One request runs in the first of two groups when three more come. In turn they go to 0, 1, 0; by the fewest,
    where a waiting request counts four times, to 1 (1 against 0), 0 (1 against 4) and 1 (5 against 4)."""
    engine = {"framework": framework, "scheduler": "sglang" if framework == "sglang" else "vllm-v1"}
    workload = {"input_tokens": 64, "output_tokens": 300, "num_requests": 5}
    scheduler = build_scheduler(grouped(2, engine=engine | {"max_num_batched_tokens": 4096}, workload=workload))
    sequences = [engine_module(interpreted=True).Sequence(i, 64, 300) for i in range(5)]
    for sequence in sequences[:2]:
        scheduler.add(sequence)
    scheduler.plan()
    scheduler.release(sequences[1])
    scheduler.plan()
    scheduler.add(sequences[2])
    scheduler.add(sequences[3])
    scheduler.add(sequences[4])
    first = [sequence.index for sequence in sequences if sequence.group == 0]
    assert len(first) == expected, first


def build_scheduler(scenario):
    """The batching rule of a replica, interpreted."""
    pool = build_replica(scenario.with_values({"engine.stepping": "exact-steps"}), 0).main
    log = RunLog(generate_requests(scenario.workload, 0), StepLog(1, grouped=True), 0)
    return ReplicaBuilder(pool, log).replica(0, OpenLoopSource([], log, pool.limits)).scheduler


def test_the_step_is_that_of_the_slowest_group():
    """One prompt among four groups: the others wait for it with a dummy batch, and it takes as long as in a group of
    a replica in which every group has one, but for the experts."""
    one = simulate(grouped(workload={"num_requests": 1}), 0).steps
    four = simulate(grouped(workload={"num_requests": 4}), 0).steps
    assert one.seconds[0] <= four.seconds[0] < 2 * one.seconds[0]
    assert one.flops[0] * 4 == pytest.approx(four.flops[0], rel=1e-6)


def test_prompts_wait_for_prompts_of_the_other_groups():
    """TensorRT-LLM's balance: with both groups decoding, a prompt of one waits for one of the other, for so many steps
    at most; vLLM's start at once."""
    engine = {"framework": "trtllm", "max_num_batched_tokens": 4096}
    scheduler = build_scheduler(grouped(2, engine=engine, workload={"output_tokens": 300}))
    sequences = [engine_module(interpreted=True).Sequence(i, 64, 300) for i in range(5)]

    def step():
        plan = scheduler.plan()
        for sequence, tokens in plan.chunks:
            sequence.computed_tokens += tokens
            sequence.decoding = True
            sequence.generated_tokens += 1
        return [sequence.index for sequence, _ in plan.chunks]

    for sequence in sequences[:2]:
        scheduler.add(sequence)
    assert step() == [0, 1], "nothing decodes yet"
    scheduler.add(sequences[2])
    assert step() == []
    scheduler.add(sequences[3])
    assert step() == [2, 3], "every group has one"
    scheduler.add(sequences[4])
    assert [step() for _ in range(51)] == [[]] * 50 + [[4]]
