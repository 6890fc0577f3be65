"""Disaggregated pools, failures, swap and admission, in closed form."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose
from one_pool import one_pool
from stub_timers import LinearTimer

from forerun.errors import ForerunError
from simulator.serving import (
    EngineLimits,
    Faults,
    FaultsConfig,
    Fleet,
    KvLink,
    Pool,
    RouterConfig,
    StoreSpace,
)
from simulator.serving.clock import on_grid
from simulator.serving.fleet import faults as faults_module
from simulator.workload import RequestStream
from traces import PrefixHashes

LIMITS = EngineLimits(8, 512, 16, 1000, 0, 10_000, True)
PREFILL_S, DECODE_S = 0.25, 0.0625
LINK = KvLink(latency_s=0.001, bandwidth_bytes_per_s=1e6, bytes_per_token=1000.0, samples_first=True)


def stream(prompts, outputs, arrivals=None, concurrency=None, hashes=None):
    arrivals = np.zeros(len(prompts)) if arrivals is None else np.asarray(arrivals, dtype=float)
    return RequestStream(arrivals, np.asarray(prompts), np.asarray(outputs), concurrency, hashes)


def disaggregated(
    prefill=1, decode=1, link=LINK, decode_limits=LIMITS, prefill_limits=LIMITS, faults=None, caching=False
):
    def pool(replicas, limits, step_s, name, role):
        timer = LinearTimer(step_s=step_s)
        return Pool(replicas, "vllm-v1", "fast", limits, timer, prefix_caching=caching, name=name, role=role)

    pools = (
        pool(prefill, prefill_limits, PREFILL_S, "p", "prefill"),
        pool(decode, decode_limits, DECODE_S, "d", "decode"),
    )
    return Fleet(pools, links={("p", "d"): link}, faults=faults)


def travel(tokens, link=LINK):
    return on_grid(link.latency_s + tokens * link.bytes_per_token / link.bandwidth_bytes_per_s)


def test_one_request_prefill_link_decode():
    """The first token comes with the KV and is streamed with the decode replica's first step, of outputs - 1."""
    log = disaggregated().run(stream([100], [5]))
    assert_allclose(log.first_token_s[0], PREFILL_S + travel(100) + DECODE_S)
    assert_allclose(log.finished_s[0], PREFILL_S + travel(100) + 4 * DECODE_S)
    assert log.transferred_tokens == 100
    assert_allclose(log.transfer_s, travel(100))
    assert (log.prompt_replica[0], log.replica[0]) == (0, 1)


def test_what_router_and_workers_take_delays_a_prompt_and_not_the_link():
    link = dataclasses.replace(LINK, setup_s=0.5)
    log = disaggregated(prefill=1, link=link).run(stream([100, 100], [5, 5]))
    assert_allclose(sorted(log.finished_s)[0], PREFILL_S + travel(100) + 0.5 + 4 * DECODE_S)
    assert max(log.first_token_s) < PREFILL_S + 2 * travel(100) + 0.5 + 2 * DECODE_S + 1e-9


def test_the_decode_replica_may_compute_the_last_prompt_token():
    """As vLLM hands over: all but one token travel, the first token comes from the decode replica."""
    link = dataclasses.replace(LINK, samples_first=False)
    log = disaggregated(link=link).run(stream([100], [5]))
    assert_allclose(log.first_token_s[0], PREFILL_S + travel(99) + DECODE_S)
    assert_allclose(log.finished_s[0], PREFILL_S + travel(99) + 5 * DECODE_S)


def test_a_one_token_answer_needs_no_decode():
    log = disaggregated().run(stream([100], [1]))
    assert_allclose(log.finished_s[0], PREFILL_S)
    assert log.transfers == 0


def test_transfers_of_one_replica_go_one_after_the_other():
    log = disaggregated().run(stream([100, 200], [2, 2]))
    first, second = sorted(log.finished_s)
    assert_allclose(log.first_token_s[0], PREFILL_S + travel(100) + DECODE_S, err_msg="both prompts in one step")
    assert first >= PREFILL_S + travel(100) + DECODE_S - 1e-9
    assert second >= PREFILL_S + travel(100) + travel(200) + DECODE_S - 1e-9
    assert_allclose(log.transfer_s, travel(100) + travel(100) + travel(200))


