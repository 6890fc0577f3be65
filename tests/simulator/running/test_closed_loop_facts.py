"""What any closed loop obeys, whatever the model and the chip."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_scenario import plain_scenario
from scenario_parts import closed_loop, drafts, on_h100, uniform

from simulator.running.run import simulate


def summary(concurrency, requests, seed=0, prompt=(10, 600), output=(2, 150), **changes):
    workload = closed_loop(concurrency, requests, uniform(*prompt), uniform(*output))
    return simulate(on_h100(workload, model="llama-3.2-1b", **changes), seed).summary


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 150),
    st.integers(0, 999),
    st.sampled_from([{}, {"engine": {"num_kv_blocks": 60}}, {"engine": {"stepping": "exact-steps"}}]),
    st.sampled_from([None, drafts("ngram", 3, 0.5)]),
)
def test_throughput_times_latency_stays_within_the_loop(concurrency, requests, seed, changes, speculation):
    result = summary(concurrency, requests, seed, **changes, **({"speculation": speculation} if speculation else {}))
    held = result["request_throughput"] * result["mean_e2el_ms"] * 1e-3
    assert held <= min(concurrency, requests) * (1 + 1e-9)


def test_a_long_run_fills_the_loop():
    """Only start and end hold fewer than N; their share falls as 1 / requests."""
    gaps = []
    for requests in (200, 800, 3200):
        result = summary(20, requests)
        gaps.append(1.0 - result["request_throughput"] * result["mean_e2el_ms"] * 1e-3 / 20)
    assert gaps[0] > gaps[1] > gaps[2] > 0
    assert gaps[2] < 0.02
    assert gaps[0] / gaps[2] == pytest.approx(16, rel=0.6)


def test_decoding_is_slower_in_a_longer_run_where_prompts_are_long():
    """All prompts of a run as long as its loop are computed first; later on each prompt holds up those that decode."""
    tpot = [summary(32, n, prompt=(6000, 8000), output=(200, 300))["mean_tpot_ms"] for n in (32, 64, 320, 1280)]
    assert tpot[0] < tpot[1] < tpot[2]
    assert tpot[3] == pytest.approx(tpot[2], rel=0.05), "a steady state in the end"
    flat = [summary(32, n, prompt=(6, 8), output=(200, 300))["mean_tpot_ms"] for n in (32, 1280)]
    assert flat[0] == pytest.approx(flat[1], rel=0.06)


@pytest.mark.parametrize(("blocks", "says"), [(100, True), (4000, False)])
def test_a_closed_loop_that_memory_cannot_hold_is_named(blocks, says):
    """32 requests of 300 tokens take 600 blocks of 16."""
    loop = {"arrivals": {"process": "closed-loop", "max_concurrency": 32}}
    run = simulate(
        plain_scenario(inputs=200, outputs=100, requests=40, engine={"num_kv_blocks": blocks}, workload=loop)
    )
    notes = [note for note in run.notes if "and 32 are outstanding" in note]
    assert [note.split(" and 32")[0] for note in notes] == (
        ["KV memory holds 5.3 requests of 300 tokens"] if says else []
    )
