"""A preempted request that comes back finds blocks of its own that nobody took."""

import numpy as np
from scenario_parts import burst, on_h100

from simulator.replay.rerun import unshared_hashes
from simulator.running.run import simulate
from simulator.workload import RequestStream


def test_prompts_share_no_block():
    hashes = unshared_hashes(np.array([1, 16, 17, 100]), 16)
    result = [hashes.of(request).tolist() for request in range(4)]
    assert [len(one) for one in result] == [1, 1, 2, 7]
    assert len({unit for one in result for unit in one}) == 11


def test_coming_back_computes_less_and_only_after_preemption():
    scenario = on_h100(burst(1, 1, 1), model="llama-3.2-1b", engine={"num_kv_blocks": 400})
    prompts, answers = np.full(40, 500), np.full(40, 300)
    plain = RequestStream(np.zeros(40), prompts, answers, None)
    custom = RequestStream(np.zeros(40), prompts, answers, None, prefix_hashes=unshared_hashes(prompts, 16))
    without, run = (simulate(scenario, stream=stream) for stream in (plain, custom))
    assert without.requests.preemptions.sum() > 0
    assert run.steps.prefill_tokens.sum() < without.steps.prefill_tokens.sum()
    assert run.steps.prefill_tokens.sum() >= prompts.sum()
    roomy = scenario.with_values({"engine.num_kv_blocks": 10_000})
    one, other = (simulate(roomy, stream=stream) for stream in (plain, custom))
    assert np.array_equal(one.requests.finished_s, other.requests.finished_s)
    assert other.requests.cached_tokens.sum() == 0