def test_two_prefill_replicas_send_at_the_same_time():
    log = disaggregated(prefill=2).run(stream([100, 100], [2, 2]))
    assert_allclose(log.finished_s[:], PREFILL_S + travel(100) + DECODE_S)


def test_a_full_decode_pool_holds_back_the_prefill_pool():
    """Room for one prompt in each: the third prompt starts only when the first answer has ended.

    The decode replica ends request 0, takes over request 1, and only then has the prefill replica room for request 2.
    """
    tight = dataclasses.replace(LIMITS, num_blocks=8)
    log = disaggregated(decode_limits=tight, prefill_limits=tight).run(stream([100, 100, 100], [10, 10, 10]))
    ends = PREFILL_S + travel(100) + 9 * DECODE_S
    assert_allclose(log.finished_s[0], ends)
    assert_allclose(log.first_token_s[1], ends + travel(100) + DECODE_S)
    assert log.scheduled_s[2] >= ends + travel(100) - 1e-9
    assert not any(log.failed)


def test_the_decode_side_prefix_cache_spares_the_transfer():
    hashes = PrefixHashes.from_lists([[1, 2, 3, 4], [1, 2, 3, 5]], 32)
    log = disaggregated(caching=True).run(stream([128, 128], [2, 2], arrivals=[0.0, 10.0], hashes=hashes))
    assert list(log.cached_tokens) == [0, 96]
    assert log.transferred_tokens == 128 + 32


def fail_at(*events):
    parts = [{"replica": replica, "at_s": at, "down_s": down} for replica, at, down in events]
    return Faults(FaultsConfig.model_validate({"events": parts}), 0)


def single(replicas=1, faults=None, **router):
    pool = Pool(replicas, "vllm-v1", "fast", LIMITS, LinearTimer(step_s=0.5))
    return Fleet((pool,), "least-outstanding", RouterConfig(**router), faults=faults)


def test_a_failed_replica_starts_again_where_the_answer_stood():
    """Down from 1.75 to 5: three tokens are out, the step in progress is lost, prompt and answer are computed anew."""
    log = single(faults=fail_at((0, 1.75, 3.25))).run(stream([10], [6]))
    assert_allclose(log.first_token_s[0], 0.5)
    assert_allclose(log.finished_s[0], 5.0 + 3 * 0.5)
    assert list(log.restarts) == [1]
    assert log.steps.integers("prefill_tokens").sum() == 10 + 13


def test_another_replica_takes_over_at_once():
    log = single(2, faults=fail_at((0, 1.75, 100.0))).run(stream([10], [6]))
    assert_allclose(log.finished_s[0], 1.75 + 3 * 0.5)
    assert log.replica[0] == 1


def test_a_step_that_ends_as_the_replica_fails_counts():
    log = single(2, faults=fail_at((0, 1.5, 100.0))).run(stream([10], [3]))
    assert_allclose(log.finished_s[0], 1.5)
    assert sum(log.restarts) == 0


def test_prompts_lost_in_the_prefill_pool_are_computed_again():
    """The prefill replica fails while the KV travels; the decode replica's reservation is given back."""
    at = PREFILL_S + travel(100) / 2
    log = disaggregated(prefill=2, faults=fail_at((0, at, 100.0))).run(stream([100], [5]))
    assert_allclose(log.finished_s[0], at + PREFILL_S + travel(101) + 3 * DECODE_S)
    assert log.transfers == 1


def test_a_lost_receiver_costs_no_more_than_another_transfer():
    at = PREFILL_S + travel(100) / 2
    log = disaggregated(decode=2, faults=fail_at((1, at, 100.0))).run(stream([100], [5]))
    assert sum(log.restarts) == 0
    assert log.replica[0] == 2
    assert_allclose(log.finished_s[0], PREFILL_S + travel(100) * 2 + 4 * DECODE_S)


