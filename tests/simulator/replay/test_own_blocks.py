"""A preempted request that comes back finds blocks of its own that nobody took."""

import numpy as np

from simulator.replay.rerun import own_hashes
from simulator.run import simulate
from simulator.scenario import scenario_from
from simulator.workload import RequestStream


def test_prompts_share_no_block():
    hashes = own_hashes(np.array([1, 16, 17, 100]), 16)
    found = [hashes.of(request).tolist() for request in range(4)]
    assert [len(one) for one in found] == [1, 1, 2, 7]
    assert len({unit for one in found for unit in one}) == 11


def test_coming_back_computes_less_and_only_after_preemption():
    base = {
        "model": "llama-3.2-1b",
        "hardware": {"chip": "h100-sxm"},
        "engine": {"num_kv_blocks": 400},
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 1, "output_tokens": 1, "num_requests": 1},
    }
    scenario = scenario_from(base, "test")
    prompts, answers = np.full(40, 500), np.full(40, 300)
    plain = RequestStream(np.zeros(40), prompts, answers, None)
    own = RequestStream(np.zeros(40), prompts, answers, None, prefix_hashes=own_hashes(prompts, 16))
    without, found = (simulate(scenario, stream=stream) for stream in (plain, own))
    assert without.requests.preemptions.sum() > 0
    assert found.steps.prefill_tokens.sum() < without.steps.prefill_tokens.sum()
    assert found.steps.prefill_tokens.sum() >= prompts.sum()
    roomy = scenario.with_values({"engine.num_kv_blocks": 10_000})
    one, other = (simulate(roomy, stream=stream) for stream in (plain, own))
    assert np.array_equal(one.requests.finished_s, other.requests.finished_s)
    assert other.requests.cached_tokens.sum() == 0
