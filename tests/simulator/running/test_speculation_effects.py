"""What speculation does to the rest: bursty delivery, the drafter's prefill, captured graphs, closed forms in a run."""

import dataclasses

import numpy as np
import pytest
from drafter_prices import seconds as seconds_of
from one_pool import one_pool
from scenario_parts import burst, closed_loop
from stub_timers import LinearTimer
from test_drafting import scenario

from simulator.running.build import build_replica
from simulator.running.metrics import summarise
from simulator.running.run import simulate
from simulator.serving import EngineLimits
from simulator.speculation import AcceptanceSampler, chain_speedup, expected_tokens
from simulator.speculation.closed_form import time_ratio
from simulator.timing import StepWork
from simulator.workload import RequestStream

TOKENS = 4000


@pytest.mark.parametrize("concurrency", [1, 4])
def test_tokens_arrive_in_bursts_of_the_acceptance_length(concurrency):
    """Mean ITL is the time between deliveries, so it is TPOT times the tokens of a delivery, the bonus token counted.

    vLLM's benchmark takes a gap for every chunk that arrives; a verify step delivers all its tokens in one.
    """
    work = closed_loop(concurrency, concurrency, 64, TOKENS)
    result = simulate(scenario("eagle3", workload=work))
    summary, drafts = summarise(result), result.requests.drafts
    per_delivery = (TOKENS - 1) * concurrency / drafts.sum()
    assert result.gaps.count.sum() == drafts.sum()
    assert summary["mean_itl_ms"] / summary["mean_tpot_ms"] == pytest.approx(per_delivery, rel=0.02)
    if concurrency == 1:
        assert summary["mean_itl_ms"] / summary["mean_tpot_ms"] == pytest.approx(per_delivery, rel=1e-9)
    length = summary["spec_decode_acceptance_length"]
    overshoot = 3 * concurrency / drafts.sum()
    assert per_delivery <= length <= per_delivery + overshoot
    assert length == 1.0 + result.requests.accepted_tokens.sum() / drafts.sum()


@pytest.mark.parametrize(("alpha", "tokens", "cost"), [(0.6, 2, 0.1), (0.8, 5, 0.05), (0.9, 10, 0.2), (0.0, 1, 0.3)])
def test_a_run_with_constant_step_times_is_leviathans_closed_form(alpha, tokens, cost):
    """Theorem 3.8 within three standard errors of the drawn acceptance; MagicDec's ratio of that run to 1e-9."""
    output = 20_000
    stream = RequestStream(np.zeros(1), np.array([10]), np.array([output]), None)
    limits = EngineLimits(1, 512, 16, 10_000, 0, None, True, query_len=tokens + 1, lookahead_tokens=tokens)
    step_s = 2.0**-7  # on the time grid
    plain = LinearTimer(step_s=step_s)
    drafting = dataclasses.replace(plain, draft_s=tokens * cost * step_s)
    sampler = AcceptanceSampler(np.cumprod(np.full(tokens, alpha)), seed=2)
    spec = one_pool(1, "round-robin", "vllm-v1", "fast", limits, drafting, sampler).run(stream)
    base = one_pool(1, "round-robin", "vllm-v1", "fast", dataclasses.replace(limits, query_len=1), plain).run(stream)
    decode = [log.finished_s[0] - log.first_token_s[0] for log in (spec, base)]
    drafts = spec.drafts[0]
    ratio = time_ratio((output - 1) / drafts, tokens, cost * step_s, step_s, step_s)
    assert decode[0] / decode[1] == pytest.approx(ratio, rel=1e-9)
    accepted = np.repeat(np.arange(tokens + 1), spec.accepted_counts)
    error = 3 * accepted.std() / np.sqrt(drafts) / expected_tokens(alpha, tokens)
    assert decode[1] / decode[0] == pytest.approx(chain_speedup(alpha, tokens, cost), rel=error + tokens / output)


def test_a_prompt_is_prefilled_by_the_drafter_too():
    """A completed prompt costs the drafter's own pass over it, the passes that draft and the host around them."""
    timer = build_replica(scenario("draft-model"), 0).main.timer
    prompt = StepWork(1, 1000, (500_500,), (1000,), 1, (1001,), 0, 4, (0,))
    drafter = timer.drafter
    prefill = drafter.step.seconds(prompt, 1)
    forwards = 2 * drafter.step.seconds(StepWork(0, 0, (0,), (0,), 0, (0,), 1, 1, (1002,)), 1)
    added = timer.seconds(prompt) - timer.target.seconds(prompt) - timer._step_s - timer._per_sequence_s
    host = drafter.overhead
    assert host.step_s > 0
    host_s = host.step_s + host.per_sequence_s + 3 * (host.pass_s + host.sequence_pass_s)
    assert added == pytest.approx(prefill + forwards + host_s, rel=1e-9)
    chunk = prompt._replace(sampled_prefills=0, sampled_kv_tokens=(0,))
    unfinished = timer.seconds(chunk) - timer.target.seconds(chunk) - timer._step_s - timer._per_sequence_s
    assert unfinished == pytest.approx(drafter.step.seconds(chunk, 0), rel=1e-9)


def test_a_run_pays_for_the_passes_of_each_slot():
    """llama.cpp drafts for each slot by itself: a run's steps last what the timing model says, alone or not."""
    workload = burst(4, 64, 60)
    requested = scenario("draft-model", {"framework": "llama.cpp"}, workload)
    timer = build_replica(requested, 0).main.timer
    steps = simulate(requested).steps
    decoding = np.flatnonzero(steps.prefill_seqs == 0)
    assert {1, 4} <= set(steps.decode_seqs[decoding].tolist())
    for i in decoding:
        counts = (int(values[i]) for values in (steps.decode_seqs, steps.query_len, steps.decode_kv_tokens))
        seqs, query_len, keys = counts
        work = StepWork(0, 0, (0,), (0,), 0, (0,), seqs, query_len, (keys,))
        assert steps.seconds[i] == pytest.approx(timer.seconds(work), rel=1e-6)


def verify_s(timer, seqs, query_len):
    return timer.target.seconds(StepWork(0, 0, (0,), (0,), 0, (0,), seqs, query_len, (seqs * 300,)))


def test_captured_sizes_follow_the_verified_tokens():
    """Graphs are padded by tokens, sequences times K + 1, so K moves the batch at which steps leave them."""
    small = {"model": "llama-3.2-1b", "weights_dtype": "int4"}
    captured, eager = (
        build_replica(
            scenario("eagle3", engine={"cuda_graphs": graphs, "framework": "vllm"}).with_values(small), 0
        ).main.timer
        for graphs in (True, False)
    )
    framework = captured.target.deployment.framework
    floor = framework.eager_launch_s * framework.kernels_per_layer * 16
    assert verify_s(captured, 8, 4) < floor <= verify_s(eager, 8, 4)
    most = framework.max_captured_tokens
    flags = captured.target._eager.values
    assert not flags[most]
    assert flags[most + 1]
    assert not flags[most // 4 * 4], "a batch of 128 that verifies 4 tokens each still replays a graph"
    assert flags[(most // 4 + 1) * 4], "one of 129 does not, though 129 tokens would"
    assert not captured.drafter.step._eager(most // 4 + 1), "nor do its draft passes of one token each leave theirs"
    head_floor = framework.eager_launch_s * framework.kernels_per_layer
    work = StepWork(0, 0, (0,), (0,), 0, (0,), 1, 4, (300,))
    assert seconds_of(eager.drafter, work) >= 3 * head_floor
    assert eager.seconds(work) > captured.seconds(work)