def test_random_failures_come_as_often_as_they_should():
    """Mean up and down times over many failures, within four standard errors."""
    faults = Faults(FaultsConfig(mtbf_s=100.0, mttr_s=10.0), 1)
    events = [event for _, event in zip(range(4000), faults.of(0), strict=False)]
    starts, downs = np.array(events).T
    ups = np.diff(starts) - downs[:-1]
    assert abs(ups.mean() - 100.0) < 4 * 100.0 / np.sqrt(len(ups))
    assert abs(downs.mean() - 10.0) < 4 * 10.0 / np.sqrt(len(downs))
    assert [event for _, event in zip(range(5), faults.of(0), strict=False)] == events[:5]
    assert next(iter(faults.of(1))) != events[0]


def test_failures_while_nobody_sends_anything_end_in_one_line(monkeypatch):
    monkeypatch.setattr(faults_module, "MOST_FAILURES", 50)
    often = Faults(FaultsConfig(mtbf_s=0.3, mttr_s=0.05), 1)
    with pytest.raises(ForerunError, match=r"failed 50 times in .* raise mtbf_s, or shorten the waits"):
        disaggregated(faults=often).run(stream([100, 100], [5, 5], arrivals=[0.0, 1e9]))


WAY = dataclasses.replace(LIMITS, api_server_s=0.125, api_server_work_s=0.0625)


def test_a_prompt_passes_both_api_servers():
    """The decode replica is contacted when the prompt is done; its KV travels when the request is through there."""
    log = disaggregated(prefill_limits=WAY, decode_limits=dataclasses.replace(LIMITS, api_server_s=0.5)).run(
        stream([100], [5])
    )
    assert_allclose(log.first_token_s[0], 0.1875 + PREFILL_S + 0.5 + travel(100) + DECODE_S)
    assert_allclose(log.finished_s[0], 0.1875 + PREFILL_S + 0.5 + travel(100) + 4 * DECODE_S)
    assert_allclose(log.transfer_s, 0.5 + travel(100))


@pytest.mark.parametrize(("ahead", "steps"), [(False, 1), (True, 2)])
def test_kv_that_arrives_in_a_step_waits_for_the_next_that_knows_of_it(ahead, steps):
    """Two prefill replicas finish at 0.25 s and send for 0.101 and 0.108 s: the second arrives in the first's step."""
    limits = dataclasses.replace(LIMITS, schedules_ahead=ahead)
    log = disaggregated(prefill=2, decode_limits=limits).run(stream([100, 107], [40, 2]))
    assert_allclose(log.finished_s[1], PREFILL_S + travel(100) + (steps + 1) * DECODE_S)


def test_an_idle_replica_schedules_what_came_in_its_last_step_at_once():
    """One ahead, but with nothing to run meanwhile: the answer ends with the step in which the second KV arrives."""
    limits = dataclasses.replace(LIMITS, schedules_ahead=True)
    log = disaggregated(prefill=2, decode_limits=limits).run(stream([100, 107], [2, 2]))
    assert_allclose(log.finished_s[:], PREFILL_S + travel(100) + np.array([1, 2]) * DECODE_S)


def test_requests_are_lost_with_the_front_end_that_works_on_them():
    """The replica fails at 1/8 s with the prompt half-way in; the other one's API server takes it from the start."""
    pool = Pool(2, "vllm-v1", "fast", WAY, LinearTimer(step_s=0.5))
    log = Fleet((pool,), faults=fail_at((0, 0.125, 100.0))).run(stream([10], [3]))
    assert list(log.restarts) == [1]
    assert_allclose(log.first_token_s[0], 0.125 + 0.1875 + 0.5)


def test_a_front_end_starts_afresh_after_a_failure():
    """Eight prompts keep the API server busy until 0.5 s; after a failure at 1/16 s it begins anew with all of them."""
    limits = dataclasses.replace(LIMITS, api_server_work_s=0.0625)
    pool = Pool(1, "vllm-v1", "fast", limits, LinearTimer(step_s=0.001))
    log = Fleet((pool,), faults=fail_at((0, 0.03125, 0.03125))).run(stream([10] * 8, [1] * 8))
    assert_allclose(log.first_token_s[:], 0.0625 * np.arange(2, 10) + 0.001)


def test_refusal_when_every_replica_is_full():
    log = single(2, max_outstanding=1, when_full="refuse").run(stream([10] * 3, [4] * 3, [0.0, 0.1, 0.2]))
    assert list(log.failed) == [0, 0, 1]
    assert log.refusals == {"every replica held router.max_outstanding 1 requests": 1}


def test_a_request_waits_at_the_router_and_counts_from_its_arrival():
    log = single(max_outstanding=1).run(stream([10] * 2, [4] * 2))
    assert_allclose(log.finished_s[:], [2.0, 4.0])
    assert_allclose(log.first_token_s[1] - log.arrival_s[1], 2.5)


def test_the_router_queue_has_an_end():
    log = single(max_outstanding=1, max_queue=1).run(stream([10] * 3, [4] * 3))
    assert list(log.failed) == [0, 0, 1]
    assert log.refusals == {"router.max_queue 1 requests waited already": 1}


def test_pools_differ_in_what_they_can_serve():
    """A prompt that only the second pool holds goes there, whatever the order of replicas."""
    small = dataclasses.replace(LIMITS, num_blocks=4)
    pools = tuple(
        Pool(1, "vllm-v1", "fast", limit, LinearTimer(), name=name)
        for name, limit in (("small", small), ("large", LIMITS))
    )
    log = Fleet(pools, "round-robin").run(stream([200, 20, 200, 20], [4] * 4, [0.0, 1.0, 2.0, 3.0]))
    assert [log.replica[0], log.replica[2]] == [1, 1]
    assert not any(log.failed)
    assert log.exact_steps == 0


SWAP = StoreSpace(num_blocks=100, block_bytes=1.0, read_bytes_per_s=2.0**10, latency_s=2.0**-8)


def swapping(swap, num_blocks=6):
    limits = EngineLimits(8, 512, 4, num_blocks, 0, 10_000, True)
    return one_pool(1, "round-robin", "vllm-v1", "fast", limits, LinearTimer(step_s=1.0), swap=swap)


def test_swapping_out_and_in_costs_what_the_link_takes():
    """Two requests of 8 + 9 tokens in 6 blocks of 4 tokens: the second makes room for the first and comes back.

    Both prompts take one step. The first then grows to 17 tokens; the batch needs a seventh block when both hold 13,
    in the step that would put the 13th token of each in the cache: 12 tokens of the second are out, 3 blocks.
    """
    log = swapping(SWAP).run(stream([8, 8], [9, 9]))
    copies = log.steps.column("copies_s")
    assert log.swapped_blocks == 3
    assert sum(log.preemptions) == 1
    assert_allclose(sorted(copies[copies > 0]), [2.0**-8 + 3 * 2.0**-10] * 2)
    assert log.steps.integers("prefill_tokens").sum() == 16, "nothing is computed twice"
    assert_allclose(log.finished_s[0], 9 + 2.0**-8 + 3 * 2.0**-10)


def test_recomputation_computes_again_what_swapping_keeps():
    log = swapping(None).run(stream([8, 8], [9, 9]))
    assert sum(log.preemptions) == 1
    assert log.steps.integers("prefill_tokens").sum() == 16 + 8 + 5
    assert log.exact_steps == 0


def test_without_room_in_host_memory_the_sequence_is_recomputed():
    small = StoreSpace(num_blocks=2, block_bytes=1.0, read_bytes_per_s=1.0, latency_s=1.0)
    log = swapping(small).run(stream([8, 8], [9, 9]))
    assert log.swapped_blocks == 0
    assert log.steps.integers("prefill_tokens").sum() == 16 + 8 + 5


@pytest.mark.parametrize("swap", [SWAP, None])
def test_swap_and_recomputation_deliver_the_same_tokens(swap):
    rng = np.random.default_rng(3)
    log = swapping(swap, 12).run(stream(rng.integers(1, 20, 40), rng.integers(1, 20, 40)))
    assert sum(log.preemptions) > 0
    assert log.steps.integers("output_tokens").sum() == sum(log.output_tokens)
    assert np.isfinite(np.asarray(log.finished_s)).all()
